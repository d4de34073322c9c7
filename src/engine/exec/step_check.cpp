#include "engine/exec/step_check.h"

#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "engine/numerics/cause.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

/// The first element that is NaN (or infinite too), by row-major index.
struct Found {
  std::int64_t element = -1;
  double value = 0;
};

Found find_bad(const Array& array, bool infinite_too) {
  if (!is_float(array.dtype) || array.layout->size() == 0) return {};
  const Nest nest = collapse(array.shape(), {array.layout->strides});
  Odometer at(nest, nest.sizes.size(), 0);
  for (std::int64_t i = 0; i < array.layout->size(); ++i, at.next()) {
    const double value = array.dtype == DType::kF32 ? array.as<const float>()[at.offset(0)]
                                                    : array.as<const double>()[at.offset(0)];
    if (std::isnan(value) || (infinite_too && std::isinf(value))) return {i, value};
  }
  return {};
}

double value_at(const Array& array, std::int64_t offset) {
  switch (array.dtype) {
    case DType::kF32: return array.as<const float>()[offset];
    case DType::kF64: return array.as<const double>()[offset];
    case DType::kI32: return array.as<const std::int32_t>()[offset];
    case DType::kI64: return static_cast<double>(array.as<const std::int64_t>()[offset]);
    default: return array.as<const std::uint8_t>()[offset];
  }
}

Shape unravel(std::int64_t element, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    index[axis] = element % shape[axis];
  return index;
}

/// What an element of an elementwise operation was made of, by operand; else nothing.
std::vector<double> elements(const ir::Expr& expr, std::span<const Ref> operands, const Run& run,
                             std::int64_t element) {
  if (ir::info(expr.op).op_class != ir::OpClass::kElementwise) return {};
  std::map<ir::ValId, std::size_t> loaded;  // each value once, in the order of the operands
  for (const ir::ValId operand : expr.operands) loaded.emplace(operand, loaded.size());
  if (loaded.size() != operands.size()) return {};
  std::vector<double> all;
  for (const ir::ValId operand : expr.operands) {
    const Ref& ref = operands[loaded.at(operand)];
    const Array array = run.array(ref);
    const Shape index = unravel(element, array.shape());
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis)
      at += index[axis] * array.layout->strides[axis];
    all.push_back(value_at(array, at));
  }
  return all;
}

void check(const ir::Fusion& fusion, ir::ExprId id, std::span<const Ref> operands,
           std::span<const Ref> results, const Run& run) {
  const ir::Expr& expr = fusion.expr(id);
  bool finite = true;
  for (const Ref& operand : operands)
    finite = finite && find_bad(run.array(operand), true).element < 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Array array = run.array(results[i]);
    if (array.dtype != DType::kF32 && array.dtype != DType::kF64) continue;
    const Found found = find_bad(array, finite);
    if (found.element < 0) continue;
    const std::vector<double> made_of = elements(expr, operands, run, found.element);
    const DType dtype = fusion.val(expr.results[i]).dtype;
    throw DataError(fmt::format(
        "{} gave {} at element {} of value {} {}{}; its operands were {}{}: {}",
        ir::info(expr.op).name, std::isnan(found.value) ? "nan" : fmt::format("{}", found.value),
        to_string(unravel(found.element, array.shape())), expr.results[i].index, name_of(dtype),
        to_string(array.shape()), finite ? "finite" : "not all finite",
        made_of.empty() ? "" : fmt::format(" ({} there)", fmt::join(made_of, ", ")),
        numerics::cause_of(expr.op, dtype, std::isnan(found.value), made_of)));
  }
}

}  // namespace

StepCheck check_steps(const ir::Fusion& fusion) {
  return [&fusion](ir::ExprId expr, std::span<const Ref> operands, std::span<const Ref> results,
                   const Run& run) { check(fusion, expr, operands, results, run); };
}

}  // namespace segfuse::engine
