#include "support/error_bounds.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "compiler/op_facts.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"
#include "ir/interpret/interpreter.h"
#include "segfuse/error.h"

namespace segfuse::testing {
namespace {

using engine::numerics::Functions;
using ir::Evaluation;
using ir::Op;
using ir::Scalar;

/// Half a unit in the last place of 1, and the least number above 0.
double roundoff(DType dtype) { return dtype == DType::kF64 ? 0x1p-53 : 0x1p-24; }
double least(DType dtype) { return dtype == DType::kF64 ? 0x1p-1074 : 0x1p-149; }

/// n roundings one after the other, relative.
double gamma(double n, double u) { return n * u / (1 - n * u); }

Tensor map(const Tensor& a, const std::function<double(double)>& f) {
  Tensor result(DType::kF64, a.shape());
  for (std::int64_t i = 0; i < a.size(); ++i) result.set(i, f(a.at(i)));
  return result;
}
Tensor combine(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f) {
  Tensor result(DType::kF64, a.shape());
  for (std::int64_t i = 0; i < a.size(); ++i) result.set(i, f(a.at(i), b.at(i)));
  return result;
}
double magnitude(double x) { return std::abs(x); }

class Analysis {
 public:
  Analysis(const ir::Fusion& fusion, std::span<const Tensor> inputs, Functions functions)
      : fusion_(fusion),
        sizes_(ir::bind_inputs(fusion, inputs)),
        values_(fusion.storage().vals.size()),
        bounds_(fusion.storage().vals.size()),
        functions_(functions) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::uint32_t at = fusion.inputs()[i].val.index;
      values_[at] = ir::widen(inputs[i]);
      bounds_[at] = Tensor::zeros(DType::kF64, inputs[i].shape());
    }
  }

  std::vector<Bounded> run() {
    for (const ir::ExprId id : fusion_.live_exprs()) step(id);
    std::vector<Bounded> outputs;
    for (const ir::Output& output : fusion_.outputs())
      outputs.push_back({values_[output.val.index], bounds_[output.val.index]});
    return outputs;
  }

 private:
  std::vector<Tensor> evaluate(ir::ExprId id, const std::vector<Tensor>& operands) const {
    return ir::evaluate({fusion_, sizes_, id, operands}, {});
  }

  void step(ir::ExprId id) {
    const ir::Expr& e = fusion_.expr(id);
    std::vector<Tensor> operands;
    std::vector<Tensor> bounds;
    for (const ir::ValId operand : e.operands) {
      operands.push_back(values_[operand.index]);
      bounds.push_back(bounds_[operand.index]);
    }
    const std::vector<Tensor> results = evaluate(id, operands);
    for (std::size_t i = 0; i < results.size(); ++i) values_[e.results[i].index] = results[i];
    const DType dtype = fusion_.val(e.results[0]).dtype;
    if (!is_float(dtype)) {
      for (std::size_t i = 0; i < bounds.size(); ++i)
        for (std::int64_t k = 0; k < bounds[i].size(); ++k)
          if (bounds[i].at(k) != 0)
            throw InternalError(
                fmt::format("{} makes whole numbers of inexact ones", ir::info(e.op).name));
      for (std::size_t i = 0; i < results.size(); ++i)
        bounds_[e.results[i].index] = Tensor::zeros(DType::kF64, results[i].shape());
      return;
    }
    const double u = roundoff(dtype);
    switch (ir::info(e.op).op_class) {
      case ir::OpClass::kElementwise:
        bounds_[e.results[0].index] = elementwise(id, operands, bounds, results[0]);
        break;
      case ir::OpClass::kMovement:
        bounds_[e.results[0].index] = movement(id, operands, bounds, u);
        break;
      case ir::OpClass::kCreation:
        bounds_[e.results[0].index] = map(results[0], [&](double x) { return u * magnitude(x); });
        break;
      case ir::OpClass::kReduction: reduction(id, operands[0], bounds[0], results, u); break;
      case ir::OpClass::kOpaque: bounds_[e.results[0].index] = product(id, operands, bounds, u);
    }
  }

  Tensor elementwise(ir::ExprId id, const std::vector<Tensor>& operands,
                     const std::vector<Tensor>& bounds, const Tensor& result) const {
    const ir::Expr& e = fusion_.expr(id);
    const DType dtype = fusion_.val(e.results[0]).dtype;
    const std::optional<double> stated = engine::numerics::stated_ulps(e.op, dtype, functions_);
    // A unit in the last place is at most 2 u of the value.
    const double relative = (stated ? 2 * *stated : 1) * roundoff(dtype);
    Tensor bound(DType::kF64, result.shape());
    std::vector<double> x(operands.size());
    std::vector<double> d(operands.size());
    for (std::int64_t i = 0; i < result.size(); ++i) {
      for (std::size_t k = 0; k < operands.size(); ++k) {
        x[k] = operands[k].at(i);
        d[k] = bounds[k].at(i);
      }
      const double moved = carried(e.op, id, x, d);
      const double size = magnitude(result.at(i)) + moved;
      const bool exact = compiler::keeps_precision(e.op);
      bound.set(i, moved + (exact ? 0 : relative * size + least(dtype)));
    }
    return bound;
  }

  double at(Op op, ir::ExprId id, const std::vector<double>& x) const {
    const ir::Expr& e = fusion_.expr(id);
    std::vector<Scalar> operands;
    for (const double value : x) operands.push_back({value, static_cast<std::int64_t>(value)});
    return ir::evaluate_scalar(op, fusion_.val(e.results[0]).dtype,
                               fusion_.val(e.operands.back()).dtype, operands)
        .real;
  }

  /// How far the result moves when operands do, by at most `d`.
  double carried(Op op, ir::ExprId id, const std::vector<double>& x,
                 const std::vector<double>& d) const {
    constexpr double kAnything = std::numeric_limits<double>::infinity();
    switch (op) {
      case Op::neg:
      case Op::abs:
      case Op::relu:
      case Op::stop_gradient:
      case Op::sin:
      case Op::cos:
      case Op::cast: return d[0];
      case Op::where: return x[0] != 0 ? d[1] : d[2];
      case Op::maximum:
      case Op::minimum: return std::max(d[0], d[1]);
      case Op::add:
      case Op::sub: return d[0] + d[1];
      case Op::square: return (2 * magnitude(x[0]) + d[0]) * d[0];
      case Op::mul: return magnitude(x[0]) * d[1] + magnitude(x[1]) * d[0] + d[0] * d[1];
      case Op::div:
        if (magnitude(x[1]) <= d[1]) return kAnything;
        return (d[0] + magnitude(x[0] / x[1]) * d[1]) / (magnitude(x[1]) - d[1]);
      case Op::reciprocal:
        if (magnitude(x[0]) <= d[0]) return kAnything;
        return d[0] / (magnitude(x[0]) * (magnitude(x[0]) - d[0]));
      case Op::log:
      case Op::sqrt:
      case Op::rsqrt:
        if (x[0] <= d[0]) return d[0] == 0 ? 0 : kAnything;
        break;
      case Op::log1p:
        if (x[0] + 1 <= d[0]) return kAnything;
        break;
      case Op::pow:
        if (x[0] <= d[0]) return kAnything;
        break;
      case Op::exp:
      case Op::exp2:
      case Op::expm1:
      case Op::tanh:
      case Op::sigmoid:
      case Op::softplus:
      case Op::erf: break;
      default: throw InternalError(fmt::format("no error analysis for '{}'", ir::info(op).name));
    }
    // Monotone in each operand: the ends of the intervals are the worst.
    const double middle = at(op, id, x);
    double worst = 0;
    for (int corner = 0; corner < 1 << x.size(); ++corner) {
      std::vector<double> y = x;
      for (std::size_t k = 0; k < x.size(); ++k) y[k] += (corner >> k & 1) != 0 ? d[k] : -d[k];
      worst = std::max(worst, magnitude(at(op, id, y) - middle));
    }
    return worst;
  }

  Tensor movement(ir::ExprId id, std::vector<Tensor> operands, const std::vector<Tensor>& bounds,
                  double u) const {
    const Op op = fusion_.expr(id).op;
    const bool indexed = ir::has_indices(op);
    auto moved = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& of) {
      std::vector<Tensor> changed = operands;
      for (std::size_t i = 0; i < (indexed ? 1 : operands.size()); ++i)
        changed[i] = of(operands[i], bounds[i]);
      return evaluate(id, changed)[0];
    };
    const Tensor carried = moved([](const Tensor&, const Tensor& d) { return d; });
    if (ir::adds(op)) {
      const Tensor sizes = moved([](const Tensor& x, const Tensor& d) {
        return combine(x, d, [](double a, double b) { return magnitude(a) + b; });
      });
      const double g = gamma(static_cast<double>(operands[0].size()), u);
      return combine(carried, sizes, [&](double d, double size) { return d + g * size; });
    }
    if (op != Op::pad) return carried;
    const double value = fusion_.attr<double>(id, "value");
    const Tensor none =
        moved([](const Tensor& x, const Tensor&) { return map(x, [](double) { return 0.0; }); });
    const Tensor ones =
        moved([](const Tensor& x, const Tensor&) { return map(x, [](double) { return 1.0; }); });
    Tensor bound = carried;
    for (std::int64_t i = 0; i < bound.size(); ++i)
      if (none.at(i) == ones.at(i)) bound.set(i, u * magnitude(value));
    return bound;
  }

  Tensor product(ir::ExprId id, const std::vector<Tensor>& operands,
                 const std::vector<Tensor>& bounds, double u) const {
    if (fusion_.expr(id).op != Op::matmul)
      throw InternalError(
          fmt::format("no error analysis for '{}'", ir::info(fusion_.expr(id).op).name));
    const Tensor a = map(operands[0], magnitude);
    const Tensor b = map(operands[1], magnitude);
    auto wide = [](const Tensor& x, const Tensor& d) {
      return combine(x, d, [](double v, double e) { return v + e; });
    };
    const Tensor all = evaluate(id, {wide(a, bounds[0]), wide(b, bounds[1])})[0];
    const Tensor known = evaluate(id, {a, b})[0];
    const Shape& shape = operands[0].shape();
    const double inner =
        static_cast<double>(std::max(shape[shape.size() - 1], shape[shape.size() - 2]));
    const double g = gamma(inner + 2, u);
    return combine(all, known, [&](double x, double y) { return (x - y) * (1 + 0x1p-40) + g * x; });
  }

  void reduction(ir::ExprId id, const Tensor& x, const Tensor& d,
                 const std::vector<Tensor>& results, double u) {
    const ir::Expr& e = fusion_.expr(id);
    Tensor& bound = bounds_[e.results[0].index];
    const double count = results[0].size() > 0 ? static_cast<double>(x.size()) /
                                                     static_cast<double>(results[0].size())
                                               : 0;
    const double g = gamma(count + 2, u);
    // Sums and maxima of d and of |x| by the same axes.
    auto over = [&](Op op, const Tensor& of) { return reduced(id, op, of); };
    const Tensor size = combine(x, d, [](double a, double b) { return magnitude(a) + b; });
    switch (ir::as<ir::ReductionOp>(e.op)) {
      case ir::ReductionOp::sum:
        bound = combine(over(Op::sum, d), over(Op::sum, size),
                        [&](double a, double b) { return a + g * b; });
        return;
      case ir::ReductionOp::max:
      case ir::ReductionOp::min: bound = over(Op::max, d); return;
      case ir::ReductionOp::logsumexp: {
        // Each exponential is of a rounded difference, and off by two units; then a sum, a
        // logarithm of a number from 1 to count, and an addition.
        const Tensor largest = over(Op::max, size);
        bound = combine(over(Op::max, d), largest, [&](double a, double b) {
          return std::isinf(b) ? 0
                               : a + 2 * u * b + g + 4 * u + 3 * u * std::log(count + 1) +
                                     2 * u * (b + std::log(count + 1));
        });
        return;
      }
      case ir::ReductionOp::welford: break;
      case ir::ReductionOp::prod:
      case ir::ReductionOp::argmax:
        throw InternalError(fmt::format("no error analysis for '{}'", ir::info(e.op).name));
    }
    // The mean is off by `off`; deviations from it, their squares and both sums are rounded.
    const Tensor off = combine(over(Op::sum, d), over(Op::sum, size), [&](double a, double b) {
      return (a + 2 * g * b) / std::max(count, 1.0);
    });
    bound = off;
    const Tensor spread = over(Op::max, size);
    Tensor m2(DType::kF64, results[1].shape());
    const Tensor carried = over(Op::max, d);
    for (std::int64_t i = 0; i < m2.size(); ++i) {
      const double deviation =
          std::sqrt(std::max(results[1].at(i), 0.0) * count);  // sum of |x - mean| at most
      const double e1 = carried.at(i);
      const double o = off.at(i) + 2 * u * spread.at(i);
      m2.set(i, 2 * deviation * e1 + count * e1 * e1 + 2 * deviation * o * (g + u) +
                    2 * u * spread.at(i) * deviation +
                    (2 * g + 8 * u) * (results[1].at(i) + count * o * o) + count * o * o * g);
    }
    bounds_[e.results[1].index] = m2;
  }

  /// Another reduction over the axes of this one.
  Tensor reduced(ir::ExprId id, Op op, const Tensor& of) const {
    const auto& axes = fusion_.attr<std::vector<std::int64_t>>(id, "axes");
    std::vector<bool> gone(of.shape().size(), false);
    for (const std::int64_t axis : axes) gone[static_cast<std::size_t>(axis)] = true;
    Shape kept;
    for (std::size_t a = 0; a < gone.size(); ++a)
      if (!gone[a]) kept.push_back(of.shape()[a]);
    Tensor result = Tensor::zeros(DType::kF64, kept);
    std::int64_t position = 0;
    ir::for_each_index(of.shape(), [&](const ir::Index& index) {
      ir::Index to;
      for (std::size_t a = 0; a < gone.size(); ++a)
        if (!gone[a]) to.push_back(index[a]);
      const std::int64_t at = ir::linear_index(kept, to);
      const double value = of.at(position++);
      result.set(at, op == Op::sum ? result.at(at) + value : std::max(result.at(at), value));
    });
    return result;
  }

  const ir::Fusion& fusion_;
  const ir::Sizes sizes_;
  std::vector<Tensor> values_;  // by ValId
  std::vector<Tensor> bounds_;
  const Functions functions_;
};

}  // namespace

std::vector<Bounded> bounded_outputs(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                                     Functions functions) {
  return Analysis(fusion, inputs, functions).run();
}

}  // namespace segfuse::testing
