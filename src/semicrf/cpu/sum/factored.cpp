#include "semicrf/cpu/sum/factored.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/code/float_mode.h"
#include "base/code/simd_targets.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/cpu/sum/factored.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>
#include "semicrf/cpu/sum/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

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

/// Weights of the segments that start at s, into the tile; out of range they are counted in `exact`
/// at once. Weight, window entry and duration factor multiply to a probability.
void collect_durations(const Sweep& sweep, std::int64_t s, double* exact) {
  const Lanes d;
  const std::int64_t stride = sweep.stride;
  const Pass& f = sweep.state.forward;
  const Window& window = sweep.state.window;
  DurationTile& tile = sweep.state.tile;
  const Vec at_start = hn::Set(d, offset(sweep.state, s));
  if (tile.pending == 0) tile.first = s;
  double* weights = tile.weights.data() + tile.pending * stride;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec scale = hn::Add(hn::Load(d, window.reference.data() + v),
                              hn::Load(d, sweep.tables.duration_max.data() + v));
    Vec log_weight = hn::Add(hn::Load(d, f.sources().data() + s * stride + v), scale);
    log_weight = hn::Add(log_weight, at_start);
    const auto large = hn::Gt(log_weight, hn::Set(d, kLargestWeight));
    if (any(d, large)) {
      alignas(64) double lanes[kLanes];
      hn::Store(log_weight, d, lanes);
      for (std::int64_t c = v; c < v + static_cast<std::int64_t>(hn::Lanes(d)); ++c)
        if (lanes[c - v] > kLargestWeight)
          exact_durations(sweep.model, sweep.row, sweep.state, s, c, exact);
      log_weight = hn::IfThenElse(large, hn::Set(d, kNegInf), log_weight);
    }
    hn::Store(exp_of(d, log_weight), d, weights + v);
  }
  if (++tile.pending == kTile) count_durations(sweep);
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
  AlignedDoubles& counts = sweep.state.counts;
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
  const FloatMode mode(Denormals::kFlushed);
  const Sweep sweep{model, tables, row, state};
  for (std::int64_t t = 1; t <= row.length; ++t) advance(sweep, state.forward, t);
}

void run_backward(const Model& model, const FactoredTables& tables, const Row& row,
                  FactoredState& state, RowExpectations& out) {
  const FloatMode mode(Denormals::kFlushed);
  const Sweep sweep{model, tables, row, state};
  AlignedDoubles& counts = state.counts;
  const std::int64_t durations = model.dims.max_duration * sweep.stride;
  if (out.want_duration) {
    counts.assign(durations, 0.0);
    out.duration.assign(durations, 0.0);
  }
  state.cover.assign(sweep.stride, 0.0);
  for (std::int64_t s = row.length - 1; s >= 0; --s) {
    advance(sweep, state.backward, s);
    collect_posteriors(sweep, s, state.cover.data(), out);
    if (out.want_duration) collect_durations(sweep, s, out.duration.data());
  }
  if (out.want_duration) {
    count_durations(sweep);
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
void begin_pass(const Model& model, const Row& row, const AlignedDoubles& boundary,
                std::int64_t first, Pass& pass, Window& window) {
  const Dims& dims = model.dims;
  const std::int64_t size = (row.length + 1) * dims.stride;
  for (AlignedDoubles* buffer : {&pass.linked, &pass.value, &pass.linear, &window.rows})
    buffer->resize(size);
  if (pass.enter != nullptr) pass.source.resize(size);
  pass.base.assign(static_cast<std::size_t>(row.length) + 1, 0.0);
  window.reference.assign(dims.stride, 0.0);
  window.sum.resize(dims.stride);
  window.ahead.resize(kTile * dims.stride);
  window.tile_done = kTile;
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
  state.tile.weights.resize(kTile * model.dims.stride);
  state.tile.pending = 0;
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
  for (AlignedDoubles* frames : {&out.label, &out.start, &out.end})
    frames->resize(row.length * model.dims.stride);
  HWY_DYNAMIC_DISPATCH(run_backward)(model, tables, row, state, out);
}

}  // namespace segfuse::semicrf
#endif
