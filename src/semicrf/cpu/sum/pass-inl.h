// One boundary of a pass, for Highway targets: the window, its sums, the base, the link to other
// labels. Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_PASS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_PASS_INL
#undef SEGFUSE_SEMICRF_PASS_INL
#else
#define SEGFUSE_SEMICRF_PASS_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/factored.h"
#include "semicrf/cpu/sum/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;

HWY_INLINE bool any(Lanes d, hn::Mask<Lanes> mask) { return !hn::AllFalse(d, mask); }

/// out[v] = sum_i values[i] * rows[i * stride + v]: a vector times a matrix. Odd and even i apart,
/// which keeps enough sums in flight.
void weighted_rows(const double* values, const double* rows, std::int64_t n, std::int64_t stride,
                   double* out) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto add_one = [&](std::int64_t i, std::int64_t v, Vec sum) HWY_ATTR {
    return hn::MulAdd(hn::Load(d, rows + i * stride + v), hn::Set(d, values[i]), sum);
  };
  std::int64_t v = 0;
  for (; v + 3 * lanes <= stride; v += 3 * lanes) {
    Vec a0 = hn::Zero(d), b0 = a0, c0 = a0;
    Vec a1 = a0, b1 = a0, c1 = a0;
    std::int64_t i = 0;
    for (; i + 1 < n; i += 2) {
      a0 = add_one(i, v, a0);
      b0 = add_one(i, v + lanes, b0);
      c0 = add_one(i, v + 2 * lanes, c0);
      a1 = add_one(i + 1, v, a1);
      b1 = add_one(i + 1, v + lanes, b1);
      c1 = add_one(i + 1, v + 2 * lanes, c1);
    }
    if (i < n) {
      a0 = add_one(i, v, a0);
      b0 = add_one(i, v + lanes, b0);
      c0 = add_one(i, v + 2 * lanes, c0);
    }
    hn::Store(hn::Add(a0, a1), d, out + v);
    hn::Store(hn::Add(b0, b1), d, out + v + lanes);
    hn::Store(hn::Add(c0, c1), d, out + v + 2 * lanes);
  }
  for (; v < stride; v += lanes) {
    Vec even = hn::Zero(d);
    Vec odd = even;
    for (std::int64_t i = 0; i + 1 < n; i += 2) {
      even = add_one(i, v, even);
      odd = add_one(i + 1, v, odd);
    }
    if (n % 2 == 1) even = add_one(n - 1, v, even);
    hn::Store(hn::Add(even, odd), d, out + v);
  }
}

/// One call's arguments and the sizes derived from them.
struct Sweep {
  const Model& model;
  const FactoredTables& tables;
  const Row& row;
  FactoredState& state;
  std::int64_t stride = model.dims.stride;
  std::int64_t classes = model.dims.classes;
};

/// Multiplies n rows of the window by one factor per class.
HWY_INLINE void scale_rows(Lanes d, double* rows, std::int64_t hop, std::int64_t n, Vec factor) {
  for (std::int64_t k = 1; k <= n; ++k)
    hn::Store(hn::Mul(hn::Load(d, rows + k * hop), factor), d, rows + k * hop);
}

/// Sums over the n newest rows for the kTile boundaries from t on: out[i] for boundary t - step i,
/// where a row at distance j from t counts as duration j + i.
void begin_tile(const Sweep& sweep, const Pass& pass, std::int64_t t, std::int64_t n) {
  static_assert(kTile == 4);
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const std::int64_t hop = pass.step * stride;
  Window& window = sweep.state.window;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const double* row = window.rows.data() + t * stride + v + hop;
    const double* factor = sweep.tables.duration.data() + v;
    Vec f0 = hn::Load(d, factor);
    Vec f1 = hn::Load(d, factor + stride);
    Vec f2 = hn::Load(d, factor + 2 * stride);
    factor += 3 * stride;
    Vec s0 = hn::Zero(d);
    Vec s1 = s0;
    Vec s2 = s0;
    Vec s3 = s0;
    for (std::int64_t j = 0; j < n; ++j, row += hop, factor += stride) {
      const Vec f3 = hn::Load(d, factor);
      const Vec x = hn::Load(d, row);
      s0 = hn::MulAdd(x, f0, s0);
      s1 = hn::MulAdd(x, f1, s1);
      s2 = hn::MulAdd(x, f2, s2);
      s3 = hn::MulAdd(x, f3, s3);
      f0 = f1;
      f1 = f2;
      f2 = f3;
    }
    double* out = window.ahead.data() + v;
    hn::Store(s0, d, out);
    hn::Store(s1, d, out + stride);
    hn::Store(s2, d, out + 2 * stride);
    hn::Store(s3, d, out + 3 * stride);
  }
  window.tile_done = 0;
}

/// The window's sums at boundary t: those begun with the tile, and the rows that came since.
void sum_window(const Sweep& sweep, const Pass& pass, std::int64_t t, std::int64_t n) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const std::int64_t hop = pass.step * stride;
  Window& window = sweep.state.window;
  if (window.tile_done == kTile) begin_tile(sweep, pass, t, n);
  const std::int64_t since = std::min(window.tile_done, n);
  const double* ahead = window.ahead.data() + window.tile_done * stride;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec sum = hn::Load(d, ahead + v);
    const double* row = window.rows.data() + t * stride + v + hop;
    const double* factor = sweep.tables.duration.data() + v;
    for (std::int64_t k = 0; k < since; ++k, row += hop, factor += stride)
      sum = hn::MulAdd(hn::Load(d, row), hn::Load(d, factor), sum);
    hn::Store(sum, d, window.sum.data() + v);
  }
  ++window.tile_done;
}

/// counts[k-1] += weight * window row of duration k, for k in [from, to], of the i-th boundary of
/// the tile.
void count_rows(const Sweep& sweep, std::int64_t i, std::int64_t from, std::int64_t to) {
  const Lanes d;
  const DurationTile& tile = sweep.state.tile;
  const std::int64_t stride = sweep.stride;
  for (std::int64_t k = from; k <= to; ++k) {
    const double* row = sweep.state.window.rows.data() + (tile.first - i + k) * stride;
    double* count = sweep.state.counts.data() + (k - 1) * stride;
    for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
      const Vec weight = hn::Load(d, tile.weights.data() + i * stride + v);
      hn::Store(hn::MulAdd(weight, hn::Load(d, row + v), hn::Load(d, count + v)), d, count + v);
    }
  }
}

/// Counts the tile's segments by duration. Must come before window rows change.
void count_durations(const Sweep& sweep) {
  static_assert(kTile == 4);
  const Lanes d;
  DurationTile& tile = sweep.state.tile;
  const std::int64_t stride = sweep.stride;
  const std::int64_t longest = sweep.model.dims.max_duration;
  const std::int64_t room = sweep.row.length - tile.first;
  const std::int64_t n = std::min(longest, room);
  const std::int64_t pending = std::exchange(tile.pending, 0);
  if (pending < kTile) {
    for (std::int64_t i = 0; i < pending; ++i) count_rows(sweep, i, 1, std::min(longest, room + i));
    return;
  }
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const double* weights = tile.weights.data() + v;
    const Vec w0 = hn::Load(d, weights);
    const Vec w1 = hn::Load(d, weights + stride);
    const Vec w2 = hn::Load(d, weights + 2 * stride);
    const Vec w3 = hn::Load(d, weights + 3 * stride);
    const double* row = sweep.state.window.rows.data() + tile.first * stride + v;
    Vec x1 = hn::Load(d, row);
    Vec x2 = hn::Load(d, row - stride);
    Vec x3 = hn::Load(d, row - 2 * stride);
    double* count = sweep.state.counts.data() + v;
    for (std::int64_t k = 0; k < n; ++k, count += stride) {
      row += stride;
      const Vec x0 = hn::Load(d, row);
      const Vec a = hn::MulAdd(x1, w1, hn::MulAdd(x0, w0, hn::Load(d, count)));
      const Vec b = hn::MulAdd(x3, w3, hn::Mul(x2, w2));
      hn::Store(hn::Add(a, b), d, count);
      x3 = x2;
      x2 = x1;
      x1 = x0;
    }
  }
  // Later boundaries of the tile reach the end of the row with longer segments.
  for (std::int64_t i = 1; i < kTile; ++i) count_rows(sweep, i, n + 1, std::min(longest, room + i));
}

/// Puts the newest source into the window of boundary t and moves the references past the frame.
void push_source(const Sweep& sweep, const Pass& pass, std::int64_t t, std::int64_t n) {
  const Lanes d;
  const std::int64_t hop = pass.step * sweep.stride;
  Window& window = sweep.state.window;
  const double* source = pass.sources().data() + (t + pass.step) * sweep.stride;
  const double* emission = sweep.row.emission + pass.frame(t) * sweep.stride;
  double* ahead = window.ahead.data() + (window.tile_done - 1) * sweep.stride;
  const std::int64_t ahead_left = kTile - window.tile_done;
  for (std::int64_t v = 0; v < sweep.stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    double* rows = window.rows.data() + t * sweep.stride + v;
    Vec reference = hn::Load(d, window.reference.data() + v);
    Vec relative = hn::Sub(hn::Load(d, source + v), reference);
    const auto large = hn::Gt(relative, hn::Set(d, kLargestSource));
    if (any(d, large)) {
      if (sweep.state.tile.pending > 0) count_durations(sweep);
      const Vec factor = exp_of(d, hn::Neg(hn::IfThenElseZero(large, relative)));
      scale_rows(d, rows + hop, hop, n - 1, factor);
      scale_rows(d, ahead + v, sweep.stride, ahead_left, factor);
      // Not the reference plus the difference: it has lost its digits if it is as low as a mask.
      reference = hn::IfThenElse(large, hn::Load(d, source + v), reference);
      relative = hn::IfThenZeroElse(large, relative);
    }
    Vec score = hn::Load(d, emission + v);
    hn::Store(exp_of(d, relative), d, rows + hop);
    const auto forbidden = hn::Eq(score, hn::Set(d, kNegInf));
    if (any(d, forbidden)) {
      if (sweep.state.tile.pending > 0) count_durations(sweep);
      const Vec factor = hn::IfThenZeroElse(forbidden, hn::Set(d, 1.0));
      scale_rows(d, rows, hop, n, factor);
      scale_rows(d, ahead + v, sweep.stride, ahead_left, factor);
      score = hn::IfThenZeroElse(forbidden, score);
    }
    hn::Store(hn::Add(reference, score), d, window.reference.data() + v);
  }
}

/// value[t] from the window's sums, leave scores included; returns the largest without them.
double finish_value(const Sweep& sweep, Pass& pass, std::int64_t t) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Window& window = sweep.state.window;
  double* value = pass.value.data() + t * sweep.stride;
  Vec smallest = hn::Set(d, 1.0);
  for (std::int64_t v = 0; v < sweep.stride; v += lanes) {
    const Vec sum = hn::Load(d, window.sum.data() + v);
    const Vec padding = hn::Load(d, window.padding.data() + v);
    smallest = hn::Min(smallest, hn::Add(sum, padding));
    const Vec scale = hn::Add(hn::Load(d, window.reference.data() + v),
                              hn::Load(d, sweep.tables.duration_max.data() + v));
    hn::Store(hn::Add(log_of(d, sum), scale), d, value + v);
  }
  if (any(d, hn::Lt(smallest, hn::Set(d, kSmallestWindowSum)))) {
    if (sweep.state.tile.pending > 0) count_durations(sweep);
    for (std::int64_t c = 0; c < sweep.classes; ++c)
      if (window.sum[c] < kSmallestWindowSum)
        value[c] = exact_window(sweep.model, sweep.row, pass, t, c, window);
    window.tile_done = kTile;  // the rows have changed
  }
  if (pass.leave == nullptr) return kNegInf;
  const double largest = *std::max_element(value, value + sweep.classes);
  const double* leave = pass.leave + pass.frame(t) * sweep.stride;
  for (std::int64_t c = 0; c < sweep.stride; ++c) value[c] += leave[c];
  return largest;
}

/// Moves value[t] and the references to a new base, and forms linear[t]. Where leave scores are as
/// low as masks, that is the base of what goes on, whose largest is `going_on`: the references keep
/// their digits. False: no path gets here.
bool rebase(const Sweep& sweep, Pass& pass, std::int64_t t, double going_on) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  double* value = pass.value.data() + t * sweep.stride;
  Vec max_lanes = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < sweep.stride; v += lanes)
    max_lanes = hn::Max(max_lanes, hn::Load(d, value + v));
  alignas(64) double maxima[kLanes];
  hn::Store(max_lanes, d, maxima);
  const double max = *std::max_element(maxima, maxima + lanes);
  constexpr double kFar = 1000.0;
  const double shift =
      max == kNegInf ? 0.0 : std::nearbyint(going_on - max > kFar ? going_on : max);
  pass.base[t] = pass.base[t + pass.step] + shift;
  const Vec shift_lanes = hn::Set(d, shift);
  double* reference = sweep.state.window.reference.data();
  for (std::int64_t v = 0; v < sweep.stride; v += lanes) {
    hn::Store(hn::Sub(hn::Load(d, reference + v), shift_lanes), d, reference + v);
    const Vec moved = hn::Sub(hn::Load(d, value + v), shift_lanes);
    hn::Store(moved, d, value + v);
    hn::Store(exp_of(d, moved), d, pass.linear.data() + t * sweep.stride + v);
  }
  return max > kNegInf;
}

/// linked[t] and source[t] from value[t].
void link(const Sweep& sweep, Pass& pass, std::int64_t t, bool reachable) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  double* linked = pass.linked.data() + t * stride;
  const bool forward = pass.step < 0;
  const double* factors = (forward ? sweep.tables.into : sweep.tables.out_of).data();
  const double* maxima = (forward ? sweep.tables.into_max : sweep.tables.out_of_max).data();
  double* sum = sweep.state.scratch.data();
  if (!reachable) {
    std::fill(linked, linked + stride, kNegInf);
  } else {
    weighted_rows(pass.linear.data() + t * stride, factors, sweep.classes, stride, sum);
    Vec smallest = hn::Set(d, 1.0);
    for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
      const Vec s = hn::Load(d, sum + v);
      const Vec padding = hn::Load(d, sweep.state.window.padding.data() + v);
      smallest = hn::Min(smallest, hn::Add(s, padding));
      hn::Store(hn::Add(log_of(d, s), hn::Load(d, maxima + v)), d, linked + v);
    }
    if (any(d, hn::Lt(smallest, hn::Set(d, kSmallestLinkSum)))) {
      for (std::int64_t c = 0; c < sweep.classes; ++c)
        if (sum[c] < kSmallestLinkSum) linked[c] = exact_link(sweep.model, pass, t, c);
    }
  }
  add_enter(pass, t, stride);
}

/// One boundary of a pass; its last boundary (0 or L) links to nothing.
void advance(const Sweep& sweep, Pass& pass, std::int64_t t) {
  const std::int64_t available = pass.step < 0 ? t : sweep.row.length - t;
  const std::int64_t n = std::min(sweep.model.dims.max_duration, available);
  push_source(sweep, pass, t, n);
  sum_window(sweep, pass, t, n);
  const double going_on = finish_value(sweep, pass, t);
  const bool reachable = rebase(sweep, pass, t, going_on);
  if (available < sweep.row.length) link(sweep, pass, t, reachable);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
