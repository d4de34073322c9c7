#pragma once
// Evaluation of single expressions over wide tensors: f64 for floats, i64 for integers and bools.

#include <functional>
#include <span>
#include <vector>

#include "ir/bind.h"
#include "ir/fusion.h"
#include "ir/interpret/interpreter.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {

/// One expression with everything it needs to be evaluated.
struct Evaluation {
  const Fusion& fusion;
  const Sizes& sizes;
  ExprId id;
  std::span<const Tensor> operands;  ///< wide
  bool round_to_dtype = false;       ///< within a scan, as InterpretOptions has it

  const Expr& expr() const { return fusion.expr(id); }
  const Val& operand(std::size_t i) const { return fusion.val(expr().operands[i]); }
  const Val& result(std::size_t i = 0) const { return fusion.val(expr().results[i]); }
  Shape result_shape(std::size_t i = 0) const { return sizes.of(result(i).shape); }
  template <class T>
  const T& attr(std::string_view name) const {
    return fusion.attr<T>(id, name);
  }
};

/// The type in which values of `dtype` are held.
inline DType wide(DType dtype) { return is_float(dtype) ? DType::kF64 : DType::kI64; }

/// The same elements in the wide type, and back.
Tensor widen(const Tensor& tensor);
Tensor narrow(const Tensor& wide_tensor, DType dtype);

/// All results of one expression. UsageError for an index that is out of range.
std::vector<Tensor> evaluate(const Evaluation& e, const OpaqueOps& opaque);
std::vector<Tensor> evaluate_elementwise(const Evaluation& e);
std::vector<Tensor> evaluate_reduction(const Evaluation& e);
std::vector<Tensor> evaluate_movement(const Evaluation& e);
std::vector<Tensor> evaluate_creation(const Evaluation& e);
std::vector<Tensor> evaluate_matmul(const Evaluation& e);
std::vector<Tensor> evaluate_scan(const Evaluation& e);
std::vector<Tensor> evaluate_loop(const Evaluation& e, const OpaqueOps& opaque);
std::vector<Tensor> evaluate_sort(const Evaluation& e);
std::vector<Tensor> evaluate_attention(const Evaluation& e);
std::vector<Tensor> evaluate_attention_grad(const Evaluation& e);

/// All values of a Fusion, by ValId and wide; those of the inputs are given.
std::vector<Tensor> evaluate_all(const Fusion& fusion, const Sizes& sizes,
                                 std::span<const Tensor> inputs, const OpaqueOps& opaque,
                                 bool round_to_dtype);

/// The elements of one step along the first axis, copied, and the way back.
Tensor step_of(const Tensor& all, std::int64_t step);
void set_step(Tensor& all, std::int64_t step, const Tensor& one);
/// What the body of a scan makes of carries, one step of each sequence, and constants.
using StepFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;
/// The results of a scan, whose steps `step` does.
std::vector<Tensor> run_steps(const Evaluation& e, const StepFunction& step);
/// The sizes of its body.
Sizes body_sizes(const Evaluation& e);

/// Reduces an integer to what its type can hold, modulo 2^bits; a bool to 0 or 1.
std::int64_t wrap(DType dtype, std::int64_t value);

/// One element: `real` of a float, `whole` of an integer or bool.
struct Scalar {
  double real = 0;
  std::int64_t whole = 0;
};
/// One elementwise operation on scalars, in double or in integers that wrap. `operands` have the
/// type `operand` (of `where`: the last two), the result has `result`.
Scalar evaluate_scalar(Op op, DType result, DType operand, std::span<const Scalar> operands);

using Index = std::vector<std::int64_t>;

/// Calls visit(index) for every index of `shape` in row-major order.
template <class Visit>
void for_each_index(const Shape& shape, Visit&& visit) {
  Index index(shape.size(), 0);
  for (std::int64_t left = num_elements(shape); left > 0; --left) {
    visit(static_cast<const Index&>(index));
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

/// Row-major position of `index` in `shape`.
inline std::int64_t linear_index(const Shape& shape, const Index& index) {
  std::int64_t linear = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    linear = linear * shape[axis] + index[axis];
  return linear;
}

}  // namespace segfuse::ir
