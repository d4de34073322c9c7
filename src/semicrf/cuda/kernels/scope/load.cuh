#pragma once
// Scores into dense doubles within a scope, and counts into the caller's gradients: what depends on
// the stored type.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

template <class T>
DEVICE T known_at(const Strided& a, long long i, long long j, long long k) {
  return static_cast<const T*>(a.data)[i * a.stride[0] + j * a.stride[1] + k * a.stride[2]];
}

/// Whether the constraints let a frame have label c.
DEVICE bool allows_label(const Known& x, int row, int t, int c) {
  if (x.allowed.data != nullptr && known_at<unsigned char>(x.allowed, row, t, c) == 0) return false;
  if (x.label.data == nullptr) return true;
  const int label = known_at<int>(x.label, row, t, 0);
  return label < 0 || label == c;
}

DEVICE bool allows_frames(const Known& x, int frames, int c) {
  return (x.min_duration.data == nullptr || frames >= known_at<int>(x.min_duration, c, 0, 0)) &&
         (x.max_duration.data == nullptr || frames <= known_at<int>(x.max_duration, c, 0, 0));
}

/// A score that is checked; -inf where the constraints forbid it.
DEVICE double checked_score(const ScopeCall& call, const Strided& scores, long long i, long long j,
                            long long k, Fault fault, long long index) {
  const double score = load(scores, i, j, k);
  if (is_nan_or_inf_above(score)) report_fault(call, fault, index);
  return score;
}

/// Known labels and boundaries of a frame are in range.
DEVICE void check_known(const ScopeCall& call, int row, int t) {
  const long long frame = static_cast<long long>(row) * call.sizes.frames + t;
  const Known& x = call.known;
  if (x.label.data != nullptr && known_at<int>(x.label, row, t, 0) >= call.sizes.classes)
    report_fault(call, kFaultKnownLabel, frame);
  if (x.boundary.data == nullptr) return;
  const int boundary = known_at<signed char>(x.boundary, row, t, 0);
  if (boundary < -1 || boundary > 1) report_fault(call, kFaultKnownBoundary, frame);
}

/// One warp a frame; blockDim (32, warps), grid (frames / warps, B, models).
KERNEL load_frames(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int which = blockIdx.z;
  const int t = blockIdx.x * blockDim.y + threadIdx.y;
  const int classes = call.sizes.classes;
  if (t >= length_of(call.lengths[which], call.sizes.frames, row)) return;
  const Scores& from = call.scores[which];
  const Loaded& to = call.loaded[which];
  const bool scoped = which == 0;
  const long long frame = static_cast<long long>(row) * call.sizes.frames + t;
  int boundary = -1;
  if (scoped && call.known.boundary.data != nullptr)
    boundary = known_at<signed char>(call.known.boundary, row, t, 0);
  if (scoped && threadIdx.x == 0) check_known(call, row, t);
  if (to.forced != nullptr && threadIdx.x == 0) to.forced[frame] = boundary == 1 ? 1 : 0;
  for (int c = threadIdx.x; c < classes; c += 32) {
    const long long i = frame * classes + c;
    const double emission = checked_score(call, from.emission, row, t, c, kFaultEmission, i);
    to.emission[i] = scoped && !allows_label(call.known, row, t, c) ? minus_infinity() : emission;
    if (to.start != nullptr) {
      const double start = from.start.data == nullptr
                               ? 0.0
                               : checked_score(call, from.start, row, t, c, kFaultStart, i);
      to.start[i] = boundary == 0 ? minus_infinity() : start;
    }
    if (to.end != nullptr) to.end[i] = checked_score(call, from.end, row, t, c, kFaultEnd, i);
  }
}

/// The tail of a label, checked.
DEVICE double load_tail(const ScopeCall& call, int which, int c) {
  const Known& x = call.known;
  const double score = known_at<double>(x.tail, c, 0, 0);
  if (is_nan_or_inf_above(score)) report_fault(call, kFaultTail, c);
  if (which != 0) return score;
  const Strided* limits[2] = {&x.min_duration, &x.max_duration};
  for (const Strided* limit : limits)
    if (limit->data != nullptr && known_at<int>(*limit, c, 0, 0) > call.sizes.max_duration)
      report_fault(call, kFaultLimit, c);
  return x.max_duration.data != nullptr ? minus_infinity() : score;
}

/// Scores that rows share, and lengths; grid (any, models), grid-stride.
KERNEL load_shared(const __grid_constant__ ScopeCall call) {
  const int which = blockIdx.y;
  const int classes = call.sizes.classes;
  const Scores& from = call.scores[which];
  const Loaded& to = call.loaded[which];
  const bool scoped = which == 0;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long pairs = all_transitions(call.sizes);
  for (long long i = first; i < pairs; i += step) {
    const long long k = i / classes / classes;
    const long long before = i / classes % classes;
    const double score =
        checked_score(call, from.transition, k, before, i % classes, kFaultTransition, i);
    const bool allowed =
        !scoped || call.known.transition.data == nullptr ||
        known_at<unsigned char>(call.known.transition, before, i % classes, 0) != 0;
    to.transition[i] = allowed ? score : minus_infinity();
  }
  const long long durations = static_cast<long long>(call.sizes.max_duration) * classes;
  for (long long i = first; i < durations; i += step) {
    const int c = static_cast<int>(i % classes);
    const int k = static_cast<int>(i / classes);
    const double score = checked_score(call, from.duration, k, c, 0, kFaultDuration, i);
    to.duration[i] = scoped && !allows_frames(call.known, k + 1, c) ? minus_infinity() : score;
  }
  for (long long c = first; c < classes; c += step) {
    to.initial[c] = from.initial.data == nullptr
                        ? 0.0
                        : checked_score(call, from.initial, c, 0, 0, kFaultInitial, c);
    to.final[c] =
        from.final.data == nullptr ? 0.0 : checked_score(call, from.final, c, 0, 0, kFaultFinal, c);
    if (to.tail != nullptr) to.tail[c] = load_tail(call, which, static_cast<int>(c));
  }
  for (long long b = first; b < call.sizes.batch; b += step) {
    const RowLengths& lengths = call.lengths[which];
    const int row = static_cast<int>(b);
    const int length = length_of(lengths, call.sizes.frames, row);
    if ((lengths.wide != nullptr && lengths.wide[row * lengths.stride] != length) ||
        (lengths.narrow != nullptr && lengths.narrow[row * lengths.stride] != length))
      report_fault(call, kFaultLength, b);
    if (which == 1 && length != length_of(call.lengths[0], call.sizes.frames, row))
      report_fault(call, kFaultLengths, b);
  }
}

/// A count of a row: that of the first model, or the second minus the first.
DEVICE double amount(const ScopeCall& call, double* RowCounts::* counts, long long i) {
  const double first = (call.counts[0].*counts)[i];
  return call.models == 1 ? first : (call.counts[1].*counts)[i] - first;
}

/// Frames' gradients, or posteriors; blockDim (32, warps), grid (frames / warps, B).
KERNEL store_frames(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int t = blockIdx.x * blockDim.y + threadIdx.y;
  const int classes = call.sizes.classes;
  if (t >= call.sizes.frames) return;
  const double weight = call.row_weight[row];
  const bool inside = weight != 0.0 && t < length_of(call.lengths[0], call.sizes.frames, row);
  const long long frame = (static_cast<long long>(row) * call.sizes.frames + t) * classes;
  const auto put_count = [&](const StridedOut& out, double* RowCounts::* counts, int c) {
    store(out, row, t, c, inside ? weight * amount(call, counts, frame + c) : 0.0);
  };
  double boundary = 0.0;
  for (int c = threadIdx.x; c < classes; c += 32) {
    put_count(call.gradients.emission, &RowCounts::label, c);
    put_count(call.gradients.start, &RowCounts::start, c);
    put_count(call.gradients.end, &RowCounts::end, c);
    if (inside) boundary += call.counts[0].start[frame + c];
  }
  boundary = warp_sum(boundary);
  if (threadIdx.x == 0) store(call.gradients.boundary, row, t, 0, boundary);
}

/// Sum over rows, in row order, of weighted counts; `size` elements a row.
DEVICE double over_rows(const ScopeCall& call, double* RowCounts::* counts, long long size,
                        long long i) {
  double sum = 0.0;
  for (int row = 0; row < call.sizes.batch; ++row) {
    const double weight = call.row_weight[row];
    if (weight != 0.0) sum += weight * amount(call, counts, row * size + i);
  }
  return sum;
}

/// The same for the counts of rows' first or last frames.
DEVICE double over_row_ends(const ScopeCall& call, bool first, int c) {
  double sum = 0.0;
  for (int row = 0; row < call.sizes.batch; ++row) {
    const double weight = call.row_weight[row];
    if (weight == 0.0) continue;
    const int t = first ? 0 : length_of(call.lengths[0], call.sizes.frames, row) - 1;
    const long long i = (static_cast<long long>(row) * call.sizes.frames + t) * call.sizes.classes;
    sum += weight * amount(call, first ? &RowCounts::start : &RowCounts::end, i + c);
  }
  return sum;
}

/// Gradients of what rows share; grid-stride.
KERNEL store_shared(const __grid_constant__ ScopeCall call) {
  const int classes = call.sizes.classes;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long pairs = all_transitions(call.sizes);
  for (long long i = first; call.gradients.transition.data != nullptr && i < pairs; i += step)
    store(call.gradients.transition, i / classes / classes, i / classes % classes, i % classes,
          over_rows(call, &RowCounts::transition, pairs, i));
  const long long durations = static_cast<long long>(call.sizes.max_duration) * classes;
  for (long long i = first; call.gradients.duration.data != nullptr && i < durations; i += step)
    store(call.gradients.duration, i / classes, i % classes, 0,
          over_rows(call, &RowCounts::duration, durations, i));
  for (long long i = first; i < classes; i += step) {
    const int c = static_cast<int>(i);
    if (call.gradients.initial.data != nullptr)
      store(call.gradients.initial, c, 0, 0, over_row_ends(call, true, c));
    if (call.gradients.final.data != nullptr)
      store(call.gradients.final, c, 0, 0, over_row_ends(call, false, c));
    if (call.tail_gradient.data != nullptr)
      call.tail_gradient.data[c * call.tail_gradient.stride] =
          call.loaded[0].tail == nullptr ? 0.0 : over_rows(call, &RowCounts::tail, classes, c);
  }
}

/// Durations of each row; grid (K C / blockDim, B).
KERNEL store_row_durations(const __grid_constant__ ScopeCall call) {
  const long long size = static_cast<long long>(call.sizes.max_duration) * call.sizes.classes;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = blockIdx.y;
  if (i >= size) return;
  store(call.gradients.row_duration, row, i / call.sizes.classes, i % call.sizes.classes,
        call.row_weight[row] == 0.0 ? 0.0 : call.counts[0].duration[row * size + i]);
}

/// Boundaries within a tolerance; grid (T / blockDim, B).
KERNEL store_within(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= call.sizes.frames) return;
  const bool inside = t < length_of(call.lengths[0], call.sizes.frames, row) &&
                      call.lattice[0].log_partition[row] > minus_infinity();
  const double p =
      inside ? call.marginals.within[static_cast<long long>(row) * call.sizes.frames + t] : 0.0;
  store(call.marginals.near, row, t, 0, p);
}

/// The potentials again with -inf where constraints forbid, for the engine; grid-stride.
KERNEL copy_constrained(const __grid_constant__ ScopeCall call) {
  const Constrained& to = call.constrained;
  const int classes = call.sizes.classes;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long frames = static_cast<long long>(call.sizes.batch) * call.sizes.frames;
  const INPUT none = from_double(minus_infinity());
  for (long long i = first; to.emission != nullptr && i < frames * classes; i += step) {
    const int row = static_cast<int>(i / classes / call.sizes.frames);
    const int t = static_cast<int>(i / classes % call.sizes.frames);
    const int c = static_cast<int>(i % classes);
    if (t >= length_of(call.lengths[0], call.sizes.frames, row)) continue;
    if (c == 0) check_known(call, row, t);
    static_cast<INPUT*>(to.emission)[i] =
        allows_label(call.known, row, t, c) ? from_double(load(call.scores[0].emission, row, t, c))
                                            : none;
  }
  for (long long i = first; to.transition != nullptr && i < all_transitions(call.sizes);
       i += step) {
    const long long from = i / classes % classes;
    const bool allowed = known_at<unsigned char>(call.known.transition, from, i % classes, 0) != 0;
    static_cast<INPUT*>(to.transition)[i] =
        allowed
            ? from_double(load(call.scores[0].transition, i / classes / classes, from, i % classes))
            : none;
  }
  const long long durations = static_cast<long long>(call.sizes.max_duration) * classes;
  for (long long i = first; to.duration != nullptr && i < durations; i += step) {
    const int k = static_cast<int>(i / classes);
    const int c = static_cast<int>(i % classes);
    static_cast<INPUT*>(to.duration)[i] = allows_frames(call.known, k + 1, c)
                                              ? from_double(load(call.scores[0].duration, k, c, 0))
                                              : none;
  }
}

/// Takes a copy's elements off a gradient; grid-stride.
DEVICE void subtract_copy(const StridedOut& from, const void* copy, long long rows,
                          long long columns, long long depth) {
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = first; from.data != nullptr && i < rows * columns * depth; i += step) {
    const long long at = i / columns / depth * from.stride[0] +
                         i / depth % columns * from.stride[1] + i % depth * from.stride[2];
    INPUT& x = static_cast<INPUT*>(from.data)[at];
    x = from_double(to_double(x) - to_double(static_cast<const INPUT*>(copy)[i]));
  }
}

KERNEL subtract_gradients(const __grid_constant__ ScopeCall call) {
  const GradientOutputs& g = call.gradients;
  const GradientCopies& x = call.copies;
  const Sizes& n = call.sizes;
  const long long slices = n.by_duration != 0 ? n.max_duration : 1;
  subtract_copy(g.emission, x.emission, n.batch, n.frames, n.classes);
  subtract_copy(g.start, x.start, n.batch, n.frames, n.classes);
  subtract_copy(g.end, x.end, n.batch, n.frames, n.classes);
  subtract_copy(g.transition, x.transition, slices, n.classes, n.classes);
  subtract_copy(g.duration, x.duration, n.max_duration, n.classes, 1);
  subtract_copy(g.initial, x.initial, n.classes, 1, 1);
  subtract_copy(g.final, x.final, n.classes, 1, 1);
}

}  // namespace segfuse::semicrf::gpu
