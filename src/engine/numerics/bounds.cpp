#include "engine/numerics/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ir/bind.h"

namespace segfuse::engine::numerics {
namespace {

using ir::Evaluation;

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// A lane that holds a row in registers adds at most 64 elements, and lanes are joined in a tree;
// all other sums are compensated.
constexpr double kPlainAdditions = 80;
// The CRF in f32, against the size of what it adds up.
constexpr double kCrf = 1e-4;
// Of an operation that rounds more than once and says nothing.
constexpr double kSlack = 1.5;  // for what corners of an interval do not see

/// Half the distance of neighbours near 1 in the type that computes.
double unit(DType dtype) { return dtype == DType::kF64 ? 0x1p-53 : 0x1p-24; }
/// The same of the type that stores; 0 where it is the one that computes.
double rounding(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0;
}
/// Numbers below may have become zero.
double smallest(DType dtype) {
  return dtype == DType::kF64 ? 0x1p-1022 : dtype == DType::kF16 ? 0x1p-24 : 0x1p-126;
}

Tensor map(const Tensor& a, const auto& function) {
  Tensor result(DType::kF64, a.shape());
  for (std::int64_t i = 0; i < a.size(); ++i) result.set(i, function(a.at(i), i));
  return result;
}

bool exact(const Tensor& error) {
  const auto all = error.span<double>();
  return std::all_of(all.begin(), all.end(), [](double e) { return e == 0; });
}

std::vector<Tensor> with_operands(const Evaluation& e, std::vector<Tensor> operands) {
  return ir::evaluate({e.fusion, e.sizes, e.id, operands}, {});
}

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? kUnbounded : d;
}

/// |x| and so on of the first operand of a sum-like operation, reduced or moved as it does.
Tensor of_magnitudes(const Evaluation& e, const Tensor& first) {
  std::vector<Tensor> operands(e.operands.begin(), e.operands.end());
  operands[0] = map(first, [](double x, std::int64_t) { return std::abs(x); });
  return with_operands(e, std::move(operands))[0];
}

std::int64_t reduced_count(const Evaluation& e) {
  const std::int64_t results = num_elements(e.result_shape());
  return results == 0 ? 0 : num_elements(e.operands[0].shape()) / results;
}

// --- what one operation adds

Tensor sum_error(const Evaluation& e, double additions) {
  const double u = unit(e.operand(0).dtype);
  return map(of_magnitudes(e, e.operands[0]),
             [&](double sum, std::int64_t) { return sum * u * additions; });
}

Tensor matmul_error(const Evaluation& e) {
  const auto magnitude = [](double x, std::int64_t) { return std::abs(x); };
  const Shape& a = e.operands[0].shape();
  const bool transposed = e.attr<std::int64_t>("transpose_a") != 0;
  const double inner = static_cast<double>(a[a.size() - (transposed ? 2 : 1)]);
  const double u = unit(e.operand(0).dtype);
  return map(with_operands(e, {map(e.operands[0], magnitude), map(e.operands[1], magnitude)})[0],
             [&](double sum, std::int64_t) { return sum * u * (inner + 2); });
}

std::vector<Tensor> welford_errors(const Evaluation& e, const std::vector<Tensor>& r) {
  const double u = unit(e.operand(0).dtype);
  const double n = static_cast<double>(reduced_count(e));
  Tensor largest(DType::kF64, r[0].shape());
  {
    const Tensor sums = of_magnitudes(e, e.operands[0]);  // the mean of |x|
    for (std::int64_t i = 0; i < largest.size(); ++i)
      largest.set(i, sums.at(i) + std::sqrt(r[1].at(i)));
  }
  Tensor mean = map(largest, [&](double x, std::int64_t) { return kPlainAdditions * u * x; });
  Tensor m2 = map(r[1], [&](double x, std::int64_t i) {
    const double shift = kPlainAdditions * u * largest.at(i);
    return kPlainAdditions * u * x + 2 * shift * std::sqrt(n * x) + n * shift * shift;
  });
  return {mean, m2};
}

/// By row of the batch: how large what a loss adds up can be.
std::vector<double> crf_sizes(const Evaluation& e) {
  const Tensor& emission = e.operands[0];
  const std::int64_t batch = emission.shape()[0];
  const std::int64_t row = batch == 0 ? 0 : emission.size() / batch;
  const std::int64_t time = emission.shape()[1];
  double shared = 1;
  for (std::size_t o = 1; o < 5; ++o)
    for (std::int64_t i = 0; i < e.operands[o].size(); ++i)
      if (std::isfinite(e.operands[o].at(i)))
        shared = std::max(shared, std::abs(e.operands[o].at(i)));
  std::vector<double> sizes;
  for (std::int64_t b = 0; b < batch; ++b) {
    double most = 1;
    for (std::int64_t i = b * row; i < (b + 1) * row; ++i)
      if (std::isfinite(emission.at(i))) most = std::max(most, std::abs(emission.at(i)));
    sizes.push_back(static_cast<double>(time) * (most + 3 * shared));
  }
  return sizes;
}

std::vector<Tensor> crf_errors(const Evaluation& e, const std::vector<Tensor>& results) {
  const double share = e.operand(0).dtype == DType::kF64 ? 1e-10 : kCrf;
  const std::vector<double> sizes = crf_sizes(e);
  std::vector<Tensor> errors;
  if (e.expr().op == ir::Op::semicrf_loss) {
    errors.push_back(map(results[0], [&](double, std::int64_t i) {
      return share * sizes[static_cast<std::size_t>(i)];
    }));
    return errors;
  }
  // Expected counts are at most the number of frames.
  const Tensor& weights = e.operands.back();
  double all = 0;
  for (std::int64_t b = 0; b < weights.size(); ++b)
    all += std::abs(weights.at(b)) * static_cast<double>(e.operands[0].shape()[1]);
  for (const Tensor& result : results)
    errors.push_back(map(result, [&](double, std::int64_t) { return share * all; }));
  return errors;
}

Tensor elementwise_error(const Evaluation& e, const Tensor& result, Functions functions) {
  const DType dtype = e.result().dtype;
  if (!is_float(dtype)) return Tensor::zeros(DType::kF64, result.shape());
  const double u = unit(dtype);
  const double own = dtype == DType::kF64 ? 1 : 0;  // of the interpreter
  const double ulps = stated_ulps(e.expr().op, dtype, functions).value_or(0.5) + own;
  return map(result, [&](double r, std::int64_t) { return 2 * ulps * u * std::abs(r); });
}

std::vector<Tensor> no_errors(const std::vector<Tensor>& results) {
  std::vector<Tensor> errors;
  for (const Tensor& result : results) errors.push_back(Tensor::zeros(DType::kF64, result.shape()));
  return errors;
}

std::vector<Tensor> reduction_errors(const Evaluation& e, const std::vector<Tensor>& results) {
  const double u = unit(e.result().dtype);
  const auto n = static_cast<double>(reduced_count(e));
  switch (ir::as<ir::ReductionOp>(e.expr().op)) {
    case ir::ReductionOp::sum: return {sum_error(e, std::min<double>(n, kPlainAdditions))};
    case ir::ReductionOp::prod:
      return {map(results[0], [&](double r, std::int64_t) { return n * u * std::abs(r); })};
    case ir::ReductionOp::welford: return welford_errors(e, results);
    case ir::ReductionOp::logsumexp:
      return {map(results[0], [&](double r, std::int64_t) {
        return u * (2 * std::abs(r) + 8 + kPlainAdditions + std::log(std::max(1.0, n)));
      })};
    case ir::ReductionOp::max:
    case ir::ReductionOp::min:
    case ir::ReductionOp::argmax: break;
  }
  return no_errors(results);
}

/// Each step rounds what is carried: once for a sum, a product or a recurrence, never for a
/// maximum.
Tensor scan_error(const Evaluation& e, const Tensor& result) {
  const ir::Op op = e.expr().op;
  if (op == ir::Op::cummax || op == ir::Op::cummin) return no_errors({result})[0];
  const double u = unit(e.result().dtype);
  const std::int64_t length =
      result.shape()[static_cast<std::size_t>(e.attr<std::int64_t>("axis"))];
  const double steps = 2 * static_cast<double>(length);
  if (op == ir::Op::cumlogsumexp)
    return map(result, [&](double r, std::int64_t) {
      return u * (2 * std::abs(r) + 8 + 4 * steps + std::log(1 + steps));
    });
  const auto magnitude = [](double x, std::int64_t) { return std::abs(x); };
  std::vector<Tensor> magnitudes;
  for (const Tensor& operand : e.operands) magnitudes.push_back(map(operand, magnitude));
  const Tensor most = with_operands(e, std::move(magnitudes))[0];
  return map(most, [&](double r, std::int64_t) { return u * steps * r; });
}

/// A number that stands in the program is rounded once.
std::vector<Tensor> literal_errors(const Evaluation& e, const std::vector<Tensor>& results) {
  const double u = std::max(unit(e.result().dtype), rounding(e.result().dtype));
  return {map(results[0], [&](double r, std::int64_t) { return u * std::abs(r); })};
}

std::vector<Tensor> unknown(const std::vector<Tensor>& results) {
  std::vector<Tensor> errors;
  for (const Tensor& result : results)
    errors.push_back(map(result, [](double, std::int64_t) { return kUnbounded; }));
  return errors;
}

std::vector<Tensor> own_errors(const Evaluation& e, const std::vector<Tensor>& results,
                               Functions functions) {
  const ir::Op op = e.expr().op;
  if (!is_float(e.result().dtype)) return no_errors(results);
  switch (ir::info(op).op_class) {
    case ir::OpClass::kElementwise: return {elementwise_error(e, results[0], functions)};
    case ir::OpClass::kReduction: return reduction_errors(e, results);
    case ir::OpClass::kCreation:
      return op == ir::Op::random_uniform ? no_errors(results) : literal_errors(e, results);
    case ir::OpClass::kMovement: {
      if (!ir::adds(op)) return op == ir::Op::pad ? literal_errors(e, results) : no_errors(results);
      const Tensor ones = map(e.operands[0], [](double, std::int64_t) { return 1.0; });
      const Tensor counts = of_magnitudes(e, ones);
      const Tensor error = sum_error(e, 1);
      return {map(error, [&](double x, std::int64_t i) { return x * counts.at(i); })};
    }
    case ir::OpClass::kOpaque: break;
  }
  switch (ir::as<ir::OpaqueOp>(op)) {
    case ir::OpaqueOp::matmul: return {matmul_error(e)};
    case ir::OpaqueOp::cumsum:
    case ir::OpaqueOp::cumprod:
    case ir::OpaqueOp::cummax:
    case ir::OpaqueOp::cummin:
    case ir::OpaqueOp::cumlogsumexp:
    case ir::OpaqueOp::linear_scan: return {scan_error(e, results[0])};
    case ir::OpaqueOp::sort: return no_errors(results);
    case ir::OpaqueOp::attention:  // exponentials of sums that nothing bounds
    case ir::OpaqueOp::attention_grad: return unknown(results);
    case ir::OpaqueOp::scan:  // judged step by step
    case ir::OpaqueOp::semicrf_loss:
    case ir::OpaqueOp::semicrf_loss_grad: break;
  }
  return crf_errors(e, results);
}

// --- what errors of operands become

Tensor shifted(const Judged& operand, double side) {
  return map(operand.value,
             [&](double x, std::int64_t i) { return x + side * operand.error.at(i); });
}

/// The farthest result over all corners of the operands' intervals.
std::vector<Tensor> over_corners(const Evaluation& e, std::span<const Judged> operands,
                                 const std::vector<Tensor>& results) {
  std::vector<Tensor> far;
  for (const Tensor& result : results) far.push_back(Tensor::zeros(DType::kF64, result.shape()));
  for (std::size_t corner = 0; corner < (std::size_t{1} << operands.size()); ++corner) {
    std::vector<Tensor> moved;
    for (std::size_t o = 0; o < operands.size(); ++o)
      moved.push_back(operands[o].value.dtype() == DType::kF64
                          ? shifted(operands[o], (corner >> o & 1) != 0 ? 1 : -1)
                          : operands[o].value);
    const std::vector<Tensor> there = with_operands(e, std::move(moved));
    for (std::size_t r = 0; r < results.size(); ++r)
      for (std::int64_t i = 0; i < results[r].size(); ++i)
        far[r].set(i, std::max(far[r].at(i), kSlack * distance(there[r].at(i), results[r].at(i))));
  }
  return far;
}

Tensor through_where(std::span<const Judged> operands) {
  return map(operands[1].error, [&](double a, std::int64_t i) {
    const double b = operands[2].error.at(i);
    if (operands[0].error.at(i) > 0)
      return distance(operands[1].value.at(i), operands[2].value.at(i)) + std::max(a, b);
    return operands[0].value.at(i) != 0 ? a : b;
  });
}

/// The rest jumps where the quotient becomes another whole number.
Tensor through_fmod(std::span<const Judged> operands, const Tensor& result) {
  return map(result, [&](double r, std::int64_t i) {
    const double a = operands[0].value.at(i);
    const double b = std::abs(operands[1].value.at(i));
    const double of_a = operands[0].error.at(i);
    const double of_b = operands[1].error.at(i);
    if (of_a == 0 && of_b == 0) return 0.0;
    if (!(of_b < b)) return kUnbounded;
    const double times = std::abs(std::round((a - r) / b));
    const double moved = kSlack * (of_a + times * of_b);
    const bool same = std::abs(r) >= moved && std::abs(r) + moved < b - of_b;
    return same ? moved : 2 * (b + of_b);
  });
}

std::vector<Tensor> through_elementwise(const Evaluation& e, std::span<const Judged> operands,
                                        const std::vector<Tensor>& results) {
  switch (e.expr().op) {
    case ir::Op::where: return {through_where(operands)};
    case ir::Op::sin:
    case ir::Op::cos:
      return {map(operands[0].error, [](double x, std::int64_t) { return std::min(x, 2.0); })};
    case ir::Op::fmod: return {through_fmod(operands, results[0])};
    case ir::Op::eq:
    case ir::Op::ne:
      return {map(results[0], [&](double, std::int64_t i) {
        const double e2 = operands[0].error.at(i) + operands[1].error.at(i);
        return e2 > 0 && distance(operands[0].value.at(i), operands[1].value.at(i)) <= e2 ? 1.0
                                                                                          : 0.0;
      })};
    default: break;  // any other: by its column in ops.def
  }
  return ir::info(e.expr().op).extremes == ir::Extremes::kAtEnds
             ? over_corners(e, operands, results)
             : unknown(results);
}

std::vector<Tensor> through_matmul(const Evaluation& e, std::span<const Judged> operands) {
  const auto magnitude = [](double x, std::int64_t) { return std::abs(x); };
  const Tensor a = map(operands[0].value, magnitude);
  const Tensor b = map(operands[1].value, magnitude);
  const Tensor left = with_operands(e, {operands[0].error, b})[0];
  const Tensor right = with_operands(e, {a, operands[1].error})[0];
  const Tensor both = with_operands(e, {operands[0].error, operands[1].error})[0];
  return {map(left, [&](double x, std::int64_t i) { return x + right.at(i) + both.at(i); })};
}

/// Errors are moved or added as the elements are; what is filled in has none.
Tensor through_movement(const Evaluation& e, std::span<const Judged> operands) {
  std::vector<Tensor> errors;
  std::vector<Tensor> none;
  for (const Judged& operand : operands) {
    const bool moved = operand.value.dtype() == DType::kF64;
    errors.push_back(moved ? operand.error : operand.value);
    none.push_back(moved ? Tensor::zeros(DType::kF64, operand.value.shape()) : operand.value);
  }
  const Tensor filled = with_operands(e, std::move(none))[0];
  return map(with_operands(e, std::move(errors))[0], [&](double x, std::int64_t i) {
    const double difference = x - filled.at(i);
    return std::isnan(difference) ? 0 : std::max(0.0, difference);
  });
}

std::vector<Tensor> through_reduction(const Evaluation& e, std::span<const Judged> operands,
                                      const std::vector<Tensor>& results) {
  switch (ir::as<ir::ReductionOp>(e.expr().op)) {
    case ir::ReductionOp::sum: return {with_operands(e, {operands[0].error})[0]};
    case ir::ReductionOp::prod: {
      const auto magnitude = [](double x, std::int64_t) { return std::abs(x); };
      const Tensor less = with_operands(e, {map(operands[0].value, magnitude)})[0];
      const Tensor more = with_operands(e, {map(operands[0].value, [&](double x, std::int64_t i) {
                                          return std::abs(x) + operands[0].error.at(i);
                                        })})[0];
      return {map(more, [&](double x, std::int64_t i) { return distance(x, less.at(i)); })};
    }
    case ir::ReductionOp::welford: {
      const std::vector<Tensor> of = with_operands(e, {operands[0].error});
      const double n = static_cast<double>(reduced_count(e));
      return {of[0], map(of[1], [&](double m2, std::int64_t i) {
                const double squares = m2 + n * of[0].at(i) * of[0].at(i);
                return 2 * std::sqrt(results[1].at(i) * squares) + squares;
              })};
    }
    case ir::ReductionOp::max:  // they only rise
    case ir::ReductionOp::min:
    case ir::ReductionOp::logsumexp: return over_corners(e, operands, results);
    case ir::ReductionOp::argmax: break;
  }
  return unknown(results);
}

std::vector<Tensor> passed_errors(const Evaluation& e, std::span<const Judged> operands,
                                  const std::vector<Tensor>& results) {
  const ir::Op op = e.expr().op;
  for (const Judged& operand : operands) {
    const bool whole = operand.value.dtype() != DType::kF64;
    const bool chosen = op == ir::Op::where && &operand == operands.data();
    if (whole && !chosen && !exact(operand.error)) return unknown(results);
  }
  switch (ir::info(op).op_class) {
    case ir::OpClass::kElementwise: return through_elementwise(e, operands, results);
    case ir::OpClass::kReduction: return through_reduction(e, operands, results);
    case ir::OpClass::kMovement: return {through_movement(e, operands)};
    case ir::OpClass::kOpaque:
      if (op == ir::Op::matmul) return through_matmul(e, operands);
      break;
    case ir::OpClass::kCreation: break;
  }
  return unknown(results);
}

/// What storing adds; where the type may overflow, nothing can be said of what follows.
void round_errors(const Evaluation& e, DType dtype, const Tensor& result, Tensor& errors) {
  const bool moved = only_moves(e.expr().op);
  for (std::int64_t i = 0; i < errors.size(); ++i) {
    const double size = std::abs(result.at(i));
    double error = errors.at(i) + (moved && errors.at(i) == 0 ? 0 : smallest(dtype));
    if (std::isfinite(size)) {
      if (!moved) error += rounding(dtype) * (size + error);
      if (size + error >= largest_of(dtype)) error = kUnbounded;
    }
    errors.set(i, std::isnan(error) ? kUnbounded : error);
  }
}

}  // namespace

std::optional<double> stated_ulps(ir::Op op, DType dtype, Functions functions) {
  const ir::Accuracy& accuracy = ir::info(op).accuracy;
  if (accuracy.kind != ir::Accuracy::Kind::kUlps) return std::nullopt;
  if (functions == Functions::kDevice)
    return dtype == DType::kF64 ? accuracy.device_f64 : accuracy.device_f32;
  return dtype == DType::kF64 ? accuracy.f64 : accuracy.f32;
}

std::vector<Judged> judge(const Evaluation& e, std::span<const Judged> operands,
                          const ir::OpaqueOps& opaque, Functions functions) {
  if (e.expr().op == ir::Op::scan) return judge_scan(e, operands, opaque, functions);
  const std::vector<Tensor> results = ir::evaluate(e, opaque);
  std::vector<Tensor> errors = own_errors(e, results, functions);
  if (std::any_of(operands.begin(), operands.end(),
                  [](const Judged& operand) { return !exact(operand.error); })) {
    const std::vector<Tensor> passed = passed_errors(e, operands, results);
    for (std::size_t r = 0; r < errors.size(); ++r)
      for (std::int64_t i = 0; i < errors[r].size(); ++i) {
        // What an operation adds is stated for the exact result of what it was given.
        const double grown = 1 + 0x1p-10;
        errors[r].set(i, errors[r].at(i) * grown + passed[r].at(i) * grown);
      }
  }
  std::vector<Judged> judged;
  for (std::size_t r = 0; r < results.size(); ++r) {
    const DType dtype = e.result(r).dtype;
    if (is_float(dtype)) round_errors(e, dtype, results[r], errors[r]);
    judged.push_back({results[r], errors[r]});
  }
  return judged;
}

std::vector<Judged> judge_all(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                              const ir::OpaqueOps& opaque, Functions functions) {
  const ir::Sizes sizes = ir::bind_inputs(fusion, inputs);
  std::vector<Judged> exact;
  for (const Tensor& input : inputs)
    exact.push_back({ir::widen(input), Tensor::zeros(DType::kF64, input.shape())});
  return judge_values(fusion, sizes, exact, opaque, functions);
}

std::vector<Judged> judge_values(const ir::Fusion& fusion, const ir::Sizes& sizes,
                                 std::span<const Judged> inputs, const ir::OpaqueOps& opaque,
                                 Functions functions) {
  std::vector<Judged> all(fusion.storage().vals.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) all[fusion.inputs()[i].val.index] = inputs[i];
  for (const ir::ExprId id : fusion.live_exprs()) {
    std::vector<Judged> operands;
    std::vector<Tensor> values;
    for (const ir::ValId operand : fusion.expr(id).operands) {
      operands.push_back(all[operand.index]);
      values.push_back(all[operand.index].value);
    }
    const std::vector<Judged> results =
        judge({fusion, sizes, id, values}, operands, opaque, functions);
    for (std::size_t r = 0; r < results.size(); ++r)
      all[fusion.expr(id).results[r].index] = results[r];
  }
  return all;
}

bool only_moves(ir::Op op) {
  return ir::info(op).op_class == ir::OpClass::kMovement && !ir::adds(op);
}

double largest_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 65504;
    case DType::kF64: return std::numeric_limits<double>::max();
    default: return std::numeric_limits<float>::max();
  }
}

std::int64_t first_beyond(const Tensor& found, const Judged& judged) {
  for (std::int64_t i = 0; i < found.size(); ++i) {
    const double expected = judged.value.at(i);
    const double error = judged.error.at(i);
    const double value = found.at(i);
    if (value == expected || (std::isnan(value) && std::isnan(expected)) || std::isinf(error))
      continue;
    if (std::abs(value - expected) <= error * (1 + 0x1p-20)) continue;
    return i;
  }
  return -1;
}

}  // namespace segfuse::engine::numerics
