// Derivatives along a direction: a row's lattice, or two of them, and their tangents.

#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/lattice_tangent.h"

namespace segfuse::semicrf {
namespace {

/// A direction along the scores of one row within a scope, as the lattice takes it.
struct LoadedDirection {
  Model model;
  RowBuffers frames;
  Row row;
  AlignedDoubles tail;
  LatticeDirection lattice() const {
    return {model, row, tail.size() == 0 ? nullptr : tail.data()};
  }
};

template <class T, int N>
void check_direction(const char* name, const View<const T, N>& along,
                     const std::array<std::int64_t, static_cast<std::size_t>(N)>& expected) {
  if (along.empty() || along.extents() == expected) return;
  throw UsageError(
      fmt::format("semicrf: the direction along {} has another shape than {}, "
                  "expected the same",
                  name, name));
}

template <class T>
void check_direction(const Direction<T>& along, const Scope& scope, const Dims& dims) {
  const Potentials<T>& v = along.scores;
  const std::int64_t classes = dims.classes;
  for (const auto& [name, frames] :
       {std::pair("emission", &v.emission), std::pair("start", &v.start), std::pair("end", &v.end)})
    check_direction<T, 3>(name, *frames, {dims.batch, dims.frames, classes});
  check_direction<T, 3>("transition", v.transition, {dims.slices(), classes, classes});
  check_direction<T, 2>("duration", v.duration, {dims.max_duration, classes});
  check_direction<T, 1>("initial", v.initial, {classes});
  check_direction<T, 1>("final", v.final, {classes});
  check_direction<double, 1>("tail", along.tail, {classes});
  if (!along.tail.empty() && scope.tail.empty())
    throw UsageError("semicrf: a direction along the tail of a model without one");
}

/// out = the direction where the score is not -inf, else 0; (n, stride) each.
template <class Get>
void load(const double* scores, std::int64_t n, const Dims& dims, bool given, const Get& get,
          AlignedDoubles& out) {
  out.assign(n * dims.stride, 0.0);
  for (std::int64_t i = 0; i < n && given; ++i)
    for (std::int64_t c = 0; c < dims.classes; ++c)
      if (scores == nullptr || scores[i * dims.stride + c] != kNegInf)
        out[i * dims.stride + c] = static_cast<double>(get(i, c));
}

template <class T>
void load_shared(const Direction<T>& along, const ScopedModel& scoped, LoadedDirection& to) {
  const Potentials<T>& v = along.scores;
  const Model& model = scoped.model;
  const Dims& dims = model.dims;
  to.model.dims = dims;
  load(
      model.transition.data(), dims.slices() * dims.classes, dims, !v.transition.empty(),
      [&](auto i, auto c) { return v.transition(i / dims.classes, i % dims.classes, c); },
      to.model.transition);
  load(
      model.duration.data(), dims.max_duration, dims, !v.duration.empty(),
      [&](auto k, auto c) { return v.duration(k, c); }, to.model.duration);
  load(
      model.initial.data(), 1, dims, !v.initial.empty(), [&](auto, auto c) { return v.initial(c); },
      to.model.initial);
  load(
      model.final.data(), 1, dims, !v.final.empty(), [&](auto, auto c) { return v.final(c); },
      to.model.final);
  if (scoped.tail.size() > 0)
    load(
        scoped.tail.data(), 1, dims, !along.tail.empty(),
        [&](auto, auto c) { return along.tail(c); }, to.tail);
}

template <class T>
void load_frames(const Direction<T>& along, const Dims& dims, std::int64_t b, const Row& row,
                 LoadedDirection& to) {
  const auto take = [&](const View<const T, 3>& from, const double* scores,
                        AlignedDoubles& frames) {
    load(
        scores, row.length, dims, !from.empty(), [&](auto t, auto c) { return from(b, t, c); },
        frames);
    return frames.data();
  };
  to.row.length = row.length;
  to.row.emission = take(along.scores.emission, row.emission, to.frames.emission);
  to.row.start = take(along.scores.start, row.start, to.frames.start);
  to.row.end = take(along.scores.end, row.end, to.frames.end);
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// The counts along a direction, summed up.
double along_counts(const LoadedDirection& to, const RowExpectations& e,
                    const AlignedDoubles& tail_count) {
  const std::int64_t stride = to.model.dims.stride;
  const std::int64_t frames = to.row.length * stride;
  double sum = dot(e.label.data(), to.row.emission, frames) +
               dot(e.start.data(), to.row.start, frames) + dot(e.end.data(), to.row.end, frames);
  sum += dot(e.start.data(), to.model.initial.data(), stride) +
         dot(e.end.data() + frames - stride, to.model.final.data(), stride);
  sum += dot(e.transition.data(), to.model.transition.data(), to.model.transition.size()) +
         dot(e.duration.data(), to.model.duration.data(), to.model.duration.size());
  return to.tail.size() == 0 ? sum : sum + dot(tail_count.data(), to.tail.data(), stride);
}

/// One of the sums over segmentations whose logarithms the value is made of: all that the scores
/// allow, or those within the constraints.
struct Side {
  ScopedRow scoped;
  Lattice lattice;
  LoadedDirection direction;
  LoadedDirection other;
  LatticeTangent tangent;
  RowExpectations counts;
  AlignedDoubles tail_count;
};

template <class T>
struct SideModel {
  const Constraints& constraints;
  ScopedModel model;

  SideModel(const Potentials<T>& potentials, const Scope& scope, const Dims& dims)
      : constraints(scope.constraints) {
    load_scoped(potentials, scope, dims, model);
  }
  double forward(const Potentials<T>& potentials, std::int64_t b, Side& side) const {
    load_scoped_row(potentials, constraints, model.model.dims, b, side.scoped);
    return forward_of(model, side.scoped, side.lattice);
  }
  /// The derivative of the sum's logarithm; the counts' too where they are wanted.
  double derive(const Direction<T>& along, const Wanted& wanted, std::int64_t b, Side& side) const {
    const LatticeInput input = lattice_of(model, side.scoped);
    load_shared(along, model, side.direction);
    load_frames(along, model.model.dims, b, side.scoped.row, side.direction);
    const LatticeDirection direction = side.direction.lattice();
    const double derivative = lattice_forward_tangent(input, side.lattice, direction, side.tangent);
    if (!wanted.any) return derivative;
    side.counts.want_transition = wanted.transition;
    side.counts.want_duration = wanted.duration;
    side.tail_count.assign(model.model.dims.stride, 0.0);
    lattice_backward(input, side.lattice, nullptr, nullptr);
    lattice_backward_tangent(input, side.lattice, direction, side.tangent, side.counts,
                             side.tail_count.data());
    return derivative;
  }
  double curvature(const Direction<T>& other, std::int64_t b, Side& side) const {
    load_shared(other, model, side.other);
    load_frames(other, model.model.dims, b, side.scoped.row, side.other);
    return along_counts(side.other, side.counts, side.tail_count);
  }
};

/// The first side's counts less the second's, into the first.
void subtract_counts(Side& from, const Side& what) {
  const auto subtract = [](AlignedDoubles& a, const AlignedDoubles& b) {
    for (std::int64_t i = 0; i < b.size(); ++i) a[i] -= b[i];
  };
  subtract(from.counts.label, what.counts.label);
  subtract(from.counts.start, what.counts.start);
  subtract(from.counts.end, what.counts.end);
  if (from.counts.want_transition) subtract(from.counts.transition, what.counts.transition);
  if (from.counts.want_duration) subtract(from.counts.duration, what.counts.duration);
  subtract(from.tail_count, what.tail_count);
}

/// A call, and what one of its rows does.
template <class T>
struct Along {
  const Potentials<T>& potentials;
  const Direction<T>& direction;
  const AlongResult<T>& result;
  const View<const double, 1>& weights;
  bool partial;
  Dims dims;
  SideModel<T> inside;  ///< the constraints
  SideModel<T> all;     ///< of a partial loss
  Wanted wanted;
  std::vector<double> tails;

  double weight(std::int64_t b) const { return weights.empty() ? 1.0 : weights(b); }

  /// Fills the slot of a row that has derivatives; else false.
  bool run(std::int64_t b, Side& first, Side& second, const GradientReducer& reducer,
           double* slot) {
    set_element(result.derivative, b, 0.0);
    set_element(result.curvature, b, 0.0);
    const double log_inside = inside.forward(potentials, b, first);
    const std::int64_t length = first.scoped.row.length;
    if (log_inside == kNegInf || length == 0) return false;
    if (!partial) {
      set_element(result.derivative, b, inside.derive(direction, wanted, b, first));
    } else {
      const double with = inside.derive(direction, wanted, b, first);
      all.forward(potentials, b, second);
      set_element(result.derivative, b, all.derive(direction, wanted, b, second) - with);
    }
    if (!wanted.any) return false;
    if (!result.curvature.empty()) {
      const double with = inside.curvature(result.other, b, first);
      result.curvature(b) = partial ? all.curvature(result.other, b, second) - with : with;
    }
    if (weight(b) == 0.0) return false;
    if (partial) subtract_counts(second, first);
    const Side& side = partial ? second : first;
    store_row_gradients(result.product, dims, b, length, &side.counts, weight(b));
    reducer.fill(slot, side.counts, length);
    std::copy_n(side.tail_count.data(), dims.classes, tails.data() + b * dims.classes);
    return true;
  }
};

}  // namespace

template <class T>
void Inference::derivatives_along(const Potentials<T>& potentials, const Scope& scope, bool partial,
                                  const Direction<T>& direction, const AlongResult<T>& result,
                                  const View<const double, 1>& weights) {
  const Dims dims = check_potentials(potentials);
  check_gradients(result.product, dims);
  check_weights(weights, dims);
  check_scope(scope, dims, potentials.lengths);
  check_direction(direction, scope, dims);
  check_direction(result.other, scope, dims);
  check_vector("the derivative", result.derivative.empty(), result.derivative.extent(0),
               dims.batch);
  check_vector("the curvature", result.curvature.empty(), result.curvature.extent(0), dims.batch);
  check_vector("the tail product", result.tail_product.empty(), result.tail_product.extent(0),
               dims.classes);
  const Gradients<T>& g = result.product;
  const bool curvature = !result.curvature.empty();
  const Scope unconstrained{{}, scope.tail};
  Along<T> call{potentials,
                direction,
                result,
                weights,
                partial,
                dims,
                {potentials, scope, dims},
                {potentials, unconstrained, dims},
                {curvature || wants_any(g) || !result.tail_product.empty(),
                 curvature || !g.transition.empty(), curvature || !g.duration.empty()},
                std::vector<double>(static_cast<std::size_t>(dims.batch * dims.classes), 0.0)};
  GradientReducer& reducer = state_->reducer;
  reducer.begin(dims, !g.transition.empty(), !g.duration.empty());
  const std::int64_t wave = reducer.rows_per_wave();
  for (std::int64_t begin = 0; begin < dims.batch; begin += wave) {
    const std::int64_t end = std::min(begin + wave, dims.batch);
    state_->for_rows(begin, end, [&](std::int64_t b, LatticeWorkspace&) {
      Side first;
      Side second;
      double* slot = reducer.slot(b - begin);
      if (call.run(b, first, second, reducer, slot)) return;
      store_row_gradients<T>(g, dims, b, 0, nullptr, 0.0);
      reducer.skip(slot);
    });
    reducer.reduce(begin, end, weights);
  }
  reducer.store(g);
  store_tail(result.tail_product, call.tails, dims, weights);
}

template void Inference::derivatives_along(const Potentials<float>&, const Scope&, bool,
                                           const Direction<float>&, const AlongResult<float>&,
                                           const View<const double, 1>&);
template void Inference::derivatives_along(const Potentials<double>&, const Scope&, bool,
                                           const Direction<double>&, const AlongResult<double>&,
                                           const View<const double, 1>&);

}  // namespace segfuse::semicrf
