#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "engine/ops/state.h"

namespace segfuse::ops {

using ir::Builder;
using ir::ValId;

// --- one call
// -----------------------------------------------------------------------

namespace {

std::shared_ptr<Value::State> common_state(std::string_view operation,
                                           const std::vector<Value>& operands) {
  std::shared_ptr<Value::State> state;
  for (const Value& operand : operands) {
    if (operand.is_number()) continue;
    if (state && operand.state() != state)
      throw UsageError(
          fmt::format("{}: found values of the Fusions '{}' and '{}', expected one Fusion",
                      operation, state->fusion.name(), operand.state()->fusion.name()));
    state = operand.state();
  }
  if (!state)
    throw UsageError(
        fmt::format("{}: found plain numbers only, expected a value of a Fusion", operation));
  return state;
}

}  // namespace

Call::Call(std::string_view operation, std::vector<Value> operands, std::size_t typed_by)
    : operation_(operation),
      operands_(std::move(operands)),
      state_(common_state(operation_, operands_)),
      builder_(state_->fusion) {
  DType dtype = DType::kF32;
  for (std::size_t i = operands_.size(); i-- > typed_by;)
    if (!operands_[i].is_number()) dtype = operands_[i].dtype();
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].is_number()) {
      const DType own = i < typed_by ? DType::kBool : dtype;
      ids_.push_back(run([&](Builder& b) {
        const std::int64_t large = own == DType::kI64 ? operands_[i].large() : 0;
        if (large == 0) return b.constant(operands_[i].number(), own);
        constexpr std::int64_t kHalf = std::int64_t{1} << 32;  // constants are doubles
        const auto part = [&](std::int64_t whole) {
          return b.constant(static_cast<double>(whole), own);
        };
        const std::int64_t low = large & (kHalf - 1);
        return b.add(b.mul(part((large - low) / kHalf), part(kHalf)), part(low));
      }));
    } else {
      ids_.push_back(id_of(operands_[i]));
    }
  }
}

void Call::refuse(std::string_view reason) const {
  if (reason.starts_with(operation_ + ":")) throw UsageError(std::string(reason));
  std::string texts;
  for (const Value& operand : operands_)
    texts += fmt::format("{}{}", texts.empty() ? "" : ", ", operand.text());
  throw UsageError(fmt::format("{} of {}: {}", operation_, texts, reason));
}

std::int64_t Call::axis(std::int64_t axis, std::int64_t rank) const {
  const std::int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) refuse(fmt::format("axis {} does not exist; there are {}", axis, rank));
  return at;
}

Axes Call::axes(const OptionalAxes& axes) {
  Axes all(static_cast<std::size_t>(rank()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  if (!axes) return all;
  Axes found;
  for (const std::int64_t a : *axes) found.push_back(axis(a, rank()));
  std::sort(found.begin(), found.end());
  return found;
}

// --- elementwise
// -----------------------------------------------------------------------

#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  Value name(const Value& a) {                                                                 \
    Call call(#name, {a});                                                                     \
    return call.make([&](Builder& b) { return b.name(call.id(0)); });                          \
  }
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  Value name(const Value& x, const Value& y) {                                                    \
    Call call(#name, {x, y});                                                                     \
    return call.make([&](Builder& b) { return b.name(call.id(0), call.id(1)); });                 \
  }
#include "segfuse/ops.def"

Value where(const Value& condition, const Value& a, const Value& b) {
  Call call("where", {condition, a, b}, 1);
  return call.make([&](Builder& to) { return to.where(call.id(0), call.id(1), call.id(2)); });
}

Value cast(const Value& a, DType dtype) {
  Call call("cast", {a});
  return call.make([&](Builder& b) { return b.cast(call.id(0), dtype); });
}

// --- reductions
// -----------------------------------------------------------------------

namespace {

using Reduction = ValId (Builder::*)(ValId, Axes, bool);

Value reduce(std::string_view name, Reduction function, const Value& a, const OptionalAxes& axes,
             bool keep) {
  Call call(name, {a});
  const Axes over = call.axes(axes);
  return call.make([&](Builder& b) { return (b.*function)(call.id(0), over, keep); });
}

Value extreme(std::string_view name, Reduction function, const Value& a, const OptionalAxes& axes,
              bool keep) {
  Call call(name, {a});
  for (const std::int64_t axis : call.axes(axes))
    if (a.size(axis).number() == 0)
      call.refuse(fmt::format("axis {} has no elements, expected at least one", axis));
  return reduce(name, function, a, axes, keep);
}

}  // namespace

Value sum(const Value& a, const OptionalAxes& axes, bool keep) {
  return reduce("sum", &Builder::sum, a, axes, keep);
}
Value prod(const Value& a, const OptionalAxes& axes, bool keep) {
  return reduce("prod", &Builder::prod, a, axes, keep);
}
Value max(const Value& a, const OptionalAxes& axes, bool keep) {
  return extreme("max", &Builder::max, a, axes, keep);
}
Value min(const Value& a, const OptionalAxes& axes, bool keep) {
  return extreme("min", &Builder::min, a, axes, keep);
}
Value mean(const Value& a, const OptionalAxes& axes, bool keep) {
  return reduce("mean", &Builder::mean, a, axes, keep);
}
Value logsumexp(const Value& a, const OptionalAxes& axes, bool keep) {
  return reduce("logsumexp", &Builder::logsumexp, a, axes, keep);
}

Value argmax(const Value& a, std::int64_t axis, bool keep) {
  Call call("argmax", {a});
  const std::int64_t along = call.axis(axis, call.rank());
  return call.make([&](Builder& b) { return b.argmax(call.id(0), along, keep); });
}

namespace {

Value scan(std::string_view name, ir::Op op, const std::vector<Value>& operands, std::int64_t axis,
           bool reverse) {
  Call call(name, operands);
  const std::int64_t along = call.axis(axis, call.rank());
  return call.make(
      [&](Builder& b) { return b.make(op, call.ids(), {along, std::int64_t{reverse}}); });
}

}  // namespace

Value cumsum(const Value& a, std::int64_t axis, bool reverse) {
  return scan("cumsum", ir::Op::cumsum, {a}, axis, reverse);
}
Value cumprod(const Value& a, std::int64_t axis, bool reverse) {
  return scan("cumprod", ir::Op::cumprod, {a}, axis, reverse);
}
Value cummax(const Value& a, std::int64_t axis, bool reverse) {
  return scan("cummax", ir::Op::cummax, {a}, axis, reverse);
}
Value cummin(const Value& a, std::int64_t axis, bool reverse) {
  return scan("cummin", ir::Op::cummin, {a}, axis, reverse);
}
Value cumlogsumexp(const Value& a, std::int64_t axis, bool reverse) {
  return scan("cumlogsumexp", ir::Op::cumlogsumexp, {a}, axis, reverse);
}
Value linear_scan(const Value& a, const Value& b, std::int64_t axis, bool reverse) {
  return scan("linear_scan", ir::Op::linear_scan, {a, b}, axis, reverse);
}

Sorted sort(const Value& a, std::int64_t axis, bool descending) {
  Call call("sort", {a});
  const std::int64_t along = call.axis(axis, call.rank());
  const std::vector<ValId> results = call.run([&](Builder& b) {
    return b.make_all(ir::Op::sort, call.ids(), {along, std::int64_t{descending}});
  });
  return {call.value(results[0]), call.value(results[1])};
}

Moments welford(const Value& a, const OptionalAxes& axes, bool keep) {
  Call call("welford", {a});
  const Axes over = call.axes(axes);
  const Builder::Moments moments =
      call.run([&](Builder& b) { return b.welford(call.id(0), over, keep); });
  return {call.value(moments.mean), call.value(moments.m2)};
}

Value var(const Value& a, const OptionalAxes& axes, bool keep, std::int64_t correction) {
  Call call("var", {a});
  const Axes over = call.axes(axes);
  return call.make([&](Builder& b) {
    ir::Extent count = 1;
    for (const std::int64_t axis : over)
      count = count * b.val(call.id(0)).shape[static_cast<std::size_t>(axis)];
    const ValId m2 = b.welford(call.id(0), over, keep).m2;
    return b.div(m2, b.extent(count - correction, call.dtype()));
  });
}

// --- movement
// -----------------------------------------------------------------------

Value permute(const Value& a, const Axes& perm) {
  Call call("permute", {a});
  return call.make([&](Builder& b) { return b.permute(call.id(0), perm); });
}

Value transpose(const Value& a, std::int64_t axis_a, std::int64_t axis_b) {
  Call call("transpose", {a});
  return call.make([&](Builder& b) { return b.transpose(call.id(0), axis_a, axis_b); });
}

Value broadcast_to(const Value& a, const Sizes& shape) {
  Call call("broadcast_to", {a});
  return call.make(
      [&](Builder& b) { return b.broadcast_to(call.id(0), to_extents(call.fusion(), shape)); });
}

Value unsqueeze(const Value& a, std::int64_t axis) {
  Call call("unsqueeze", {a});
  return call.make([&](Builder& b) { return b.unsqueeze(call.id(0), axis); });
}

Value squeeze(const Value& a, const Axes& axes) {
  Call call("squeeze", {a});
  return call.make([&](Builder& b) { return b.squeeze(call.id(0), axes); });
}

Value reshape(const Value& a, const Sizes& shape) {
  Call call("reshape", {a});
  return call.make(
      [&](Builder& b) { return b.reshape(call.id(0), to_extents(call.fusion(), shape)); });
}

Value slice(const Value& a, std::int64_t axis, const Size& start, const Size& size) {
  Call call("slice", {a});
  return call.make([&](Builder& b) {
    return b.slice_axis(call.id(0), axis, to_extent(call.fusion(), start),
                        to_extent(call.fusion(), size));
  });
}

Value pad(const Value& a, std::int64_t axis, const Size& low, const Size& high, double value) {
  Call call("pad", {a});
  return call.make([&](Builder& b) {
    return b.pad_axis(call.id(0), axis, to_extent(call.fusion(), low),
                      to_extent(call.fusion(), high), value);
  });
}

Value concat(const std::vector<Value>& parts, std::int64_t axis) {
  Call call("concat", parts);
  return call.make([&](Builder& b) { return b.concat(call.ids(), axis); });
}

Value stack(const std::vector<Value>& parts, std::int64_t axis) {
  Call call("stack", parts);
  const std::int64_t along = call.axis(axis, call.rank() + 1);
  return call.make([&](Builder& b) {
    std::vector<ValId> ids;
    for (const ValId id : call.ids()) ids.push_back(b.unsqueeze(id, along));
    return b.concat(std::move(ids), along);
  });
}

Value take(const Value& a, const Value& indices, std::int64_t axis) {
  Call call("take", {a, indices});
  return call.make([&](Builder& b) { return b.take(call.id(0), call.id(1), axis); });
}

Value gather(const Value& a, const Value& indices, std::int64_t axis) {
  Call call("gather", {a, indices});
  return call.make([&](Builder& b) { return b.gather(call.id(0), call.id(1), axis); });
}

Value scatter_add(const Value& updates, const Value& indices, std::int64_t axis, const Size& size) {
  Call call("scatter_add", {updates, indices});
  // The axes of the indices stand where the one axis of the result will be.
  const std::int64_t rank = call.rank() - call.rank(1) + 1;
  const std::int64_t along = call.axis(axis, rank);
  return call.make([&](Builder& b) {
    return b.scatter_add(call.id(0), call.id(1), along, to_extent(call.fusion(), size));
  });
}

Value unfold(const Value& a, std::int64_t axis, std::int64_t size, std::int64_t stride,
             std::int64_t dilation) {
  Call call("unfold", {a});
  return call.make([&](Builder& b) { return b.unfold(call.id(0), axis, size, stride, dilation); });
}

Value fold(const Value& a, std::int64_t axis, const Size& extent, std::int64_t stride,
           std::int64_t dilation) {
  Call call("fold", {a});
  const std::int64_t along = call.axis(axis, call.rank() - 1);
  return call.make([&](Builder& b) {
    return b.fold(call.id(0), along, stride, dilation, to_extent(call.fusion(), extent));
  });
}

// --- library calls, random numbers
// ---------------------------------------------------------------------

Value matmul(const Value& a, const Value& b, bool transpose_a, bool transpose_b) {
  Call call("matmul", {a, b});
  return call.make(
      [&](Builder& to) { return to.matmul(call.id(0), call.id(1), transpose_a, transpose_b); });
}

Value random_uniform(const Value& seed, const Sizes& shape) {
  Call call("random_uniform", {seed});
  return call.make(
      [&](Builder& b) { return b.random_uniform(call.id(0), to_extents(call.fusion(), shape)); });
}

}  // namespace segfuse::ops
