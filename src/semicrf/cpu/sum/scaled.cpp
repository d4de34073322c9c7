#include "semicrf/cpu/sum/scaled.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "base/code/float_mode.h"
#include "base/code/simd_targets.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/cpu/sum/scaled.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>
#include "semicrf/cpu/sum/scaled_by_duration_backward-inl.h"
#include "semicrf/cpu/sum/scaled_by_duration_forward-inl.h"
#include "semicrf/cpu/sum/scaled_counts-inl.h"
#include "semicrf/cpu/sum/scaled_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

Strand strand_of(const ScaledRow& x, ScaledPass& pass) {
  const Dims& dims = x.model->dims;
  const std::int64_t longest = std::min(dims.max_duration, x.row.length);
  return {x,
          *x.tables,
          x.state->frames,
          pass,
          x.state->window,
          x.state->pending,
          x.state->duration_counts,
          x.row.emission,
          dims.stride,
          dims.classes,
          longest,
          x.row.length,
          pass.step < 0 ? 0 : x.row.length};
}

/// Boundaries for a strand to go over.
struct Course {
  std::int64_t steps;
  bool closed;  ///< the last of them links to nothing
};

/// Calls finish(i) after each boundary of the i-th strand. Strands go in lockstep as long as both
/// last.
template <class Finish>
void run_lockstep(Strand* const* strands, const Course* course, std::int64_t n,
                  const Finish& finish) {
  std::int64_t together = 0;
  if (n == 2) {
    const std::int64_t common = std::min(course[0].steps, course[1].steps) - 1;
    for (; together < common; ++together) {
      advance<2>(strands, false);
      finish(0);
      finish(1);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t done = together; done < course[i].steps; ++done) {
      advance<1>(strands + i, course[i].closed && done + 1 == course[i].steps);
      finish(i);
    }
  }
}

void prepare_factors(ScaledRow& x) {
  const auto [classes, stride] = std::pair(x.model->dims.classes, x.model->dims.stride);
  FrameFactors& frames = x.state->frames;
  const std::int64_t size = x.row.length * stride;
  x.ok &= prepare_frames(x.row, classes, stride, 0, x.row.length, frames);
  if (x.row.start != nullptr)
    x.ok &= prepare_boundary_scores(x.row.start, size, frames.start.data());
  if (x.row.end != nullptr) x.ok &= prepare_boundary_scores(x.row.end, size, frames.end.data());
}

void forward_rows(ScaledRow* const* rows, std::int64_t n) {
  const FloatMode mode(Denormals::kFlushed);
  Strand first = strand_of(*rows[0], rows[0]->state->forward);
  Strand second = strand_of(*rows[n - 1], rows[n - 1]->state->forward);
  Strand* strands[] = {&first, &second};
  Course course[kLockstep];
  for (std::int64_t i = 0; i < n; ++i) {
    ScaledRow& x = *rows[i];
    const RowPart& part = x.part;
    if (!part.resume) prepare_factors(x);
    if (part.resume) strands[i]->at = part.begin;
    const bool closed = part.origin + x.row.length == part.total && !part.guess_end;
    course[i] = {(closed ? x.row.length : part.end) - strands[i]->at, closed};
    if (x.model->dims.by_duration) {
      forward_by_duration(x, *strands[i]);
    } else if (!part.resume && !part.guess_start) {
      enter_first(*strands[i]);
    }
  }
  if (rows[0]->model->dims.by_duration) return;
  run_lockstep(strands, course, n, [&](std::int64_t i) {
    const ScaledRow& x = *rows[i];
    if (x.part.guess_start && strands[i]->at == x.part.begin)
      window_at_boundary(x.state->window, strands[i]->longest, strands[i]->stride,
                         x.state->incoming);
  });
}

void backward_rows(ScaledRow* const* rows, std::int64_t n) {
  const FloatMode mode(Denormals::kFlushed);
  Strand first = strand_of(*rows[0], rows[0]->state->backward);
  Strand second = strand_of(*rows[n - 1], rows[n - 1]->state->backward);
  Strand* strands[] = {&first, &second};
  if (rows[0]->model->dims.by_duration) {
    for (std::int64_t i = 0; i < n; ++i) backward_by_duration(*rows[i], *strands[i]);
    return;
  }
  Course course[kLockstep];
  double scale_next[kLockstep];
  for (std::int64_t i = 0; i < n; ++i) {
    ScaledRow& x = *rows[i];
    const RowPart& part = x.part;
    if (part.resume) {
      strands[i]->at = part.end;
      begin_counts(x);
    } else if (!part.guess_end) {
      enter_first(*strands[i]);
    }
    course[i] = {strands[i]->at - part.begin, part.origin + part.begin == 0};
    if (strands[i]->at == part.end) scale_next[i] = scale_of(x, part.end);
  }
  run_lockstep(strands, course, n, [&](std::int64_t i) HWY_ATTR {
    ScaledRow& x = *rows[i];
    const std::int64_t s = strands[i]->at;
    if (s > x.part.end) return;
    if (s == x.part.end) {
      window_at_boundary(x.state->window, strands[i]->longest, strands[i]->stride,
                         x.state->incoming);
      begin_counts(x);
      scale_next[i] = scale_of(x, s);
      return;
    }
    const double scale = scale_of(x, s);
    collect_posteriors(x, s, scale, scale_next[i]);
    scale_next[i] = scale;
    if (x.out->want_duration) x.ok &= collect_durations(*strands[i], x, scale);
    if (x.out->want_transition) collect_transitions(x, s, scale);
  });
  for (std::int64_t i = 0; i < n; ++i)
    if (rows[i]->out->want_duration) flush_pending(*strands[i]);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

/// out = exp(scores) row by row, padding 0; false when a finite score is out of range.
bool factors_of(const double* scores, std::int64_t rows, std::int64_t classes, std::int64_t stride,
                double* out) {
  bool good = true;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < stride; ++c) {
      const double score = c < classes ? scores[i * stride + c] : kNegInf;
      good &= score == kNegInf || (score >= kSmallestFactor && score <= kLargestFactor);
      out[i * stride + c] = std::exp(score);
    }
  }
  return good;
}

/// exp(transition + duration) by slice; false when a finite sum is out of range.
bool slice_factors(const Model& model, AlignedDoubles& out) {
  const Dims& dims = model.dims;
  bool good = true;
  for (std::int64_t k = 0; k < dims.max_duration; ++k) {
    for (std::int64_t i = 0; i < dims.classes * dims.stride; ++i) {
      const double score =
          model.transition_slice(k)[i] + model.duration[k * dims.stride + i % dims.stride];
      const bool padding = i % dims.stride >= dims.classes;
      good &= padding || score == kNegInf || (score >= kSmallestSlice && score <= kLargestFactor);
      out[k * dims.classes * dims.stride + i] = padding ? 0.0 : std::exp(score);
    }
  }
  return good;
}

/// What ScaledTables::enough says, for one class whose segments have one of several columns of
/// factors by duration, `next` apart. A newer entry stands for an older one at every later boundary
/// only if all durations below the longest possible one are possible.
double enough_for(const double* factors, std::int64_t columns, std::int64_t next,
                  std::int64_t longest, std::int64_t hop) {
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::int64_t column = 0; column < columns; ++column, factors += next) {
    bool ended = false;
    for (std::int64_t k = 0; k < longest; ++k) {
      const double factor = factors[k * hop];
      if (factor > 0.0 && ended) return std::numeric_limits<double>::infinity();
      if (factor > 0.0) smallest = std::min(smallest, factor);
      largest = std::max(largest, factor);
      ended = factor == 0.0;
    }
  }
  if (largest == 0.0) return 0.0;
  constexpr double kNegligible = 0x1p80;
  return kSmallestEntry * kNegligible * (largest / smallest) *
         static_cast<double>(longest * columns);
}

/// Sizes a pass and its window and sets the first boundary.
void begin_pass(const ScaledRow& x, ScaledPass& pass, const AlignedDoubles& boundary) {
  const Dims& dims = x.model->dims;
  const std::int64_t length = x.row.length;
  const std::int64_t boundaries = pass.mask < 0 ? length + 1 : pass.mask + 1;
  const std::int64_t size = boundaries * dims.stride;
  pass.value.resize(size);
  pass.linked.resize(size);
  pass.exponent.resize(static_cast<std::size_t>(length) + 1);
  const std::int64_t first = pass.step < 0 ? 0 : length;
  pass.exponent[static_cast<std::size_t>(first)] = 0;
  std::copy_n(boundary.data(), dims.stride, pass.linked.data() + pass.row(first) * dims.stride);
  std::fill_n(pass.value.data() + pass.row(first) * dims.stride, dims.stride, 0.0);
  ScaledWindow& window = x.state->window;
  window.kept =
      std::min(dims.max_duration, length) + (dims.by_duration ? kCountTile + 1 : kSumTile);
  window.capacity = 2 * window.kept + 64;
  window.entries.resize(window.capacity * dims.stride);
  window.reference.assign(dims.stride, 1.0);
  window.inverse.assign(dims.stride, 1.0);
  window.ahead.resize(kSumTile * dims.stride);
  window.dropped.assign(dims.by_duration && pass.step < 0 ? dims.stride : 0, 0.0);
  window.extremes.assign(4 * kLanes, 0.0);
  for (std::int64_t which : {0, 2})
    std::fill_n(window.extremes.data() + which * kLanes, kLanes, kLargestEntry);
  window.newest = window.steps = window.exponent = window.lag = 0;
  window.tile_done = kSumTile;
  window.failed = false;
  if (!(pass.step < 0 ? x.part.guess_start : x.part.guess_end)) return;
  // All labels and ages alike, which is closer to what is typical than a segment that begins here.
  const std::int64_t longest = std::min(dims.max_duration, length);
  window.newest = window.steps = longest - 1;
  for (std::int64_t k = 0; k < longest; ++k)
    for (std::int64_t c = 0; c < dims.stride; ++c)
      window.entries[k * dims.stride + c] = c < dims.classes ? 1.0 : 0.0;
}

/// Whether all values and entries stayed inside their bounds. A NaN has the largest bits.
bool kept_bounds(const ScaledRow& x) {
  const ScaledWindow& window = x.state->window;
  const double smallest = x.model->dims.by_duration ? kSmallestValueBySlice : kSmallestValue;
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  const double* e = window.extremes.data();
  bool good = !window.failed;
  for (std::int64_t i = 0; i < kLanes; ++i) {
    good &= e[i] >= smallest;
    good &= bits(e[kLanes + i]) <= bits(kLargestValue);
    good &= e[2 * kLanes + i] >= kSmallestEntry;
    good &= bits(e[3 * kLanes + i]) <= bits(kLargestEntry);
  }
  return good;
}

/// out = counts * factors.
void multiply(const AlignedDoubles& counts, const AlignedDoubles& factors, std::int64_t size,
              AlignedDoubles& out) {
  out.resize(size);
  for (std::int64_t i = 0; i < size; ++i) out[i] = counts[i] * factors[i];
}

/// Counts of transitions by duration, and of durations from them; first segments are in
/// duration_counts already.
void finish_counts_by_duration(ScaledRow& x) {
  const Dims& dims = x.model->dims;
  const auto [classes, stride] = std::pair(dims.classes, dims.stride);
  RowExpectations& out = *x.out;
  if (!out.want_transition && !out.want_duration) return;
  if (out.want_transition) out.transition.resize(dims.max_duration * classes * stride);
  if (out.want_duration) out.duration.resize(dims.max_duration * stride);
  for (std::int64_t k = 0; k < dims.max_duration; ++k) {
    double* sums = x.state->duration_counts.data() + k * stride;
    for (std::int64_t from = 0; from < classes; ++from) {
      const double* counts = x.state->transition_counts.data() + (k * stride + from) * stride;
      const std::int64_t at = (k * classes + from) * stride;
      for (std::int64_t c = 0; c < stride; ++c) {
        const double count = counts[c] * x.tables->into[at + c];
        if (out.want_transition) out.transition[at + c] = count;
        sums[c] += count;
        x.ok &= count <= std::numeric_limits<double>::max();  // neither inf nor NaN
      }
    }
    if (out.want_duration) std::copy_n(sums, stride, out.duration.data() + k * stride);
  }
}

void finish_forward(ScaledRow& x) {
  ScaledState& state = *x.state;
  const Dims& dims = x.model->dims;
  x.ok &= kept_bounds(x);
  if (x.part.guess_end) {
    window_at_boundary(state.window, std::min(dims.max_duration, x.row.length), dims.stride,
                       state.outgoing);
    return;
  }
  const double* last = state.forward.value.data() + x.row.length * dims.stride;
  double sum = 0.0;
  for (std::int64_t c = 0; c < dims.classes; ++c) sum += last[c] * x.tables->final[c];
  state.rest = sum;
  state.rest_exponent = state.forward.exponent[x.row.length];
  x.log_partition = std::log(sum) + static_cast<double>(state.rest_exponent) * std::numbers::ln2;
}

/// The sum over everything before a segment, times its duration factor.
double entry_of(const ScaledRow& x, std::int64_t start, std::int64_t duration, std::int64_t label) {
  const Dims& dims = x.model->dims;
  const ScaledTables& tables = *x.tables;
  const double factor = tables.duration[(duration - 1) * dims.stride + label];
  if (start == 0) return tables.initial[label] * factor;
  if (!dims.by_duration) return x.state->forward.linked[start * dims.stride + label] * factor;
  double sum = 0.0;
  for (std::int64_t from = 0; from < dims.classes; ++from)
    sum += x.state->forward.value[start * dims.stride + from] *
           tables.into[((duration - 1) * dims.classes + from) * dims.stride + label];
  return sum;
}

}  // namespace

void make_scaled_tables(const Model& model, ScaledTables& tables) {
  const Dims& dims = model.dims;
  const auto [classes, stride, longest] = std::tuple(dims.classes, dims.stride, dims.max_duration);
  const std::int64_t slice = classes * stride;
  tables.duration.assign((longest + kSumTile) * stride, 0.0);
  tables.into.resize(dims.slices() * slice);
  tables.out_of.assign(dims.slices() * slice, 0.0);
  tables.initial.resize(stride);
  tables.final.resize(stride);
  tables.enough.assign(stride, 0.0);
  bool good = factors_of(model.duration.data(), longest, classes, stride, tables.duration.data());
  good &= factors_of(model.initial.data(), 1, classes, stride, tables.initial.data());
  good &= factors_of(model.final.data(), 1, classes, stride, tables.final.data());
  if (dims.by_duration) {
    good &= slice_factors(model, tables.into);
  } else {
    good &= factors_of(model.transition.data(), classes, classes, stride, tables.into.data());
  }
  for (std::int64_t k = 0; k < dims.slices(); ++k)
    for (std::int64_t from = 0; from < classes; ++from)
      for (std::int64_t to = 0; to < classes; ++to)
        tables.out_of[k * slice + to * stride + from] = tables.into[k * slice + from * stride + to];
  for (std::int64_t c = 0; c < classes; ++c)
    tables.enough[c] = dims.by_duration
                           ? enough_for(tables.into.data() + c, classes, stride, longest, slice)
                           : enough_for(tables.duration.data() + c, 1, 0, longest, stride);
  tables.in_range = good;
}

void window_at_boundary(const ScaledWindow& window, std::int64_t longest, std::int64_t stride,
                        AlignedDoubles& out) {
  out.resize(longest * stride);
  const std::int64_t held = std::min(longest, window.steps + 1);
  for (std::int64_t k = 0; k < longest; ++k) {
    const double* entry = window.entries.data() + (window.newest - k) * stride;
    for (std::int64_t c = 0; c < stride; ++c)
      out[k * stride + c] = k < held ? entry[c] * window.reference[c] : 0.0;
  }
}

void scaled_forward(ScaledRow* const* rows, std::int64_t n) {
  SEGFUSE_CHECK(n >= 1 && n <= kLockstep, "rows in lockstep");
  for (std::int64_t i = 0; i < n; ++i) {
    ScaledRow& x = *rows[i];
    if (x.part.resume) continue;
    const std::int64_t length = x.row.length;
    const std::int64_t size = length * x.model->dims.stride;
    FrameFactors& frames = x.state->frames;
    frames.emission.resize(size);
    if (x.row.start != nullptr) frames.start.resize(size);
    if (x.row.end != nullptr) frames.end.resize(size);
    frames.exponent.resize(static_cast<std::size_t>(length));
    frames.forbids.resize(static_cast<std::size_t>(length));
    ScaledPass& pass = x.state->forward;
    pass.step = -1;
    pass.enter = x.row.start != nullptr ? frames.start.data() : nullptr;
    pass.leave = x.row.end != nullptr ? frames.end.data() : nullptr;
    begin_pass(x, pass, x.tables->initial);
    x.state->pending.count = 0;
    if (x.model->dims.by_duration) x.state->products.resize(9 * x.model->dims.stride);
    x.ok = x.tables->in_range;
  }
  HWY_DYNAMIC_DISPATCH(forward_rows)(rows, n);
  for (std::int64_t i = 0; i < n; ++i) finish_forward(*rows[i]);
}

void scaled_expectations(ScaledRow* const* rows, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    ScaledRow& x = *rows[i];
    const Dims& dims = x.model->dims;
    ScaledState& state = *x.state;
    ScaledPass& pass = state.backward;
    pass.step = 1;
    pass.mask = x.keep_backward ? ~std::int64_t{0} : kKeptBoundaries - 1;
    pass.enter = x.row.end != nullptr ? state.frames.end.data() : nullptr;
    pass.leave = x.row.start != nullptr ? state.frames.start.data() : nullptr;
    if (!x.part.resume) begin_pass(x, pass, x.tables->final);
    state.pending.count = 0;
    state.cover.assign(dims.stride, 0.0);
    state.pending.weights.resize(kCountTile * dims.stride);
    state.left.resize(kCountTile * dims.stride);
    if (x.out->want_duration) state.duration_counts.assign(dims.max_duration * dims.stride, 0.0);
    if (x.out->want_transition || (x.out->want_duration && dims.by_duration))
      state.transition_counts.assign(dims.slices() * dims.stride * dims.stride, 0.0);
    if (dims.by_duration) {
      state.duration_counts.assign(dims.max_duration * dims.stride, 0.0);
      state.segments.resize(kCountTile * dims.stride);
      state.tile_done = state.taken_out = state.last_lag = 0;
    }
    if (x.part.total == x.row.length)  // else another made room for the whole row
      for (AlignedDoubles* frames : {&x.out->label, &x.out->start, &x.out->end})
        frames->resize(x.row.length * dims.stride);
  }
  HWY_DYNAMIC_DISPATCH(backward_rows)(rows, n);
  for (std::int64_t i = 0; i < n; ++i) {
    ScaledRow& x = *rows[i];
    const Dims& dims = x.model->dims;
    x.ok &= kept_bounds(x);
    if (dims.by_duration) {
      finish_counts_by_duration(x);
      continue;
    }
    if (x.part.total != x.row.length) continue;  // the parts' counts are added up first
    if (x.out->want_duration)
      multiply(x.state->duration_counts, x.tables->duration, dims.max_duration * dims.stride,
               x.out->duration);
    if (x.out->want_transition)
      multiply(x.state->transition_counts, x.tables->into, dims.classes * dims.stride,
               x.out->transition);
  }
}

double scaled_segment(const ScaledRow& x, std::int64_t start, std::int64_t duration,
                      std::int64_t label) {
  const Dims& dims = x.model->dims;
  const ScaledState& state = *x.state;
  const std::int64_t end = start + duration;
  double content = 0.0;
  for (std::int64_t t = start; t < end; ++t) content += x.row.emission[t * dims.stride + label];
  if (x.row.start != nullptr) content += x.row.start[start * dims.stride + label];
  if (x.row.end != nullptr) content += x.row.end[(end - 1) * dims.stride + label];
  const std::int64_t exponent =
      state.forward.exponent[start] + state.backward.exponent[end] - state.rest_exponent;
  return std::log(entry_of(x, start, duration, label)) +
         std::log(state.backward.linked[end * dims.stride + label]) - std::log(state.rest) +
         (static_cast<double>(exponent) * std::numbers::ln2 + content);
}

}  // namespace segfuse::semicrf
#endif
