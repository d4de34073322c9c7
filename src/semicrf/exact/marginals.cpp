// What is read off the posteriors: boundaries within a tolerance, expected durations, labels.

#include <fmt/core.h>

#include <algorithm>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/short_segments.h"

namespace segfuse::semicrf {
namespace {

/// P(segment (s, d), any label) for d = 1 .. m, after both passes; (length, m).
std::vector<double> short_segments(const LatticeInput& x, const Lattice& lattice, std::int64_t m) {
  std::vector<double> out(at(x.row.length * m), 0.0);
  ShortSegments segments(x, lattice, m);
  for (std::int64_t s = 0; s < x.row.length; ++s)
    segments.starting_at(s, std::span(out).subspan(at(s * m), at(m)));
  return out;
}

/// P(a segment starts in [t - w, t + w]) for every frame of a row. A window is missed when one
/// segment covers it and the frame x before it: a segment of more than m = 2w + 1 frames that
/// starts at x or before and has not ended by x + m.
std::vector<double> starts_within(const LatticeInput& input, const Lattice& lattice,
                                  const RowExpectations& e, std::int64_t w) {
  const std::int64_t length = input.row.length;
  const std::int64_t stride = input.model.dims.stride;
  const std::int64_t classes = input.model.dims.classes;
  const std::int64_t m = std::min(2 * w + 1, length);
  const std::vector<double> segments = short_segments(input, lattice, m);
  // Long segments (more than m frames) by their first frame, and by the frame after their last.
  std::vector<double> from(at(length + 1), 0.0);
  std::vector<double> until(at(length + 1), 0.0);
  for (std::int64_t t = 0; t < length; ++t) {
    from[at(t)] += sum_over(e.start.data() + t * stride, classes);
    until[at(t + 1)] += sum_over(e.end.data() + t * stride, classes);
    for (std::int64_t d = 1; d <= std::min(m, length - t); ++d) {
      from[at(t)] -= segments[at(t * m + d - 1)];
      until[at(t + d)] -= segments[at(t * m + d - 1)];
    }
  }
  std::vector<double> out(at(length), 1.0);
  double covered = 0.0;
  for (std::int64_t t = 0; t < std::min(m, length); ++t) covered -= until[at(t)];
  for (std::int64_t t = w + 1; t + w < length; ++t) {
    const std::int64_t x = t - w - 1;
    covered += from[at(x)] - until[at(x + m)];
    out[at(t)] = std::clamp(1.0 - covered, 0.0, 1.0);  // only rounding is beyond
  }
  // Windows that reach the end contain a start when the last segment starts in them.
  double last = 0.0;
  std::int64_t counted = length;
  for (std::int64_t t = length - 1; t > w && t + w >= length; --t) {
    while (counted > t - w) {
      --counted;
      last += segments[at(counted * m + length - counted - 1)];
    }
    out[at(t)] = std::min(1.0, last);
  }
  return out;
}

}  // namespace

template <class T>
void Inference::boundary_within(const Potentials<T>& potentials, const Scope& scope,
                                std::int64_t tolerance, const View<T, 2>& probability) {
  const Dims dims = check_with_tables(potentials);
  check_scope(scope, dims, potentials.lengths);
  if (tolerance < 0) throw UsageError(fmt::format("semicrf: tolerance {} is negative", tolerance));
  if (probability.extents() != typename View<T, 2>::Axes{dims.batch, dims.frames})
    throw UsageError(
        fmt::format("semicrf: the probability has shape ({}, {}), expected (B, T) = ({}, {})",
                    probability.extent(0), probability.extent(1), dims.batch, dims.frames));
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    for (std::int64_t t = 0; t < dims.frames; ++t) probability(b, t) = T{0};
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    if (w.scoped.row.length == 0 || forward_of(model, w.scoped, w.lattice) == kNegInf) return;
    const RowExpectations& e = counts_of(model, w.scoped, {true, false, false}, w);
    const std::vector<double> row = starts_within(lattice_of(model, w.scoped), w.lattice, e,
                                                  std::min(tolerance, w.scoped.row.length));
    for (std::size_t t = 0; t < row.size(); ++t)
      probability(b, static_cast<std::int64_t>(t)) = static_cast<T>(row[t]);
  });
}

template <class T>
void Inference::expected_durations(const Potentials<T>& potentials, const Scope& scope,
                                   const View<T, 2>& counts) {
  Gradients<T> gradients;
  gradients.duration = counts;
  log_partition(potentials, scope, {}, gradients);
}

template <class T>
void Inference::max_marginal(const Potentials<T>& potentials, const Scope& scope,
                             const View<std::int32_t, 2>& labels, std::int32_t ignore) {
  const Dims dims = check_with_tables(potentials);
  check_scope(scope, dims, potentials.lengths);
  if (labels.extents() != View<std::int32_t, 2>::Axes{dims.batch, dims.frames})
    throw UsageError(
        fmt::format("semicrf: the labels have shape ({}, {}), expected (B, T) = ({}, {})",
                    labels.extent(0), labels.extent(1), dims.batch, dims.frames));
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    for (std::int64_t t = 0; t < dims.frames; ++t) labels(b, t) = ignore;
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    if (w.scoped.row.length == 0 || forward_of(model, w.scoped, w.lattice) == kNegInf) return;
    const RowExpectations& e = counts_of(model, w.scoped, {true, false, false}, w);
    for (std::int64_t t = 0; t < w.scoped.row.length; ++t) {
      const double* frame = e.label.data() + t * dims.stride;
      labels(b, t) =
          static_cast<std::int32_t>(std::max_element(frame, frame + dims.classes) - frame);
    }
  });
}

#define SEGFUSE_INSTANTIATE(T)                                                               \
  template void Inference::boundary_within(const Potentials<T>&, const Scope&, std::int64_t, \
                                           const View<T, 2>&);                               \
  template void Inference::expected_durations(const Potentials<T>&, const Scope&,            \
                                              const View<T, 2>&);                            \
  template void Inference::max_marginal(const Potentials<T>&, const Scope&,                  \
                                        const View<std::int32_t, 2>&, std::int32_t);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
