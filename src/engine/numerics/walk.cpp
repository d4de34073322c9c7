#include "engine/numerics/walk.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/exec/semicrf_ops.h"
#include "engine/numerics/bounds.h"
#include "engine/numerics/cause.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"
#include "segfuse/error.h"

namespace segfuse::engine::numerics {
namespace {

using ir::Evaluation;

bool has(const Tensor& tensor, bool (*what)(double)) {
  if (!is_float(tensor.dtype())) return false;
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    if (what(tensor.at(i))) return true;
  return false;
}

bool is_nan(double x) { return std::isnan(x); }
bool not_finite(double x) { return !std::isfinite(x); }

/// Whether what an element of a result was made of has that property.
bool made_of(const Evaluation& e, std::int64_t element, bool (*what)(double)) {
  const bool each = ir::info(e.expr().op).op_class == ir::OpClass::kElementwise;
  return std::any_of(e.operands.begin(), e.operands.end(), [&](const Tensor& operand) {
    if (!each) return has(operand, what);
    return is_float(operand.dtype()) && what(operand.at(element));
  });
}

/// Elements that count, or all of them without a list.
using Live = std::vector<char>;
bool counts(const Live* live, std::int64_t element) {
  return live == nullptr || (*live)[static_cast<std::size_t>(element)] != 0;
}

[[nodiscard]] std::optional<WalkFault> look_at_result(const Evaluation& e, std::size_t r,
                                                      const Tensor& result, const Live* live) {
  const ir::Op op = e.expr().op;
  const ir::OpClass op_class = ir::info(op).op_class;
  if (!is_float(result.dtype()) || only_moves(op) || op_class == ir::OpClass::kCreation ||
      (!e.operands.empty() && e.operands[0].size() == 0))
    return std::nullopt;
  for (std::int64_t i = 0; i < result.size(); ++i) {
    const double value = result.at(i);
    if (std::isfinite(value) || !counts(live, i)) continue;
    // A loss is made of sums over all segmentations: masked scores do not explain an infinite one.
    const bool own = op == ir::Op::semicrf_loss && std::isinf(value);
    if (!own && made_of(e, i, std::isnan(value) ? is_nan : not_finite)) {
      if (op_class != ir::OpClass::kElementwise) return std::nullopt;
      continue;
    }
    return WalkFault{std::isnan(value) ? NumericsFault::kNaN : NumericsFault::kInfinity,
                     e.id,
                     e.expr().results[r],
                     i,
                     value,
                     ""};
  }
  return std::nullopt;
}

/// Integers that are not what was cast.
[[nodiscard]] std::optional<WalkFault> look_at_cast(const Evaluation& e, const Tensor& result,
                                                    const Live* live) {
  if (e.expr().op != ir::Op::cast || is_float(result.dtype()) || result.dtype() == DType::kBool ||
      !is_float(e.operands[0].dtype()))
    return std::nullopt;
  for (std::int64_t i = 0; i < result.size(); ++i) {
    const double from = e.operands[0].at(i);
    if (!counts(live, i) || std::abs(result.at(i) - from) < 1) continue;
    // Beyond 2^53 the distance of neighbours is more than 1, but the nearest integer is meant.
    if (std::abs(from) < 0x1p63 && result.dtype() == DType::kI64) continue;
    return WalkFault{NumericsFault::kCast,
                     e.id,
                     e.expr().operands[0],
                     i,
                     from,
                     fmt::format("{} becomes {} in {}", number_text(from), result.at(i),
                                 name_of(result.dtype()))};
  }
  return std::nullopt;
}

[[nodiscard]] std::optional<WalkFault> out_of_range(const Evaluation& e, std::size_t operand,
                                                    std::int64_t size, const char* what,
                                                    const char* of) {
  const auto indices = e.operands[operand].span<std::int64_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < size) continue;
    return WalkFault{NumericsFault::kIndex,
                     e.id,
                     e.expr().operands[operand],
                     static_cast<std::int64_t>(i),
                     static_cast<double>(indices[i]),
                     fmt::format("{} {} is out of range: {} {}", what, indices[i], of, size)};
  }
  return std::nullopt;
}

/// Labels of frames beyond a row's length do not count.
[[nodiscard]] std::optional<WalkFault> check_labels(const Evaluation& e, std::size_t scores) {
  const Shape& shape = e.operands[0].shape();
  const auto lengths = e.operands[scores].span<std::int64_t>();
  const auto labels = e.operands[scores + 1].span<std::int64_t>();
  if (auto fault = out_of_range(e, scores, shape[1] + 1, "length", "lengths are less than"))
    return fault;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto time = static_cast<std::size_t>(shape[1]);
    if (static_cast<std::int64_t>(i % time) >= lengths[i / time]) continue;
    if (labels[i] >= 0 && labels[i] < shape[2]) continue;
    return WalkFault{
        NumericsFault::kIndex,
        e.id,
        e.expr().operands[scores + 1],
        static_cast<std::int64_t>(i),
        static_cast<double>(labels[i]),
        fmt::format("label {} is out of range: labels are less than {}", labels[i], shape[2])};
  }
  return std::nullopt;
}

[[nodiscard]] std::optional<WalkFault> check_indices(const Evaluation& e) {
  const ir::Op op = e.expr().op;
  if (ir::has_indices(op)) {
    const auto axis = static_cast<std::size_t>(e.attr<std::int64_t>("axis"));
    const std::int64_t size =
        ir::adds(op) ? e.sizes.of(e.attr<ir::Extents>("size")[0]) : e.operands[0].shape()[axis];
    return out_of_range(e, 1, size, "index", "indices are less than");
  }
  if (ir::info(op).op_class != ir::OpClass::kOpaque) return std::nullopt;
  switch (ir::as<ir::OpaqueOp>(op)) {
    case ir::OpaqueOp::matmul:
    case ir::OpaqueOp::cumsum:
    case ir::OpaqueOp::cumprod:
    case ir::OpaqueOp::cummax:
    case ir::OpaqueOp::cummin:
    case ir::OpaqueOp::cumlogsumexp:
    case ir::OpaqueOp::linear_scan:
    case ir::OpaqueOp::scan:  // indices within the body are checked as it runs
    case ir::OpaqueOp::attention:
    case ir::OpaqueOp::attention_grad:
    case ir::OpaqueOp::sort: break;
    case ir::OpaqueOp::semicrf_loss: return check_labels(e, e.operands.size() - 3);
    case ir::OpaqueOp::semicrf_loss_grad: return check_labels(e, e.operands.size() - 4);
  }
  return std::nullopt;
}

/// The fault of an expression whose results are there.
[[nodiscard]] std::optional<WalkFault> look(const Evaluation& e, const std::vector<Tensor>& values,
                                            const std::vector<Live>* live) {
  for (std::size_t r = 0; r < e.expr().results.size(); ++r) {
    const ir::ValId val = e.expr().results[r];
    const Live* elements = live == nullptr ? nullptr : &(*live)[val.index];
    if (auto fault = look_at_result(e, r, values[val.index], elements)) return fault;
    if (auto fault = look_at_cast(e, values[val.index], elements)) return fault;
  }
  return std::nullopt;
}

/// Nothing if its results could be made.
[[nodiscard]] std::optional<WalkFault> step(const Evaluation& e, const ir::OpaqueOps& opaque,
                                            std::vector<Tensor>& values) {
  if (auto fault = check_indices(e)) return fault;
  std::vector<Tensor> results;
  try {
    results = ir::evaluate(e, opaque);
  } catch (const Error& error) {
    return WalkFault{NumericsFault::kRefused, e.id, e.expr().results[0], -1, 0, error.what()};
  }
  for (std::size_t r = 0; r < results.size(); ++r)
    values[e.expr().results[r].index] = ir::narrow(results[r], e.result(r).dtype);
  return std::nullopt;
}

// --- which elements count: those that an output, or a refusal, is made of

void mark(Live& live) { std::fill(live.begin(), live.end(), char{1}); }

/// Elements of operands go to places of the result: numbers in their place tell which.
void mark_moved(const Evaluation& e, const Live& result, std::vector<Live>& live) {
  const bool indexed = ir::has_indices(e.expr().op);
  // Far apart, so that what is filled in moves with neither.
  constexpr double kApart = 0x1p40;
  const auto moved = [&](std::size_t of, double first) {
    std::vector<Tensor> operands(e.operands.begin(), e.operands.end());
    for (std::size_t o = 0; o < (indexed ? 1 : operands.size()); ++o) {
      operands[o] = Tensor(operands[o].dtype(), operands[o].shape());
      for (std::int64_t i = 0; i < operands[o].size(); ++i)
        operands[o].set(i, o == of ? first + static_cast<double>(i) : 0);
    }
    return ir::evaluate({e.fusion, e.sizes, e.id, operands}, {})[0];
  };
  for (std::size_t o = 0; o < e.operands.size(); ++o) {
    Live& operand = live[e.expr().operands[o].index];
    if (indexed && o > 0) {
      mark(operand);
      continue;
    }
    const Tensor here = moved(o, 0);
    const Tensor there = moved(o, kApart);
    for (std::int64_t i = 0; i < here.size(); ++i)
      if (result[static_cast<std::size_t>(i)] != 0 && there.at(i) - here.at(i) == kApart)
        operand[static_cast<std::size_t>(here.at(i))] = 1;
  }
}

void mark_operands(const Evaluation& e, const Live& result, std::vector<Live>& live) {
  const auto& operands = e.expr().operands;
  if (ir::info(e.expr().op).op_class == ir::OpClass::kElementwise) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i] == 0) continue;
      const bool where = e.expr().op == ir::Op::where;
      const bool first = where && e.operands[0].at(static_cast<std::int64_t>(i)) != 0;
      for (std::size_t o = 0; o < operands.size(); ++o)
        if (!where || o == 0 || (o == 1) == first) live[operands[o].index][i] = 1;
    }
  } else if (only_moves(e.expr().op)) {
    mark_moved(e, result, live);
  } else {
    for (const ir::ValId operand : operands) mark(live[operand.index]);
  }
}

[[nodiscard]] std::optional<WalkFault> nan_input(const ir::Fusion& fusion,
                                                 std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ir::ValId val = fusion.inputs()[i].val;
    if (!is_float(inputs[i].dtype()) || fusion.val(val).uses.empty()) continue;
    for (std::int64_t at = 0; at < inputs[i].size(); ++at)
      if (std::isnan(inputs[i].at(at)))
        return WalkFault{NumericsFault::kNaN, {}, val, at, inputs[i].at(at), ""};
  }
  return std::nullopt;
}

/// Goes through a program once, and back over what it made.
class Walker {
 public:
  Walker(const ir::Fusion& fusion, std::span<const Tensor> inputs)
      : fusion_(fusion), sizes_(ir::bind_inputs(fusion, inputs)) {
    values_.resize(fusion.storage().vals.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      values_[fusion.inputs()[i].val.index] = inputs[i];
  }

  /// The first fault. Those that nothing is made of are none.
  std::optional<WalkFault> go() {
    const ir::OpaqueOps opaque = reference_opaque_ops();
    std::optional<WalkFault> refusal;
    for (const ir::ExprId id : fusion_.live_exprs()) {
      const std::vector<Tensor> operands = operands_of(id);
      const Evaluation e{fusion_, sizes_, id, operands};
      if ((refusal = step(e, opaque, values_))) break;
      done_.push_back(id);
      if (look(e, values_, nullptr)) suspects_.push_back(id);
    }
    if (suspects_.empty()) return refusal;
    const std::vector<Live> live = find_live(refusal);
    for (const ir::ExprId id : suspects_) {
      const std::vector<Tensor> operands = operands_of(id);
      if (auto fault = look({fusion_, sizes_, id, operands}, values_, &live)) return fault;
    }
    return refusal;
  }
  std::vector<Tensor>& values() { return values_; }

 private:
  std::vector<Tensor> operands_of(ir::ExprId id) const {
    std::vector<Tensor> operands;
    for (const ir::ValId operand : fusion_.expr(id).operands)
      operands.push_back(ir::widen(values_[operand.index]));
    return operands;
  }
  std::vector<Live> find_live(const std::optional<WalkFault>& refusal) const {
    std::vector<Live> live(values_.size());
    for (std::size_t i = 0; i < live.size(); ++i)
      live[i].resize(static_cast<std::size_t>(values_[i].size()));
    if (refusal)
      for (const ir::ValId operand : fusion_.expr(refusal->expr).operands)
        mark(live[operand.index]);
    for (const ir::Output& output : fusion_.outputs()) mark(live[output.val.index]);
    for (auto id = done_.rbegin(); id != done_.rend(); ++id) {
      const std::vector<Tensor> operands = operands_of(*id);
      for (const ir::ValId result : fusion_.expr(*id).results) {
        const Live elements = live[result.index];
        if (std::find(elements.begin(), elements.end(), 1) != elements.end())
          mark_operands({fusion_, sizes_, *id, operands}, elements, live);
      }
    }
    return live;
  }

  const ir::Fusion& fusion_;
  ir::Sizes sizes_;
  std::vector<Tensor> values_;
  std::vector<ir::ExprId> done_;
  std::vector<ir::ExprId> suspects_;
};

}  // namespace

Walk walk(const ir::Fusion& fusion, std::span<const Tensor> inputs) {
  Walk result;
  Walker walker(fusion, inputs);
  result.fault = walker.go();
  result.values = std::move(walker.values());
  const std::optional<WalkFault> given = nan_input(fusion, inputs);
  if (!given) return result;
  if (result.fault ||
      std::any_of(fusion.outputs().begin(), fusion.outputs().end(),
                  [&](const auto& out) { return has(result.values[out.val.index], is_nan); }))
    result.fault = given;
  return result;
}

std::string fault_text(const ir::Fusion& fusion, const Walk& walk) {
  const WalkFault& fault = *walk.fault;
  const Tensor& wrong = walk.values[fault.val.index];
  if (!fault.expr.valid()) {
    std::string name;
    for (const ir::Input& input : fusion.inputs())
      if (input.val == fault.val) name = input.name;
    return fmt::format("'{}' holds {} at {}", name, number_text(fault.found),
                       index_text(fault.element, wrong.shape()));
  }
  const ir::Expr& expr = fusion.expr(fault.expr);
  const std::string_view op = ir::info(expr.op).name;
  if (!fault.message.empty()) return fmt::format("{}: {}", op, fault.message);
  bool finite = true;
  std::vector<double> made_from;
  for (const ir::ValId operand : expr.operands) {
    const Tensor& tensor = walk.values[operand.index];
    finite = finite && !has(tensor, not_finite);
    if (ir::info(expr.op).op_class == ir::OpClass::kElementwise)
      made_from.push_back(tensor.at(fault.element));
  }
  const DType dtype = fusion.val(fault.val).dtype;
  return fmt::format(
      "{} gave {} at element {} of value {} {}{}; its operands were {}{}: {}", op,
      number_text(fault.found), index_text(fault.element, wrong.shape()), fault.val.index,
      name_of(dtype), to_string(wrong.shape()), finite ? "finite" : "not all finite",
      made_from.empty() ? "" : fmt::format(" ({} there)", fmt::join(made_from, ", ")),
      cause_of(expr.op, dtype, fault.fault == NumericsFault::kNaN, made_from));
}

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::string index_text(std::int64_t element, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    index[axis] = element % shape[axis];
  return to_string(index);
}

}  // namespace segfuse::engine::numerics
