#include "semicrf/cpu/factored.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "semicrf/cpu/flush_denormals.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/cpu/factored.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>
#include "semicrf/cpu/vector_math-inl.h"

// Ranges of the linear domain. exp is 0 below -707. A window entry is at most e^250 and a duration
// factor at most 1, so what underflow drops from a window's sum is below K e^(250-707); a sum above
// e^-400 is exact to rounding. Products of two entries stay below e^650.
#ifndef SEGFUSE_SEMICRF_FACTORED_RANGES
#define SEGFUSE_SEMICRF_FACTORED_RANGES
namespace segfuse::semicrf {
inline constexpr double kLargestSource = 250.0;         // log
inline constexpr double kLargestWeight = 400.0;         // log
inline constexpr double kSmallestWindowSum = 0x1p-577;  // e^-400
inline constexpr double kSmallestLinkSum = 0x1p-865;    // e^-600; C e^-707 is dropped
}  // namespace segfuse::semicrf
#endif

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;

HWY_INLINE bool any(Lanes d, hn::Mask<Lanes> mask) { return !hn::AllFalse(d, mask); }

/// out[v] = sum_{i=1..n} weight(i) * rows[i * hop + v], for all v in [0, stride): the inner product
/// shared by windows (weights: rows of a table) and links (weights: scalars).
struct TableWeights {
  const double* table;
  std::int64_t stride;
  HWY_INLINE Vec operator()(Lanes d, std::int64_t i, std::int64_t v) const {
    return hn::Load(d, table + (i - 1) * stride + v);
  }
};
struct ScalarWeights {
  const double* values;
  HWY_INLINE Vec operator()(Lanes d, std::int64_t i, std::int64_t) const {
    return hn::Set(d, values[i - 1]);
  }
};

template <class Weights>
HWY_INLINE void weighted_sums(const Weights& weight, const double* rows, std::int64_t hop,
                              std::int64_t n, std::int64_t stride, double* out) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t v = 0;
  for (; v + 3 * lanes <= stride; v += 3 * lanes) {
    Vec a = hn::Zero(d);
    Vec b = a;
    Vec c = a;
    for (std::int64_t i = 1; i <= n; ++i) {
      const double* row = rows + i * hop + v;
      a = hn::MulAdd(hn::Load(d, row), weight(d, i, v), a);
      b = hn::MulAdd(hn::Load(d, row + lanes), weight(d, i, v + lanes), b);
      c = hn::MulAdd(hn::Load(d, row + 2 * lanes), weight(d, i, v + 2 * lanes), c);
    }
    hn::Store(a, d, out + v);
    hn::Store(b, d, out + v + lanes);
    hn::Store(c, d, out + v + 2 * lanes);
  }
  for (; v < stride; v += lanes) {
    Vec a = hn::Zero(d);
    for (std::int64_t i = 1; i <= n; ++i)
      a = hn::MulAdd(hn::Load(d, rows + i * hop + v), weight(d, i, v), a);
    hn::Store(a, d, out + v);
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

/// Puts the newest source into the window of boundary t and moves the references past the frame.
void push_source(const Sweep& sweep, const Pass& pass, std::int64_t t, std::int64_t n) {
  const Lanes d;
  const std::int64_t hop = pass.step * sweep.stride;
  Window& window = sweep.state.window;
  const double* source = pass.sources().data() + (t + pass.step) * sweep.stride;
  const double* emission = sweep.row.emission + pass.frame(t) * sweep.stride;
  for (std::int64_t v = 0; v < sweep.stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    double* rows = window.rows.data() + t * sweep.stride + v;
    Vec reference = hn::Load(d, window.reference.data() + v);
    Vec relative = hn::Sub(hn::Load(d, source + v), reference);
    const auto large = hn::Gt(relative, hn::Set(d, kLargestSource));
    if (any(d, large)) {
      const Vec shift = hn::IfThenElseZero(large, relative);
      scale_rows(d, rows + hop, hop, n - 1, exp_of(d, hn::Neg(shift)));
      reference = hn::Add(reference, shift);
      relative = hn::Sub(relative, shift);
    }
    Vec score = hn::Load(d, emission + v);
    hn::Store(exp_of(d, relative), d, rows + hop);
    const auto forbidden = hn::Eq(score, hn::Set(d, kNegInf));
    if (any(d, forbidden)) {
      scale_rows(d, rows, hop, n, hn::IfThenZeroElse(forbidden, hn::Set(d, 1.0)));
      score = hn::IfThenZeroElse(forbidden, score);
    }
    hn::Store(hn::Add(reference, score), d, window.reference.data() + v);
  }
}

/// value[t] from the window's sums, leave scores included; then the base of t.
void finish_value(const Sweep& sweep, Pass& pass, std::int64_t t) {
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
    for (std::int64_t c = 0; c < sweep.classes; ++c)
      if (window.sum[c] < kSmallestWindowSum)
        value[c] = exact_window(sweep.model, sweep.row, pass, t, c, window);
  }
  if (pass.leave != nullptr) {
    const double* leave = pass.leave + pass.frame(t) * sweep.stride;
    for (std::int64_t c = 0; c < sweep.stride; ++c) value[c] += leave[c];
  }
}

/// Moves value[t] and the references to a new base, and forms linear[t]. False: no path gets here.
bool rebase(const Sweep& sweep, Pass& pass, std::int64_t t) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  double* value = pass.value.data() + t * sweep.stride;
  Vec max_lanes = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < sweep.stride; v += lanes)
    max_lanes = hn::Max(max_lanes, hn::Load(d, value + v));
  alignas(64) double maxima[kLanes];
  hn::Store(max_lanes, d, maxima);
  const double max = *std::max_element(maxima, maxima + lanes);
  const double shift = max == kNegInf ? 0.0 : std::nearbyint(max);
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
    weighted_sums(ScalarWeights{pass.linear.data() + t * stride}, factors - stride, stride,
                  sweep.classes, stride, sum);
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
  Window& window = sweep.state.window;
  weighted_sums(TableWeights{sweep.tables.duration.data(), sweep.stride},
                window.rows.data() + t * sweep.stride, pass.step * sweep.stride, n, sweep.stride,
                window.sum.data());
  finish_value(sweep, pass, t);
  const bool reachable = rebase(sweep, pass, t);
  if (available < sweep.row.length) link(sweep, pass, t, reachable);
}

/// Start and end posteriors at the segments' boundaries of frame s, and the label posterior of s.
/// `cover` runs from the right: P(label_s = c) plus rounding.
void collect_posteriors(const Sweep& sweep, std::int64_t s, double* cover, RowExpectations& out) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const Pass& f = sweep.state.forward;
  const Pass& b = sweep.state.backward;
  const Vec at_end = hn::Set(d, offset(sweep.state, s + 1));
  const Vec at_start = hn::Set(d, offset(sweep.state, s));
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const std::int64_t here = s * stride + v;
    const std::int64_t next = here + stride;
    const Vec end = exp_of(
        d, hn::Add(hn::Add(hn::Load(d, f.value.data() + next), hn::Load(d, b.linked.data() + next)),
                   at_end));
    const Vec start = exp_of(
        d, hn::Add(hn::Add(hn::Load(d, f.linked.data() + here), hn::Load(d, b.value.data() + here)),
                   at_start));
    // A forbidden label has no probability: what rounding left over ends here.
    const auto forbidden = hn::Eq(hn::Load(d, sweep.row.emission + here), hn::Set(d, kNegInf));
    const Vec covered = hn::IfThenZeroElse(forbidden, hn::Add(hn::Load(d, cover + v), end));
    hn::Store(end, d, out.end.data() + here);
    hn::Store(start, d, out.start.data() + here);
    hn::Store(hn::Max(covered, hn::Zero(d)), d, out.label.data() + here);
    hn::Store(hn::Sub(covered, start), d, cover + v);
  }
}

/// counts[k-1] += weight * window row k, for the segments that start at s; the duration factor is
/// applied at the end of the row. Weights out of range go to `exact` instead.
void collect_durations(const Sweep& sweep, std::int64_t s, double* counts, double* exact) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const Pass& f = sweep.state.forward;
  const Window& window = sweep.state.window;
  const std::int64_t n = std::min(sweep.model.dims.max_duration, sweep.row.length - s);
  const Vec at_start = hn::Set(d, offset(sweep.state, s));
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec scale = hn::Add(hn::Load(d, window.reference.data() + v),
                              hn::Load(d, sweep.tables.duration_max.data() + v));
    Vec log_weight = hn::Add(hn::Load(d, f.sources().data() + s * stride + v), scale);
    log_weight = hn::Add(log_weight, at_start);
    const auto large = hn::Gt(log_weight, hn::Set(d, kLargestWeight));
    if (any(d, large)) {
      alignas(64) double weights[kLanes];
      hn::Store(log_weight, d, weights);
      for (std::int64_t c = v; c < v + static_cast<std::int64_t>(hn::Lanes(d)); ++c)
        if (weights[c - v] > kLargestWeight)
          exact_durations(sweep.model, sweep.row, sweep.state, s, c, exact);
      log_weight = hn::IfThenElse(large, hn::Set(d, kNegInf), log_weight);
    }
    const Vec weight = exp_of(d, log_weight);
    const double* rows = window.rows.data() + (s + 1) * stride + v;
    double* count = counts + v;
    for (std::int64_t k = 0; k < n; ++k, rows += stride, count += stride)
      hn::Store(hn::MulAdd(weight, hn::Load(d, rows), hn::Load(d, count)), d, count);
  }
}

/// counts[from][to] += sum over n boundaries of scale * forward.linear[from] * backward.linear[to].
void add_outer_products(const Sweep& sweep, const std::int64_t* boundaries, const double* scales,
                        std::int64_t n, double* counts) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const double* left = sweep.state.forward.linear.data();
  const double* right = sweep.state.backward.linear.data();
  for (std::int64_t from = 0; from < stride; from += 4) {
    for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
      double* out = counts + from * stride + v;
      Vec a = hn::Load(d, out);
      Vec b = hn::Load(d, out + stride);
      Vec c = hn::Load(d, out + 2 * stride);
      Vec e = hn::Load(d, out + 3 * stride);
      for (std::int64_t i = 0; i < n; ++i) {
        const double* p = left + boundaries[i] * stride + from;
        const Vec q =
            hn::Mul(hn::Load(d, right + boundaries[i] * stride + v), hn::Set(d, scales[i]));
        a = hn::MulAdd(q, hn::Set(d, p[0]), a);
        b = hn::MulAdd(q, hn::Set(d, p[1]), b);
        c = hn::MulAdd(q, hn::Set(d, p[2]), c);
        e = hn::MulAdd(q, hn::Set(d, p[3]), e);
      }
      hn::Store(a, d, out);
      hn::Store(b, d, out + stride);
      hn::Store(c, d, out + 2 * stride);
      hn::Store(e, d, out + 3 * stride);
    }
  }
}

void collect_transitions(const Sweep& sweep, RowExpectations& out) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t stride = sweep.stride;
  Buffer& counts = sweep.state.counts;
  counts.assign(stride * stride, 0.0);
  out.transition.assign(sweep.classes * stride, 0.0);
  std::int64_t boundaries[kBlock];
  double scales[kBlock];
  for (std::int64_t begin = 1; begin < sweep.row.length; begin += kBlock) {
    std::int64_t n = 0;
    for (std::int64_t s = begin; s < std::min(begin + kBlock, sweep.row.length); ++s) {
      const double log_scale = offset(sweep.state, s) + sweep.tables.transition_max;
      if (log_scale > kLargestWeight) {
        exact_transitions(sweep.model, sweep.state, s, out.transition.data());
        continue;
      }
      boundaries[n] = s;
      scales[n++] = std::exp(log_scale);
    }
    add_outer_products(sweep, boundaries, scales, n, counts.data());
  }
  const double* factor = sweep.tables.transition.data();
  for (std::int64_t i = 0; i < sweep.classes * stride; ++i)
    out.transition[i] += counts[i] * factor[i];
}

void run_forward(const Model& model, const FactoredTables& tables, const Row& row,
                 FactoredState& state) {
  const FlushDenormals flush;
  const Sweep sweep{model, tables, row, state};
  for (std::int64_t t = 1; t <= row.length; ++t) advance(sweep, state.forward, t);
}

void run_backward(const Model& model, const FactoredTables& tables, const Row& row,
                  FactoredState& state, RowExpectations& out) {
  const FlushDenormals flush;
  const Sweep sweep{model, tables, row, state};
  Buffer& counts = state.counts;
  const std::int64_t durations = model.dims.max_duration * sweep.stride;
  if (out.want_duration) {
    counts.assign(durations, 0.0);
    out.duration.assign(durations, 0.0);
  }
  state.cover.assign(sweep.stride, 0.0);
  for (std::int64_t s = row.length - 1; s >= 0; --s) {
    advance(sweep, state.backward, s);
    collect_posteriors(sweep, s, state.cover.data(), out);
    if (out.want_duration) collect_durations(sweep, s, counts.data(), out.duration.data());
  }
  if (out.want_duration) {
    for (std::int64_t i = 0; i < durations; ++i) out.duration[i] += counts[i] * tables.duration[i];
  }
  if (out.want_transition) collect_transitions(sweep, out);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {

HWY_EXPORT(run_forward);
HWY_EXPORT(run_backward);

/// Sizes a pass and sets its first boundary.
void begin_pass(const Model& model, const Row& row, const Buffer& boundary, std::int64_t first,
                Pass& pass, Window& window) {
  const Dims& dims = model.dims;
  const std::int64_t size = (row.length + 1) * dims.stride;
  for (Buffer* buffer : {&pass.linked, &pass.value, &pass.linear, &window.rows})
    buffer->resize(size);
  if (pass.enter != nullptr) pass.source.resize(size);
  pass.base.assign(static_cast<std::size_t>(row.length) + 1, 0.0);
  window.reference.assign(dims.stride, 0.0);
  window.sum.resize(dims.stride);
  window.padding.assign(dims.stride, 1.0);
  std::fill_n(window.padding.data(), dims.classes, 0.0);
  std::copy_n(boundary.data(), dims.stride, pass.linked.data() + first * dims.stride);
  add_enter(pass, first, dims.stride);
}

}  // namespace

double factored_forward(const Model& model, const FactoredTables& tables, const Row& row,
                        FactoredState& state) {
  SEGFUSE_CHECK(row.length > 0, "an empty row has no pass");
  state.scratch.resize(model.dims.stride);
  state.forward.step = -1;
  state.forward.enter = row.start;
  state.forward.leave = row.end;
  begin_pass(model, row, model.initial, 0, state.forward, state.window);
  HWY_DYNAMIC_DISPATCH(run_forward)(model, tables, row, state);
  const double* last = state.forward.value.data() + row.length * model.dims.stride;
  double max = kNegInf;
  for (std::int64_t c = 0; c < model.dims.classes; ++c)
    max = std::max(max, last[c] + model.final[c]);
  if (max == kNegInf) return kNegInf;
  double sum = 0.0;
  for (std::int64_t c = 0; c < model.dims.classes; ++c)
    sum += std::exp(last[c] + model.final[c] - max);
  state.log_rest = max + std::log(sum);
  return state.forward.base[row.length] + state.log_rest;
}

void factored_expectations(const Model& model, const FactoredTables& tables, const Row& row,
                           FactoredState& state, RowExpectations& out) {
  state.backward.step = 1;
  state.backward.enter = row.end;
  state.backward.leave = row.start;
  begin_pass(model, row, model.final, row.length, state.backward, state.window);
  for (Buffer* frames : {&out.label, &out.start, &out.end})
    frames->resize(row.length * model.dims.stride);
  HWY_DYNAMIC_DISPATCH(run_backward)(model, tables, row, state, out);
}

}  // namespace segfuse::semicrf
#endif
