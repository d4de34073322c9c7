#pragma once
// Pointers back from the values that a pass in registers (scan.cuh) leaves at every boundary: the
// duration of the best segment that ends there, and the best label before one that starts there.
// All boundaries at once. Where sums are exact they are those of the pass; where sums round, a
// duration is the best one up to rounding. Ties fall as everywhere: the smallest duration, then the
// smallest label.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// The sources that the segments of one class may begin with, of one chunk of a row.
struct SourcesOfChunk {
  int row, c, length;
  int own;         ///< the chunk's first boundary, whose source the chunk before it found
  int lowest;      ///< boundaries below are out of reach
  long long ring;  ///< of sources up to `own`, as the chunk came in with them
  ScoreGrid grid;
  double reference;  ///< base of the results
  bool inexact;

  DEVICE_MEMBER SourcesOfChunk(const Call& call, int of_row, int frame, int label) {
    row = of_row;
    c = label;
    length = row_length(call, row);
    grid = grid_of_row(call, row);
    inexact = (call.lattice.flags[row] & kInexact) != 0;
    const bool whole = call.chunks.count == 1 || !grid.exact || inexact;
    const int chunk = whole ? 0 : frame / call.chunks.steps;
    own = chunk > 0 ? chunk * call.chunks.steps : -1;
    lowest = chunk > 0 ? own + 1 - call.sizes.max_duration : 0;
    ring = ring_of(call, row, chunk, 0);
    reference = call.best.base[base_at(call, frame + 1)];
  }

  /// What a segment that begins at boundary s comes in with, and the first frame of its content.
  DEVICE_MEMBER void at(const Call& call, int s, double* source, double* emission) const {
    *source = minus_infinity();
    *emission = 0.0;
    if (s < lowest || s >= length) return;
    if (s > own) return within(call, s, source, emission);
    const long long kept = ring + s - lowest;
    *source = call.best.ring[kept * call.sizes.classes + c] +
              (call.best.ring_base[kept] - reference) +
              grid(score_of(call.scores.start, row, s, c));
    *emission = grid(load(call.scores.emission, row, s, c));
  }

  /// Whether boundaries [first, last] are all the chunk's own.
  DEVICE_MEMBER bool has(int first, int last) const {
    return first >= lowest && first > own && last < length;
  }
  /// The same as at() of such a boundary.
  DEVICE_MEMBER void within(const Call& call, int s, double* source, double* emission) const {
    *source = call.lattice.gamma[at_boundary(call, row, s) + c] +
              (call.best.base[base_at(call, s)] - reference) +
              grid(score_of(call.scores.start, row, s, c));
    *emission = grid(load(call.scores.emission, row, s, c));
  }

  /// The score of the best segment that ends at boundary t, in the sums of at(), where these are
  /// exact; else nothing equals it.
  DEVICE_MEMBER double best_at(const Call& call, int t) const {
    if (!grid.exact || inexact) return __longlong_as_double(0x7ff8000000000000ll);
    return call.lattice.alpha[at_boundary(call, row, t) + c] +
           (call.best.base[base_at(call, t)] - reference) -
           grid(score_of(call.scores.end, row, t - 1, c));
  }

 private:
  DEVICE_MEMBER long long base_at(const Call& call, int boundary) const {
    return static_cast<long long>(row) * (call.sizes.frames + 1) + boundary;
  }
};

/// grid (ceil(ceil(T / kRecovered) C / blockDim), B). Durations are tried in ascending order until
/// one gives what the pass found.
KERNEL __launch_bounds__(128, 4) recover_durations(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  const long long place = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const int c = static_cast<int>(place % classes);
  const int length = row_length(call, row);
  if (place / classes * kRecovered >= length) return;
  const int frame = static_cast<int>(place / classes) * kRecovered;
  if (longest == 1) {
    for (int i = 1; i <= kRecovered && frame + i <= length; ++i)
      call.best.duration[at_boundary(call, row, frame + i) + c] = 1;
    return;
  }
  const SourcesOfChunk sources(call, row, frame, c);
  // source[i] and emission[i] are of boundary frame - least + i - (kRecovered - 1), at which a
  // segment of least + 1 + u frames begins that ends at the boundary after frame + i + u -
  // (kRecovered - 1).
  double source[2 * kRecovered - 1];
  double emission[2 * kRecovered - 1];
  double content[kRecovered];
  double wanted[kRecovered];
  Candidate best[kRecovered];
#pragma unroll
  for (int i = 0; i < kRecovered; ++i) {
    content[i] = 0.0;
    best[i] = {minus_infinity(), 1};
    wanted[i] = frame + i < length ? sources.best_at(call, frame + i + 1) : minus_infinity();
    if (i > 0) sources.at(call, frame + i, source + i - 1, emission + i - 1);
  }
#pragma unroll 1
  for (int least = 0; least < longest; least += kRecovered) {
    double tap[kRecovered];
    const int first = frame - least - (kRecovered - 1);
#pragma unroll
    for (int i = kRecovered - 2; i >= 0; --i) {
      source[i + kRecovered] = source[i];
      emission[i + kRecovered] = emission[i];
    }
    if (sources.has(first, frame - least)) {
#pragma unroll
      for (int i = 0; i < kRecovered; ++i)
        sources.within(call, first + i, source + i, emission + i);
    } else {
#pragma unroll
      for (int i = 0; i < kRecovered; ++i) sources.at(call, first + i, source + i, emission + i);
    }
#pragma unroll
    for (int i = 0; i < kRecovered; ++i)
      tap[i] = least + i < longest ? sources.grid(load(call.scores.duration, least + i, c, 0))
                                   : minus_infinity();
#pragma unroll
    for (int u = 0; u < kRecovered; ++u) {
#pragma unroll
      for (int i = 0; i < kRecovered; ++i) {
        const int from = i - u + kRecovered - 1;
        content[i] += emission[from];
        const double score = source[from] + content[i] + tap[u];
        if (score > best[i].score) best[i] = {score, least + 1 + u};
      }
    }
    bool open = false;
#pragma unroll
    for (int i = 0; i < kRecovered; ++i) open |= best[i].score != wanted[i];
    if (!open) break;
  }
#pragma unroll
  for (int i = 0; i < kRecovered; ++i)
    if (frame + i < length)
      call.best.duration[at_boundary(call, row, frame + i + 1) + c] = best[i].choice;
}

/// The labels before segments of two classes at eight boundaries, a thread: the pass's own sums are
/// formed again, and those that equal its maximum are the best ones. `columns` threads, half of a
/// block's classes, take the same boundaries. grid (T over the block's boundaries, B, parts of the
/// classes); dynamic shared memory for up to kLabelsAtOnce rows of the block's part of the matrix
/// and as many values of its boundaries.
KERNEL __launch_bounds__(kThreadsOfLabels, 2) recover_labels(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, shared);
  constexpr int kEach = kBoundariesOfLabel;
  const int row = blockIdx.y;
  const int classes = call.sizes.classes;
  const int parts = static_cast<int>(gridDim.z);
  const int columns = ((classes + 1) / 2 + parts - 1) / parts;
  const int groups = static_cast<int>(blockDim.x) / columns;
  const int boundaries = groups * kEach;
  const int length = row_length(call, row);
  const long long begin_of_block = blockIdx.x * static_cast<long long>(boundaries);
  if (begin_of_block >= length) return;
  const int begin = static_cast<int>(begin_of_block) + 1;
  const int first = static_cast<int>(threadIdx.x) % columns;
  const int group = static_cast<int>(threadIdx.x) / columns;
  const int mine = group * kEach;
  const ScoreGrid grid = grid_of_row(call, row);
  const int of_part = static_cast<int>(blockIdx.z) * 2 * columns;
  const int column[2] = {min(of_part + first, classes - 1),
                         min(of_part + first + columns, classes - 1)};
  const int width = 2 * columns;
  const int stride = boundaries | 1;                                  // other banks for others
  double* const from = shared;                                        // (labels, width)
  double* const values = from + min(kLabelsAtOnce, classes) * width;  // (labels, stride)
  double wanted[2][kEach];
  int choice[2][kEach];
#pragma unroll
  for (int v = 0; v < 2; ++v) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int t = min(begin + mine + i, length);
      const double best = call.lattice.gamma[at_boundary(call, row, t) + column[v]];
      wanted[v][i] = best > minus_infinity() ? best : __longlong_as_double(0x7ff8000000000000ll);
      choice[v][i] = -1;
    }
  }
#pragma unroll 1
  for (int base = 0; base < classes; base += kLabelsAtOnce) {
    const int labels = min(kLabelsAtOnce, classes - base);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    __syncthreads();
#pragma unroll 4
    for (int other = group; other < labels && group < groups; other += groups) {
#pragma unroll
      for (int v = 0; v < 2; ++v)
        from[other * width + first + v * columns] =
            grid(load(call.scores.transition, 0, base + other, column[v]));
    }
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / 32; i < boundaries; i += warps) {
      const int t = min(begin + i, length);
      if (lane < labels)
        values[lane * stride + i] = call.lattice.alpha[at_boundary(call, row, t) + base + lane];
    }
    __syncthreads();
    if (group >= groups) continue;
    unsigned marks[2][kEach];
#pragma unroll
    for (int v = 0; v < 2; ++v)
#pragma unroll
      for (int i = 0; i < kEach; ++i) marks[v][i] = 0;
#pragma unroll 2
    for (int other = 0; other < labels; ++other) {
      const double* value = values + other * stride + mine;
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const double into = from[other * width + first + v * columns];
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          if (value[i] + into == wanted[v][i]) marks[v][i] |= 1u << other;
      }
    }
#pragma unroll
    for (int v = 0; v < 2; ++v) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int t = min(begin + mine + i, length);
        const int* durations = call.best.duration + at_boundary(call, row, t);
        for (unsigned left = marks[v][i]; left != 0; left &= left - 1) {
          const int other = base + __ffs(static_cast<int>(left)) - 1;
          if (choice[v][i] < 0 || durations[other] < durations[choice[v][i]]) choice[v][i] = other;
        }
      }
    }
  }
  if (group >= groups) return;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int t = begin + mine + i;
      if (t <= length)
        call.best.label[at_boundary(call, row, t) + column[v]] = max(choice[v][i], 0);
    }
  }
}

}  // namespace segfuse::semicrf::gpu
