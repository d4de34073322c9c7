// The linear-domain backward pass and counts for transitions that depend on the new segment's
// duration, for Highway targets; entries of the window are sources, as in the static case. Included
// once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_BY_DURATION_BACKWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_BY_DURATION_BACKWARD_INL
#undef SEGFUSE_SEMICRF_SCALED_BY_DURATION_BACKWARD_INL
#else
#define SEGFUSE_SEMICRF_SCALED_BY_DURATION_BACKWARD_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/scaled_by_duration_forward-inl.h"
#include "semicrf/cpu/sum/scaled_counts-inl.h"
#include "semicrf/cpu/sum/scaled_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

// --- backward ---

/// The source of segments that end k boundaries after boundary x.at + back, when `behind` newer
/// sources than that of x.at + 1 are in the window.
const double* source_after(const Strand& x, std::int64_t k, std::int64_t behind) {
  return x.newest() - (k - 1 + behind) * x.stride;
}

/// Begins the sums of the next four boundaries, x.at and those before it, with what is in the
/// window now. Exponents that later boundaries take out are made up for when they come.
void begin_tile_by_duration(Strand& x) {
  ScaledState& state = *x.owner.state;
  const std::int64_t stride = x.stride;
  const std::int64_t n = std::min(kSumTile, x.at + 1);
  double* weights = state.products.data();
  double* crossing = weights + 2 * kSumTile * stride;
  std::copy_n(x.window.reference.data(), stride, crossing);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t s = x.at - i;
    if (i > 0) {
      const double* factor = x.frames.emission.data() + s * stride;
      for (std::int64_t c = 0; c < stride; ++c)
        crossing[c] = x.scores[s * stride + c] == kNegInf ? 0.0 : crossing[c] * factor[c];
    }
    double* weight = weights + i * stride;
    std::copy_n(crossing, stride, weight);
    if (x.pass.leave != nullptr)
      multiply_vectors<false>(weight, x.pass.leave + s * stride, stride, weight);
    std::fill_n(x.window.ahead.data() + i * stride, stride, 0.0);
  }
  for (std::int64_t k = 1; k <= x.longest; ++k) {
    const double* left[kSumTile];
    double* out[kSumTile];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < std::min(k, n); ++i) {
      if (x.at - i + k > x.length) continue;
      double* product = weights + (kSumTile + i) * stride;
      multiply_vectors<false>(weights + i * stride, source_after(x, k - i, 0), stride, product);
      left[count] = product;
      out[count++] = x.window.ahead.data() + i * stride;
    }
    if (count > 0)
      multiply_some<true>(left, count, x.tables.out_of.data() + (k - 1) * x.classes * stride,
                          x.classes, stride, out);
  }
}

/// Finishes linked[x.at], the i-th of its tile; weight is reference * leave.
void take_linked(Strand& x, std::int64_t i, const double* weight) {
  const Lanes d;
  const std::int64_t stride = x.stride;
  ScaledWindow& window = x.window;
  double* linked = x.pass.linked.data() + x.pass.row(x.at) * stride;
  const Vec taken_out = hn::Set(d, std::ldexp(1.0, -static_cast<int>(x.owner.state->taken_out)));
  for (std::int64_t v = 0; v < stride; v += lanes())
    hn::Store(hn::Mul(hn::Load(d, window.ahead.data() + i * stride + v), taken_out), d, linked + v);
  double* product = x.owner.state->products.data();
  for (std::int64_t k = 1; k <= std::min(i, x.longest); ++k) {
    multiply_vectors<false>(weight, source_after(x, k, 0), stride, product);
    multiply_rows<1, true>(&product, x.tables.out_of.data() + (k - 1) * x.classes * stride,
                           x.classes, stride, &linked);
  }
  Vec largest = hn::Zero(d);
  Extremes values(window, 0);
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    const Vec value = hn::Load(d, linked + v);
    largest = hn::Max(largest, value);
    values.add(value, value);
  }
  values.store();
  set_lag(window, largest);
}

/// The source of x.at becomes the newest entry.
void push_source(Strand& x) {
  const Lanes d;
  const double* linked = x.pass.linked.data() + x.pass.row(x.at) * x.stride;
  const double* enter = x.pass.enter == nullptr ? nullptr : x.pass.enter + (x.at - 1) * x.stride;
  double* entry = next_entry(x);
  Extremes entries(x.window, 1);
  for (std::int64_t v = 0; v < x.stride; v += lanes()) {
    Vec source = hn::Load(d, linked + v);
    Vec made = hn::Mul(source, hn::Load(d, x.window.inverse.data() + v));
    if (enter != nullptr) {
      const Vec factor = hn::Load(d, enter + v);
      made = hn::Mul(made, factor);
      source = where_positive(factor, source);
    }
    hn::Store(made, d, entry + v);
    entries.add(source, made);
  }
  entries.store();
}

/// One backward boundary; its weights join the pending ones.
void advance_backward_by_duration(Strand& x) {
  ScaledState& state = *x.owner.state;
  ScaledWindow& window = x.window;
  --x.at;
  absorb_frame(x, std::min(window.steps + 1, x.longest + kCountTile));
  const std::int64_t i = state.tile_done % kSumTile;
  // absorb_frame took out the exponent of the boundary before.
  state.taken_out = i == 0 ? 0 : state.taken_out + state.last_lag;
  double* weight = x.pending.weights.data() + x.pending.count++ * x.stride;
  if (x.pass.leave != nullptr)
    multiply_vectors<false>(window.reference.data(), x.pass.leave + x.at * x.stride, x.stride,
                            weight);
  else
    std::copy_n(window.reference.data(), x.stride, weight);
  if (i == 0) begin_tile_by_duration(x);
  ++state.tile_done;
  ++window.steps;
  if (x.at == 0) return;
  take_linked(x, i, weight);
  state.last_lag = window.lag;
  push_source(x);
}

// --- counts ---

/// Segments from boundary 0, which no transition leads into.
void count_first_segments(Strand& x, const double* weight, double scale) {
  ScaledState& state = *x.owner.state;
  RowExpectations& out = *x.owner.out;
  const Lanes d;
  for (std::int64_t k = 1; k <= std::min(x.longest, x.length); ++k) {
    const double* source = source_after(x, k, 0);
    double* count = state.duration_counts.data() + (k - 1) * x.stride;
    const double* factor = x.tables.duration.data() + (k - 1) * x.stride;
    for (std::int64_t v = 0; v < x.stride; v += lanes()) {
      Vec p = hn::Mul(hn::Load(d, weight + v), hn::Load(d, source + v));
      p = hn::Mul(hn::Mul(p, hn::Set(d, scale)), hn::Load(d, factor + v));
      p = hn::Mul(p, hn::Load(d, x.tables.initial.data() + v));
      hn::Store(p, d, count + v);
      hn::Store(hn::Add(hn::Load(d, out.start.data() + v), p), d, out.start.data() + v);
    }
  }
}

/// Counts the segments of the pending boundaries into starts and transitions. The newest entry is
/// the source of the last of them.
void count_pending_by_duration(Strand& x) {
  ScaledState& state = *x.owner.state;
  RowExpectations& out = *x.owner.out;
  const std::int64_t stride = x.stride;
  const std::int64_t n = std::exchange(x.pending.count, 0);
  if (n == 0) return;
  const std::int64_t last = x.at_counted;  // boundary of the last pending one
  double* segments = state.segments.data();
  for (std::int64_t k = 1; k <= x.longest; ++k) {
    const std::int64_t slice = (k - 1) * x.classes * stride;
    // Boundary i of the n is last + n - 1 - i; the first ones may reach behind the row.
    std::int64_t first = 0;
    while (first < n && last + n - 1 - first + k > x.length) ++first;
    if (first == n) continue;
    for (std::int64_t i = first; i < n; ++i)
      multiply_vectors<false>(x.pending.weights.data() + i * stride, source_after(x, k, n - i),
                              stride, segments + i * stride);
    for (std::int64_t i = first; i < n; i += kSumTile) {
      const double* left[kSumTile];
      double* product[kSumTile];
      const std::int64_t rows = std::min(kSumTile, n - i);
      for (std::int64_t j = 0; j < rows; ++j) {
        left[j] = state.left.data() + (i + j) * stride;
        product[j] = state.products.data() + j * stride;
      }
      multiply_some<false>(left, rows, x.tables.into.data() + slice, x.classes, stride, product);
      for (std::int64_t j = 0; j < rows; ++j)
        multiply_vectors<true>(product[j], segments + (i + j) * stride, stride,
                               out.start.data() + (last + n - 1 - i - j) * stride);
    }
    if (!out.want_transition && !out.want_duration) continue;
    double* counts = state.transition_counts.data() + (k - 1) * stride * stride;
    add_outer_products(state.left.data() + first * stride, segments + first * stride, n - first,
                       stride, counts);
  }
}

void flush_pending(Strand& x) {
  if (x.owner.model->dims.by_duration)
    count_pending_by_duration(x);
  else
    flush_durations(x);
}

/// End posteriors, and the forward value of boundary s on the normaliser's scale.
void collect_end(const ScaledRow& row, std::int64_t t, double scale, double* left) {
  const Lanes d;
  const std::int64_t stride = row.model->dims.stride;
  const ScaledState& state = *row.state;
  const double* value = state.forward.value.data() + t * stride;
  const double* linked = state.backward.linked.data() + state.backward.row(t) * stride;
  double* end = row.out->end.data() + (t - 1) * stride;
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    const Vec scaled = hn::Mul(hn::Load(d, value + v), hn::Set(d, scale));
    if (left != nullptr) hn::Store(scaled, d, left + v);
    hn::Store(hn::Mul(scaled, hn::Load(d, linked + v)), d, end + v);
  }
}

/// Label posteriors from starts and ends.
void collect_labels(ScaledRow& row) {
  const std::int64_t stride = row.model->dims.stride;
  double* cover = row.state->cover.data();
  RowExpectations& out = *row.out;
  for (std::int64_t s = row.row.length - 1; s >= 0; --s) {
    for (std::int64_t c = 0; c < stride; ++c) {
      const std::int64_t at = s * stride + c;
      const bool forbidden = row.row.emission[at] == kNegInf;
      const double covered = forbidden ? 0.0 : cover[c] + out.end[at];
      out.label[at] = std::max(covered, 0.0);
      cover[c] = covered - out.start[at];
      row.ok &= std::abs(cover[c]) <= 2.0;  // not NaN
    }
  }
}

void backward_by_duration(ScaledRow& row, Strand& x) {
  ScaledState& state = *row.state;
  const std::int64_t stride = x.stride;
  enter_first(x);
  collect_end(row, row.row.length, scale_of(row, row.row.length), nullptr);
  std::fill_n(row.out->start.data(), row.row.length * stride, 0.0);
  while (x.at > 0) {
    advance_backward_by_duration(x);
    x.at_counted = x.at;
    const double scale = scale_of(row, x.at);
    if (x.at == 0) {
      count_first_segments(x, x.pending.weights.data() + (x.pending.count - 1) * stride, scale);
      // Boundary 0 has no transitions and pushed no source.
      --x.pending.count;
      x.at_counted = 1;
      break;
    }
    collect_end(row, x.at, scale, state.left.data() + (x.pending.count - 1) * stride);
    if (x.pending.count == kCountTile) count_pending_by_duration(x);
  }
  count_pending_by_duration(x);
  collect_labels(row);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
