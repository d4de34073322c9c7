#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/half.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::ir {
namespace {

// Wide enough that no formula over 64-bit integers overflows before it is wrapped.
__extension__ using Int128 = __int128;

/// A formula over T, for the types that its rule admits; the other branch is never compiled.
template <class T>
constexpr bool admits(DTypeRule rule) {
  const bool real = std::is_same_v<T, double>;
  switch (rule) {
    case DTypeRule::kFloat:
    case DTypeRule::kTest: return real;
    case DTypeRule::kLogical:
    case DTypeRule::kInteger: return !real;
    default: return true;
  }
}

// In a template, so that a discarded formula is not instantiated. Operations of one operand ignore
// b.
template <class T>
T formula_of(Op op, T a, T b = T()) {
  switch (op) {
#define SEGFUSE_ANY(name, rule, formula)        \
  case Op::name:                                \
    if constexpr (admits<T>(DTypeRule::rule)) { \
      return static_cast<T>(formula);           \
    } else {                                    \
      break;                                    \
    }
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  SEGFUSE_ANY(name, rule, formula)
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  SEGFUSE_ANY(name, rule, formula)
#include "segfuse/ops.def"
#undef SEGFUSE_ANY
    default: break;  // any other: refused below
  }
  throw InternalError(fmt::format("'{}' has no formula for this type", info(op).name));
}

template <class T>
T apply(const Evaluation& e, std::int64_t i) {
  auto operand = [&](std::size_t n) {
    if constexpr (std::is_same_v<T, double>) return e.operands[n].at(i);
    return static_cast<T>(e.operands[n].template span<std::int64_t>()[static_cast<std::size_t>(i)]);
  };
  const Op op = e.expr().op;
  if (op == Op::where) return e.operands[0].at(i) != 0 ? operand(1) : operand(2);
  return formula_of<T>(op, operand(0), e.operands.size() > 1 ? operand(1) : T());
}

std::int64_t integer_from(DType dtype, double value) {
  if (dtype == DType::kBool) return value != 0;
  if (dtype == DType::kI32) return saturate_cast<std::int32_t>(value);
  return saturate_cast<std::int64_t>(value);
}

Tensor evaluate_cast(const Evaluation& e) {
  const DType to = e.attr<DType>("dtype");
  const Tensor& from = e.operands[0];
  if (is_float(to)) return from.to(DType::kF64);
  Tensor result(DType::kI64, from.shape());
  const auto out = result.span<std::int64_t>();
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = from.dtype() == DType::kF64 ? integer_from(to, from.at(static_cast<std::int64_t>(i)))
                                         : wrap(to, from.span<std::int64_t>()[i]);
  return result;
}

}  // namespace

std::int64_t wrap(DType dtype, std::int64_t value) {
  if (dtype == DType::kBool) return value != 0;
  return dtype == DType::kI32 ? static_cast<std::int32_t>(value) : value;
}

Scalar evaluate_scalar(Op op, DType result, DType operand, std::span<const Scalar> operands) {
  if (op == Op::where) return operands[0].whole != 0 ? operands[1] : operands[2];
  if (op == Op::cast) {
    if (is_float(result))
      return {is_float(operand) ? operands[0].real : static_cast<double>(operands[0].whole), 0};
    return {0, is_float(operand) ? integer_from(result, operands[0].real)
                                 : wrap(result, operands[0].whole)};
  }
  const Scalar second = operands.size() > 1 ? operands[1] : Scalar();
  if (is_float(operand)) {
    const auto value = formula_of<double>(op, operands[0].real, second.real);
    return is_float(result) ? Scalar{value, 0} : Scalar{0, value != 0};
  }
  const auto value = formula_of<Int128>(op, operands[0].whole, second.whole);
  return {0, wrap(result, static_cast<std::int64_t>(value))};
}

std::vector<Tensor> evaluate_elementwise(const Evaluation& e) {
  if (e.expr().op == Op::cast) return {evaluate_cast(e)};
  const DType result_dtype = e.result().dtype;
  const DType operand_dtype = e.operand(e.operands.size() - 1).dtype;
  Tensor result(wide(result_dtype), e.result_shape());
  for (std::int64_t i = 0; i < result.size(); ++i) {
    if (is_float(result_dtype)) {
      result.set(i, apply<double>(e, i));
    } else if (is_float(operand_dtype)) {
      result.set(i, apply<double>(e, i) != 0);  // a comparison or test
    } else {
      const auto exact = static_cast<std::int64_t>(apply<Int128>(e, i));
      result.span<std::int64_t>()[static_cast<std::size_t>(i)] = wrap(result_dtype, exact);
    }
  }
  return {result};
}

}  // namespace segfuse::ir
