#pragma once
// Typed construction of expressions in one Fusion. There is no current graph: a Builder names the
// one it writes into.

#include <span>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::ir {

class Builder {
 public:
  explicit Builder(Fusion& fusion) : fusion_(fusion) {}
  Fusion& fusion() const noexcept { return fusion_; }
  const Val& val(ValId id) const { return fusion_.val(id); }
  std::size_t rank(ValId id) const { return fusion_.val(id).shape.size(); }

  // Elementwise. Operands are broadcast against each other as NumPy does: missing leading axes are
  // added and axes of constant size 1 are stretched. Element types must agree; there is no silent
  // cast.
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  ValId name(ValId a) { return elementwise(Op::name, {a}); }
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  ValId name(ValId a, ValId b) { return elementwise(Op::name, {a, b}); }
#include "segfuse/ops.def"
  ValId where(ValId condition, ValId a, ValId b) {
    return elementwise(Op::where, {condition, a, b});
  }
  /// The operands in the shape that they have together.
  std::vector<ValId> broadcast_together(std::vector<ValId> operands);
  /// The value itself if it has the type already.
  ValId cast(ValId a, DType dtype);
  /// A scalar of the type of `like`.
  ValId constant_like(double value, ValId like) { return fusion_.constant(value, val(like).dtype); }

  // Reductions. Negative axes count from the end; with `keep` the reduced axes stay with size 1.
  ValId sum(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  ValId prod(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  ValId max(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  ValId min(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  ValId argmax(ValId a, std::int64_t axis, bool keep = false);
  ValId logsumexp(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  ValId mean(ValId a, std::vector<std::int64_t> axes, bool keep = false);
  struct Moments {
    ValId mean;
    ValId m2;  ///< sum of squared deviations from the mean
  };
  Moments welford(ValId a, std::vector<std::int64_t> axes, bool keep = false);

  // Movement.
  ValId permute(ValId a, std::vector<std::int64_t> perm);
  ValId transpose(ValId a, std::int64_t axis_a, std::int64_t axis_b);
  /// Stretches to `shape` as NumPy does; the value itself if nothing changes.
  ValId broadcast_to(ValId a, const Extents& shape);
  ValId broadcast(ValId a, std::vector<std::int64_t> axes, Extents shape);
  /// Inserts an axis of size 1 before `axis` (in the result).
  ValId unsqueeze(ValId a, std::int64_t axis);
  ValId squeeze(ValId a, std::vector<std::int64_t> axes);
  ValId reshape(ValId a, Extents shape);
  ValId slice(ValId a, Extents starts, Extents sizes);
  /// [start, start + size) of one axis.
  ValId slice_axis(ValId a, std::int64_t axis, Extent start, Extent size);
  ValId pad(ValId a, Extents low, Extents high, double value = 0);
  ValId pad_axis(ValId a, std::int64_t axis, Extent low, Extent high, double value = 0);
  ValId concat(std::vector<ValId> parts, std::int64_t axis);
  ValId take(ValId a, ValId indices, std::int64_t axis);
  ValId gather(ValId a, ValId indices, std::int64_t axis);
  ValId scatter_add(ValId updates, ValId indices, std::int64_t axis, Extent size);
  ValId unfold(ValId a, std::int64_t axis, std::int64_t size, std::int64_t stride,
               std::int64_t dilation);
  ValId fold(ValId a, std::int64_t axis, std::int64_t stride, std::int64_t dilation, Extent extent);

  // Creation.
  ValId constant(double value, DType dtype = DType::kF32) { return fusion_.constant(value, dtype); }
  ValId full(double value, const Extents& shape, DType dtype = DType::kF32);
  ValId iota(Extent length, DType dtype = DType::kI64);
  /// The value of a symbolic size as a scalar.
  ValId extent(Extent size, DType dtype = DType::kF32);
  /// Uniform f32 in [0, 1). Every call takes the next stream number of this Fusion, so calls are
  /// independent.
  ValId random_uniform(ValId seed, Extents shape);

  // Library calls.
  ValId matmul(ValId a, ValId b, bool transpose_a = false, bool transpose_b = false);

  // Compositions. Those of 16-bit values are computed in f32 and rounded once.
  ValId softmax(ValId a, std::int64_t axis);
  ValId log_softmax(ValId a, std::int64_t axis);
  ValId gelu(ValId a);  ///< exact: a * (1 + erf(a / sqrt 2)) / 2
  ValId silu(ValId a);  ///< a * sigmoid(a)
  /// (a - mean) / sqrt(m2 / n + epsilon) * scale + shift over the last axis.
  ValId layer_norm(ValId a, ValId scale, ValId shift, double epsilon = 1e-5);
  /// Keeps each element with probability 1 - rate and divides it by that.
  ValId dropout(ValId a, ValId seed, double rate);

  /// The expression as it is, without broadcasting.
  ValId make(Op op, std::vector<ValId> operands, Attrs attrs = {}) {
    return fusion_.result(fusion_.add_expr(op, std::move(operands), std::move(attrs)));
  }
  std::vector<ValId> make_all(Op op, std::vector<ValId> operands, Attrs attrs = {}) {
    return fusion_.expr(fusion_.add_expr(op, std::move(operands), std::move(attrs))).results;
  }

 private:
  ValId elementwise(Op op, std::vector<ValId> operands);
  ValId reduce(Op op, ValId a, std::vector<std::int64_t> axes, bool keep);
  std::vector<std::int64_t> normalise(std::vector<std::int64_t> axes, std::size_t rank) const;
  std::int64_t normalise(std::int64_t axis, std::size_t rank) const;
  ValId restore(ValId reduced, const std::vector<std::int64_t>& axes, std::size_t rank);

  Fusion& fusion_;
};

}  // namespace segfuse::ir
