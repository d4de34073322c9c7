#include "engine/numerics/cause.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/numerics/bounds.h"

namespace segfuse::engine::numerics {
namespace {

std::string overflow(DType dtype) {
  return fmt::format(
      "the result is beyond {:g}, the largest number of {}; scale the operands down, or use a "
      "wider "
      "type",
      largest_of(dtype), name_of(dtype));
}

std::string of_division(bool nan, std::span<const double> operands) {
  if (operands.size() == 2 && std::isinf(operands[0]))
    return "an infinity was divided by an infinity; find out which of them should be finite";
  return nan ? "zero was divided by zero, as by the count of a mask that is empty; divide by "
               "maximum(count, 1)"
             : "it was divided by zero, as by the count of a mask that is empty; divide by "
               "maximum(count, 1)";
}

std::string of_nan(ir::Op op, std::span<const double> operands) {
  switch (op) {
    case ir::Op::mul:
      return "an infinity was multiplied by zero, as where a mask of zeros is multiplied onto "
             "scores that are infinite; use where(mask, x, 0)";
    case ir::Op::sub:
    case ir::Op::add:
    case ir::Op::logsumexp:  // of the softmax of others: ours gives -inf
      return "infinities cancelled, as in exp(x - max(x)) over a row that is -inf throughout; use "
             "logsumexp, which gives -inf there, or leave such rows out";
    case ir::Op::div: return of_division(true, operands);
    case ir::Op::log:
    case ir::Op::log1p:
    case ir::Op::sqrt:
    case ir::Op::rsqrt:
    case ir::Op::pow:
      return "the operand is negative, often by rounding where zero was meant; bound it below by "
             "maximum(x, 0) or by a small positive number";
    case ir::Op::sum:
    case ir::Op::welford:
    case ir::Op::matmul:
      return "infinities of both signs, or an infinity and a zero, were added up; mask them out "
             "with where() before";
    default:  // any other: the sentence says less
      return "the operation is not defined for these operands";
  }
}

}  // namespace

std::string cause_of(ir::Op op, DType dtype, bool nan, std::span<const double> operands) {
  if (nan) return of_nan(op, operands);
  const double first = operands.empty() ? 1 : operands[0];
  switch (op) {
    case ir::Op::exp:
    case ir::Op::exp2:
    case ir::Op::expm1:
      return fmt::format(
          "the operand is above {:.4g}, the largest argument whose exponential {} can hold; "
          "subtract the maximum first, or use softmax or logsumexp",
          op == ir::Op::exp2 ? std::log2(largest_of(dtype)) : std::log(largest_of(dtype)),
          name_of(dtype));
    case ir::Op::log:
      return "the logarithm of zero was taken; add a small number, or use where() if -inf is meant";
    case ir::Op::log1p: return "the operand is -1; bound it above -1";
    case ir::Op::div: {
      if (operands.size() == 2 && operands[1] != 0) return overflow(dtype);
      return of_division(false, operands);
    }
    case ir::Op::reciprocal:
    case ir::Op::rsqrt:
      if (first == 0) return "the operand is zero; add a small number to it";
      return overflow(dtype);
    case ir::Op::semicrf_loss:
      return "the gold segmentation has probability zero: a score on it is -inf (a segment longer "
             "than its label may last, or a transition that is forbidden)";
    default: return overflow(dtype);  // any other: the sentence says less
  }
}

std::string cause_of_gradient(ir::Op op, DType dtype, bool nan, std::span<const double> operands) {
  switch (op) {
    case ir::Op::sqrt:
    case ir::Op::rsqrt:
    case ir::Op::pow:
      return "the derivative at zero is infinite, and times a gradient of zero it is NaN; add a "
             "small "
             "number before, or choose operands above zero with where() first";
    case ir::Op::log:
    case ir::Op::reciprocal:
    case ir::Op::div:
      return "it was divided by zero: the derivative is infinite there, and where() behind the "
             "operation does not help, since a gradient of zero times an infinity is NaN; use "
             "where() "
             "on the operand";
    case ir::Op::exp:
    case ir::Op::exp2:
    case ir::Op::expm1:
    case ir::Op::logsumexp: return nan ? of_nan(ir::Op::mul, operands) : overflow(dtype);
    default: return nan ? of_nan(op, operands) : overflow(dtype);  // any other: says less
  }
}

std::string cause_of(NumericsFault fault, ir::Op op) {
  const bool adds = ir::info(op).op_class == ir::OpClass::kReduction ||
                    ir::info(op).op_class == ir::OpClass::kOpaque || ir::adds(op);
  switch (fault) {
    case NumericsFault::kNaN: return "the given values hold NaN already; look at what made them";
    case NumericsFault::kInfinity: break;
    case NumericsFault::kIndex:
      return "indices count from 0 and have to be less than the axis's size; the usual causes are "
             "labels outside the alphabet and padding of -1";
    case NumericsFault::kCast:
      return "integers have no NaN and no infinity: NaN becomes 0, and a number outside the type "
             "becomes its largest or smallest number; check with is_nan, or bound the operand, "
             "before the cast";
    case NumericsFault::kRefused:
      return "the operands do not fit each other, for the reason given above";
    case NumericsFault::kNondeterminism:
      return adds ? "parts of a sum are added in the order in which threads come, as by floating "
                    "atomic additions; give them a fixed order"
                  : "threads write the same memory, or read what another one still writes";
    case NumericsFault::kUnwritten:
      return "elements are read that nothing wrote: a tail, a halo, an accumulator that was not "
             "set, or memory that was handed on too early";
    case NumericsFault::kError:
      return adds ? "a long sum in one accumulator loses digits (compensate it, or add in a tree), "
                    "or elements are left out or taken twice"
                  : "elements are taken from the wrong place (a stride or an offset), or the "
                    "function is less accurate than stated";
  }
  return "";
}

}  // namespace segfuse::engine::numerics

namespace segfuse {

std::string numerics_cause(std::string_view operation, DType dtype, bool nan, bool gradient,
                           std::span<const double> operands) {
  // An operation that is none of ours is like a constant: nothing is known of it.
  const ir::Op op = ir::op_from_name(operation).value_or(ir::Op::constant);
  return gradient ? engine::numerics::cause_of_gradient(op, dtype, nan, operands)
                  : engine::numerics::cause_of(op, dtype, nan, operands);
}

std::string numerics_cause(NumericsFault fault, std::string_view operation) {
  return engine::numerics::cause_of(fault, ir::op_from_name(operation).value_or(ir::Op::constant));
}

}  // namespace segfuse
