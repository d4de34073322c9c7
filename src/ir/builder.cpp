#include "ir/builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/half_types.h"
#include "segfuse/error.h"

namespace segfuse::ir {

using Axes = std::vector<std::int64_t>;

std::int64_t Builder::normalise(std::int64_t axis, std::size_t rank) const {
  const auto r = static_cast<std::int64_t>(rank);
  const std::int64_t positive = axis < 0 ? axis + r : axis;
  if (positive < 0 || positive >= r)
    throw UsageError(fmt::format("axis {} does not exist; the value has {} axes", axis, rank));
  return positive;
}

Axes Builder::normalise(Axes axes, std::size_t rank) const {
  for (std::int64_t& axis : axes) axis = normalise(axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

// --- elementwise
// -----------------------------------------------------------------------

std::vector<ValId> Builder::broadcast_together(std::vector<ValId> operands) {
  Extents shape;
  for (const ValId id : operands) {
    const Extents other = fusion_.canonical(val(id).shape);
    if (other.size() > shape.size())
      shape.insert(shape.begin(), other.size() - shape.size(), Extent(1));
    const std::size_t offset = shape.size() - other.size();
    for (std::size_t i = 0; i < other.size(); ++i)
      if (shape[offset + i].is_constant(1)) shape[offset + i] = other[i];
  }
  for (ValId& id : operands) id = broadcast_to(id, shape);
  return operands;
}

ValId Builder::elementwise(Op op, std::vector<ValId> operands) {
  return make(op, broadcast_together(std::move(operands)));
}

ValId Builder::cast(ValId a, DType dtype) {
  return val(a).dtype == dtype ? a : make(Op::cast, {a}, {dtype});
}

// --- reductions
// -----------------------------------------------------------------------

ValId Builder::restore(ValId reduced, const Axes& axes, std::size_t full_rank) {
  Axes kept;
  Extents shape(full_rank, Extent(1));
  for (std::size_t i = 0, next = 0; i < full_rank; ++i) {
    const auto axis = static_cast<std::int64_t>(i);
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    kept.push_back(axis);
    shape[i] = val(reduced).shape[next++];
  }
  return broadcast(reduced, kept, shape);
}

ValId Builder::reduce(Op op, ValId a, Axes axes, bool keep) {
  axes = normalise(std::move(axes), rank(a));
  const ValId reduced = make(op, {a}, {axes});
  return keep ? restore(reduced, axes, rank(a)) : reduced;
}

ValId Builder::sum(ValId a, Axes axes, bool keep) {
  return reduce(Op::sum, a, std::move(axes), keep);
}
ValId Builder::prod(ValId a, Axes axes, bool keep) {
  return reduce(Op::prod, a, std::move(axes), keep);
}
ValId Builder::max(ValId a, Axes axes, bool keep) {
  return reduce(Op::max, a, std::move(axes), keep);
}
ValId Builder::min(ValId a, Axes axes, bool keep) {
  return reduce(Op::min, a, std::move(axes), keep);
}
ValId Builder::argmax(ValId a, std::int64_t axis, bool keep) {
  return reduce(Op::argmax, a, {axis}, keep);
}
ValId Builder::logsumexp(ValId a, Axes axes, bool keep) {
  return reduce(Op::logsumexp, a, std::move(axes), keep);
}

ValId Builder::mean(ValId a, Axes axes, bool keep) {
  axes = normalise(std::move(axes), rank(a));
  Extent count = 1;
  for (const std::int64_t axis : axes) count = count * val(a).shape[static_cast<std::size_t>(axis)];
  const ValId total = sum(a, axes, keep);
  return div(total, extent(count, val(a).dtype));
}

Builder::Moments Builder::welford(ValId a, Axes axes, bool keep) {
  axes = normalise(std::move(axes), rank(a));
  const std::vector<ValId> both = make_all(Op::welford, {a}, {axes});
  if (!keep) return {both[0], both[1]};
  const std::size_t full_rank = rank(a);
  return {restore(both[0], axes, full_rank), restore(both[1], axes, full_rank)};
}

// --- movement
// -----------------------------------------------------------------------

ValId Builder::permute(ValId a, Axes perm) {
  for (std::int64_t& axis : perm) axis = normalise(axis, rank(a));
  return make(Op::permute, {a}, {std::move(perm)});
}

ValId Builder::transpose(ValId a, std::int64_t axis_a, std::int64_t axis_b) {
  Axes perm(rank(a));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[static_cast<std::size_t>(normalise(axis_a, perm.size()))],
            perm[static_cast<std::size_t>(normalise(axis_b, perm.size()))]);
  return permute(a, std::move(perm));
}

ValId Builder::broadcast_to(ValId a, const Extents& shape) {
  const Extents from = fusion_.canonical(val(a).shape);
  if (from == fusion_.canonical(shape)) return a;
  if (from.size() > shape.size())
    throw UsageError(fmt::format("a value of shape {} cannot be broadcast to the lower rank of {}",
                                 fusion_.to_string(from), fusion_.to_string(shape)));
  Axes axes(from.size());
  std::iota(axes.begin(), axes.end(), static_cast<std::int64_t>(shape.size() - from.size()));
  if (from.size() ==
      shape.size()) {  // equal but for sizes that are only now found to agree: no copy is needed
    bool stretched = false;
    for (std::size_t i = 0; i < from.size(); ++i)
      stretched = stretched || (from[i].is_constant(1) && !fusion_.equal(shape[i], 1));
    if (!stretched) {
      for (std::size_t i = 0; i < from.size(); ++i)
        if (!fusion_.unify(from[i], shape[i]))
          throw UsageError(fmt::format(
              "shapes {} and {} do not broadcast: axis {} differs and neither size is 1",
              fusion_.to_string(from), fusion_.to_string(shape), i));
      return a;
    }
  }
  return broadcast(a, std::move(axes), shape);
}

ValId Builder::broadcast(ValId a, Axes axes, Extents shape) {
  return make(Op::broadcast, {a}, {std::move(axes), std::move(shape)});
}

ValId Builder::unsqueeze(ValId a, std::int64_t axis) {
  const std::size_t position = static_cast<std::size_t>(normalise(axis, rank(a) + 1));
  Extents shape = val(a).shape;
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(position), Extent(1));
  Axes axes(rank(a));
  for (std::size_t i = 0; i < axes.size(); ++i)
    axes[i] = static_cast<std::int64_t>(i < position ? i : i + 1);
  return broadcast(a, std::move(axes), std::move(shape));
}

ValId Builder::squeeze(ValId a, Axes axes) {
  return make(Op::squeeze, {a}, {normalise(std::move(axes), rank(a))});
}
ValId Builder::reshape(ValId a, Extents shape) {
  return make(Op::reshape, {a}, {std::move(shape)});
}

ValId Builder::slice(ValId a, Extents starts, Extents sizes) {
  return make(Op::slice, {a}, {std::move(starts), std::move(sizes)});
}

ValId Builder::slice_axis(ValId a, std::int64_t axis, Extent start, Extent size) {
  const auto along = static_cast<std::size_t>(normalise(axis, rank(a)));
  Extents starts(rank(a), Extent(0));
  Extents sizes = val(a).shape;
  starts[along] = std::move(start);
  sizes[along] = std::move(size);
  return slice(a, std::move(starts), std::move(sizes));
}

ValId Builder::pad(ValId a, Extents low, Extents high, double value) {
  return make(Op::pad, {a}, {std::move(low), std::move(high), value});
}

ValId Builder::pad_axis(ValId a, std::int64_t axis, Extent low, Extent high, double value) {
  const auto along = static_cast<std::size_t>(normalise(axis, rank(a)));
  Extents lows(rank(a), Extent(0));
  Extents highs(rank(a), Extent(0));
  lows[along] = std::move(low);
  highs[along] = std::move(high);
  return pad(a, std::move(lows), std::move(highs), value);
}

ValId Builder::concat(std::vector<ValId> parts, std::int64_t axis) {
  if (parts.empty()) throw UsageError("concat: at least one operand is needed");
  const std::int64_t along = normalise(axis, rank(parts[0]));
  return make(Op::concat, std::move(parts), {along});
}

ValId Builder::take(ValId a, ValId indices, std::int64_t axis) {
  return make(Op::take, {a, indices}, {normalise(axis, rank(a))});
}

ValId Builder::gather(ValId a, ValId indices, std::int64_t axis) {
  return make(Op::gather, {a, indices}, {normalise(axis, rank(a))});
}

ValId Builder::scatter_add(ValId updates, ValId indices, std::int64_t axis, Extent size) {
  return make(Op::scatter_add, {updates, indices}, {axis, Extents{std::move(size)}});
}

ValId Builder::unfold(ValId a, std::int64_t axis, std::int64_t size, std::int64_t stride,
                      std::int64_t dilation) {
  return make(Op::unfold, {a}, {normalise(axis, rank(a)), size, stride, dilation});
}

ValId Builder::fold(ValId a, std::int64_t axis, std::int64_t stride, std::int64_t dilation,
                    Extent size) {
  return make(Op::fold, {a}, {axis, stride, dilation, Extents{std::move(size)}});
}

// --- creation, library calls, compositions
// -------------------------------------------------------------------------

ValId Builder::full(double value, const Extents& shape, DType dtype) {
  return broadcast_to(constant(value, dtype), shape);
}

ValId Builder::iota(Extent length, DType dtype) {
  return make(Op::iota, {}, {Extents{std::move(length)}, dtype});
}

ValId Builder::extent(Extent size, DType dtype) {
  const Extent known = fusion_.canonical(size);
  if (known.is_constant()) return constant(static_cast<double>(known.constant()), dtype);
  return make(Op::extent, {}, {Extents{known}, dtype});
}

ValId Builder::random_uniform(ValId seed, Extents shape) {
  std::int64_t stream = 0;
  for (const ExprId id : fusion_.exprs())
    if (fusion_.expr(id).op == Op::random_uniform)
      stream = std::max(stream, fusion_.attr<std::int64_t>(id, "stream") + 1);
  return make(Op::random_uniform, {seed}, {std::move(shape), stream});
}

ValId Builder::matmul(ValId a, ValId b, bool transpose_a, bool transpose_b) {
  return make(Op::matmul, {a, b}, {std::int64_t{transpose_a}, std::int64_t{transpose_b}});
}

namespace {

/// The function of `a`, whose type is `dtype`; of 16-bit values in f32 and rounded once.
template <class Function>
ValId in_f32(Builder& b, DType dtype, ValId a, const Function& function) {
  return is_half(dtype) ? b.cast(function(b.cast(a, DType::kF32)), dtype) : function(a);
}

}  // namespace

ValId Builder::softmax(ValId a, std::int64_t axis) {
  return in_f32(*this, val(a).dtype, a, [&](ValId x) { return exp(log_softmax(x, axis)); });
}
ValId Builder::log_softmax(ValId a, std::int64_t axis) {
  return in_f32(*this, val(a).dtype, a, [&](ValId x) {
    // Not x - logsumexp(x): that sum is rounded at the size of the scores, these are near 0.
    const ValId below = sub(x, stop_gradient(max(x, {axis}, true)));
    return sub(below, log(sum(exp(below), {axis}, true)));
  });
}

ValId Builder::gelu(ValId a) {
  return in_f32(*this, val(a).dtype, a, [&](ValId x) {
    const ValId half_erf =
        mul(erf(mul(x, constant_like(std::sqrt(0.5), x))), constant_like(0.5, x));
    return mul(x, add(half_erf, constant_like(0.5, x)));
  });
}

ValId Builder::silu(ValId a) {
  return in_f32(*this, val(a).dtype, a, [&](ValId x) { return mul(x, sigmoid(x)); });
}

ValId Builder::layer_norm(ValId a, ValId scale, ValId shift, double epsilon) {
  const auto raised = [&](ValId b) { return is_half(val(b).dtype) ? cast(b, DType::kF32) : b; };
  return in_f32(*this, val(a).dtype, a, [&](ValId x) {
    const Moments moments = welford(x, {-1}, true);
    const ValId variance = div(moments.m2, extent(val(x).shape.back(), val(x).dtype));
    const ValId inverse = rsqrt(add(variance, constant_like(epsilon, x)));
    return add(mul(mul(sub(x, moments.mean), inverse), raised(scale)), raised(shift));
  });
}

ValId Builder::dropout(ValId a, ValId seed, double rate) {
  if (!(rate >= 0 && rate < 1))
    throw UsageError(fmt::format("the dropout rate is {}; it must be in [0, 1)", rate));
  if (rate == 0) return a;
  const ValId keep = ge(random_uniform(seed, val(a).shape), constant(rate));
  return where(keep, mul(a, constant_like(1 / (1 - rate), a)), constant_like(0, a));
}

}  // namespace segfuse::ir
