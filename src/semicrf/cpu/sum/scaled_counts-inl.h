// Expected counts of the linear-domain passes, for Highway targets: posteriors of frames,
// durations, transitions. Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_COUNTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_COUNTS_INL
#undef SEGFUSE_SEMICRF_SCALED_COUNTS_INL
#else
#define SEGFUSE_SEMICRF_SCALED_COUNTS_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/scaled_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

/// Start and end posteriors at the segments' boundaries of frame s, and the label posterior of s.
/// `cover` runs from the right: P(label_s = c) plus rounding.
template <bool kStore>
HWY_INLINE void form_posteriors(const ScaledRow& row, std::int64_t s, double scale_here,
                                double scale_next) {
  const Lanes d;
  const std::int64_t stride = row.model->dims.stride;
  const ScaledState& state = *row.state;
  const ScaledPass& b = state.backward;
  const double* value = state.forward.value.data() + (s + 1) * stride;
  const double* linked = state.forward.linked.data() + s * stride;
  const double* b_value = b.value.data() + b.row(s) * stride;
  const double* b_linked = b.linked.data() + b.row(s + 1) * stride;
  const Vec at_end = hn::Set(d, scale_next);
  const Vec at_start = hn::Set(d, scale_here);
  double* cover = row.state->cover.data();
  const std::int64_t at = (row.part.origin + s) * stride;
  double* label = row.out->label.data() + at;
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    const Vec end = hn::Mul(hn::Mul(hn::Load(d, value + v), at_end), hn::Load(d, b_linked + v));
    const Vec start = hn::Mul(hn::Mul(hn::Load(d, b_value + v), at_start), hn::Load(d, linked + v));
    const Vec covered = hn::Add(hn::Load(d, cover + v), end);
    hn::Store(hn::Max(covered, hn::Zero(d)), d, label + v);
    hn::Store(hn::Sub(covered, start), d, cover + v);
    if (kStore) {
      hn::Store(end, d, row.out->end.data() + at + v);
      hn::Store(start, d, row.out->start.data() + at + v);
    }
  }
}

void collect_posteriors(const ScaledRow& row, std::int64_t s, double scale_here,
                        double scale_next) {
  // A forbidden label has no probability: what rounding left over ends here.
  const std::int64_t stride = row.model->dims.stride;
  const double* emission = row.row.emission + s * stride;
  const bool forbids = row.state->frames.forbids[s] != 0;
  for (std::int64_t c = 0; forbids && c < stride; ++c)
    if (emission[c] == kNegInf) row.state->cover[c] = 0.0;
  const std::int64_t frame = row.part.origin + s;
  if (row.out->want_boundaries || frame == 0 || frame + 1 == row.part.total)
    form_posteriors<true>(row, s, scale_here, scale_next);
  else
    form_posteriors<false>(row, s, scale_here, scale_next);
}

// --- durations ---

/// counts[k-1] += weight * entry of duration k, for k in [first, last], of the i-th pending
/// boundary; its newest entry is `entry`.
void count_entries(Strand& x, std::int64_t i, const double* entry, std::int64_t first,
                   std::int64_t last) {
  const Lanes d;
  const double* weights = x.pending.weights.data() + i * x.stride;
  for (std::int64_t k = first; k <= last; ++k) {
    double* count = x.duration_counts.data() + (k - 1) * x.stride;
    const double* from = entry - (k - 1) * x.stride;
    for (std::int64_t v = 0; v < x.stride; v += lanes()) {
      const Vec sum =
          hn::MulAdd(hn::Load(d, weights + v), hn::Load(d, from + v), hn::Load(d, count + v));
      hn::Store(sum, d, count + v);
    }
  }
}

/// Counts the segments of the pending boundaries. The newest entry in the window is the one before
/// the last pending boundary's own.
void flush_durations(Strand& x) {
  const std::int64_t pending = std::exchange(x.pending.count, 0);
  const double* newest = x.newest();
  for (std::int64_t i = 0; i < pending; ++i) {
    const std::int64_t behind = pending - i;  // entries newer than the boundary's first
    const std::int64_t held = x.window.steps + 1 - behind;
    count_entries(x, i, newest - behind * x.stride, 1, std::min(x.longest, held));
  }
}

/// The same for a full tile: every count is read and written once.
void count_tile(Strand& x) {
  static_assert(kSumTile == 4);
  const Lanes d;
  const std::int64_t stride = x.stride;
  x.pending.count = 0;
  const std::int64_t held = x.window.steps + 1 - kSumTile;  // by the first of them
  const std::int64_t n = std::min(x.longest, held);
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    const double* weights = x.pending.weights.data() + v;
    const Vec w0 = hn::Load(d, weights);
    const Vec w1 = hn::Load(d, weights + stride);
    const Vec w2 = hn::Load(d, weights + 2 * stride);
    const Vec w3 = hn::Load(d, weights + 3 * stride);
    const double* entry = x.newest() - stride + v;
    Vec e3 = hn::Load(d, entry);
    Vec e2 = hn::Load(d, entry - stride);
    Vec e1 = hn::Load(d, entry - 2 * stride);
    entry -= 3 * stride;
    double* count = x.duration_counts.data() + v;
    const auto add = [&](Vec n0, Vec n1, Vec n2, Vec n3) HWY_ATTR {
      const Vec a = hn::MulAdd(n1, w1, hn::MulAdd(n0, w0, hn::Load(d, count)));
      const Vec b = hn::MulAdd(n3, w3, hn::Mul(n2, w2));
      hn::Store(hn::Add(a, b), d, count);
      count += stride;
      entry -= stride;
    };
    std::int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
      const Vec e0 = in_register(hn::Load(d, entry));
      add(e0, e1, e2, e3);
      e3 = in_register(hn::Load(d, entry));
      add(e3, e0, e1, e2);
      e2 = in_register(hn::Load(d, entry));
      add(e2, e3, e0, e1);
      e1 = in_register(hn::Load(d, entry));
      add(e1, e2, e3, e0);
      // Now e1 is the oldest of all, e2 and e3 the ones before it, as at the start.
    }
    for (; k < n; ++k) {
      const Vec e0 = hn::Load(d, entry);
      add(e0, e1, e2, e3);
      e3 = e2;
      e2 = e1;
      e1 = e0;
    }
  }
  // Later boundaries of the tile reach the end of the row with longer segments.
  for (std::int64_t i = 1; i < kSumTile; ++i)
    count_entries(x, i, x.newest() - (kSumTile - i) * stride, n + 1, std::min(x.longest, held + i));
}

/// Adds the segments that start at s, x.at, to the pending ones. False: out of range.
bool collect_durations(Strand& x, const ScaledRow& row, double scale) {
  const Lanes d;
  const ScaledPass& forward = row.state->forward;
  const std::int64_t stride = x.stride;
  double* weights = x.pending.weights.data() + x.pending.count * stride;
  const double* source = forward.linked.data() + x.at * stride;
  const double* enter = forward.enter == nullptr ? nullptr : forward.enter + x.at * stride;
  Vec largest = hn::Zero(d);
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    Vec weight = hn::Mul(hn::Load(d, source + v), hn::Set(d, scale));
    weight = hn::Mul(weight, hn::Load(d, x.window.reference.data() + v));
    if (enter != nullptr) weight = hn::Mul(weight, hn::Load(d, enter + v));
    largest = hn::Max(largest, weight);
    hn::Store(weight, d, weights + v);
  }
  if (++x.pending.count == kSumTile) count_tile(x);
  return hn::AllTrue(d, hn::Le(largest, hn::Set(d, kLargestSegmentWeight)));
}

// --- transitions ---

/// counts[from][to] += sum over n boundaries of left[from] * right[to], 4 labels and V vectors at
/// once.
template <int V>
HWY_INLINE void outer_products(const double* left, const double* right, std::int64_t n,
                               std::int64_t stride, double* counts) {
  const Lanes d;
  Vec sum[4][V];
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < V; ++i) sum[j][i] = hn::Load(d, counts + j * stride + i * lanes());
  for (std::int64_t s = 0; s < n; ++s, left += stride, right += stride) {
    Vec to[V];
    for (int i = 0; i < V; ++i) to[i] = in_register(hn::Load(d, right + i * lanes()));
    for (int j = 0; j < 4; ++j) {
      const Vec from = hn::Set(d, left[j]);
      for (int i = 0; i < V; ++i) sum[j][i] = hn::MulAdd(to[i], from, sum[j][i]);
    }
  }
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < V; ++i) hn::Store(sum[j][i], d, counts + j * stride + i * lanes());
}

/// counts (stride, stride) += the sum over n rows of left^T right.
void add_outer_products(const double* left, const double* right, std::int64_t n,
                        std::int64_t stride, double* counts) {
  const std::int64_t step = lanes();
  for (std::int64_t from = 0; from < stride; from += 4, left += 4, counts += 4 * stride) {
    std::int64_t v = 0;
    for (; v + 3 * step <= stride; v += 3 * step)
      outer_products<3>(left, right + v, n, stride, counts + v);
    if (stride - v == 2 * step)
      outer_products<2>(left, right + v, n, stride, counts + v);
    else if (stride - v == step)
      outer_products<1>(left, right + v, n, stride, counts + v);
  }
}

/// Puts boundary s into its tile of transitions, and counts the tile when s is its last. Boundaries
/// come from the right; row ends have no transitions.
void collect_transitions(const ScaledRow& row, std::int64_t s, double scale) {
  const Lanes d;
  const std::int64_t stride = row.model->dims.stride;
  const std::int64_t first =
      row.part.origin == 0 ? std::max<std::int64_t>(row.part.begin, 1) : row.part.begin;
  if (s < first) return;
  double* left = row.state->left.data() + s % kCountTile * stride;
  const double* value = row.state->forward.value.data() + s * stride;
  for (std::int64_t v = 0; v < stride; v += lanes())
    hn::Store(hn::Mul(hn::Load(d, value + v), hn::Set(d, scale)), d, left + v);
  if (s % kCountTile != 0 && s != first) return;
  const std::int64_t tile_end = (s / kCountTile + 1) * kCountTile;
  const ScaledPass& backward = row.state->backward;
  add_outer_products(left, backward.value.data() + backward.row(s) * stride,
                     std::min(tile_end, row.part.end) - s, stride,
                     row.state->transition_counts.data());
}

// --- where a part ends ---

/// The normaliser at the boundary where a part ends: segments that end there, and those that cross
/// it, which also are what covers the frame after it.
void begin_counts(ScaledRow& row) {
  const Lanes d;
  const std::int64_t stride = row.model->dims.stride;
  const std::int64_t t = row.part.end;
  ScaledState& state = *row.state;
  state.rest_exponent = state.forward.exponent[t] + state.backward.exponent[t];
  const std::int64_t longest = std::min(row.model->dims.max_duration, row.part.total);
  const double* forward = state.outgoing.data();
  const double* backward = state.incoming.data();
  const double* value = state.forward.value.data() + t * stride;
  const double* linked = state.backward.linked.data() + state.backward.row(t) * stride;
  Vec sum = hn::Zero(d);
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    Vec crossing = hn::Zero(d);
    // A segment that began i frames before t and ends m after it has i + m frames.
    for (std::int64_t i = 1; i < longest; ++i) {
      Vec rest = hn::Zero(d);
      const double* factor = row.tables->duration.data() + i * stride + v;
      for (std::int64_t m = 1; i + m <= longest; ++m, factor += stride)
        rest = hn::MulAdd(hn::Load(d, backward + m * stride + v), hn::Load(d, factor), rest);
      crossing = hn::MulAdd(hn::Load(d, forward + i * stride + v), rest, crossing);
    }
    hn::Store(crossing, d, state.cover.data() + v);
    sum = hn::Add(sum, hn::MulAdd(hn::Load(d, value + v), hn::Load(d, linked + v), crossing));
  }
  state.rest = hn::GetLane(hn::SumOfLanes(d, sum));
  row.ok &= state.rest > 0.0 && state.rest <= kLargestEntry;
  for (std::int64_t c = 0; c < stride; ++c) state.cover[c] /= state.rest;
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
