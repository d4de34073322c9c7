#pragma once
// Posteriors of frames, parallel over time: emission, start and end gradients.
//
//   P(a segment of c starts at t) = gamma_t(c) delta_t(c) / Z,   P(one ends before t) = alpha_t(c)
//   beta_t(c) / Z P(label_t = c) = P(label_{t-1} = c) - P(ends before t) + P(starts at t)
//
// The last line is a running sum in double; time slices first add up their own terms (slice_cover),
// then every slice continues from the sum of those before it.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// What the product of forward and backward values at a boundary lacks.
struct Place {
  int shift;
  double factor;
};

/// Start and end posteriors of one row; the end of boundary 0 is 0.
struct Posterior {
  const Call& call;
  int row;
  bool exact;
  double partition;
  double inverse;  ///< 1 / partition of a linear row
  int last_scale;
  long long base;  ///< first boundary of the row in (B, T+1)

  DEVICE_MEMBER Posterior(const Call& c, int r) : call(c), row(r), exact(needs_exact(c, r)) {
    base = static_cast<long long>(row) * (call.sizes.frames + 1);
    partition = call.lattice.partition[row];
    inverse = 1.0 / partition;
    last_scale = exact ? 0 : call.lattice.last_scale[row];
  }
  DEVICE_MEMBER int shift(int t) const {
    return exact ? 0
                 : call.lattice.forward_scale[base + t] + call.lattice.backward_scale[base + t] -
                       last_scale;
  }
  DEVICE_MEMBER double forward_ratio(int t) const {
    return call.lattice.forward_ratio == nullptr || exact ? 1.0
                                                          : call.lattice.forward_ratio[base + t];
  }
  DEVICE_MEMBER double backward_ratio(int t) const {
    return call.lattice.backward_ratio == nullptr || exact ? 1.0
                                                           : call.lattice.backward_ratio[base + t];
  }
  DEVICE_MEMBER Place place(int t) const {
    return {shift(t), forward_ratio(t) * backward_ratio(t) * inverse};
  }
  DEVICE_MEMBER double pair(double forward, double backward, const Place& at) const {
    if (exact) return exp2(forward + backward - partition);
    const int half = at.shift / 2;
    return scaled(forward, half) * (scaled(backward, at.shift - half) * at.factor);
  }
  DEVICE_MEMBER double start(int t, int c, const Place& at) const {
    const long long i = at_boundary(call, row, t) + c;
    if (call.sizes.by_duration != 0) return call.lattice.delta[i];
    return pair(call.lattice.gamma[i], call.lattice.delta[i], at);
  }
  DEVICE_MEMBER double end(int t, int c, const Place& at) const {
    if (t == 0) return 0.0;
    const long long i = at_boundary(call, row, t) + c;
    return pair(call.lattice.alpha[i], call.lattice.beta[i], at);
  }
};

constexpr int kFrameThreads = 256;
constexpr int kFrameClasses = 64;  ///< most classes side by side
constexpr int kTileFrames = 32;    ///< frames that a block treats at once

/// How a block's threads lie over (frames, classes).
struct FrameTile {
  int classes;  ///< side by side
  int rows;     ///< frames side by side
  int c;
  int y;
  bool mine;  ///< this thread has a place
  DEVICE_MEMBER explicit FrameTile(int all_classes) {
    classes = min(all_classes, kFrameClasses);
    rows = kFrameThreads / classes;
    c = threadIdx.x % classes;
    y = threadIdx.x / classes;
    mine = y < rows;
  }
};

/// grid (slices, B): what a slice adds to the label posteriors.
KERNEL slice_cover(const __grid_constant__ Call call) {
  __shared__ double sums[kFrameThreads];
  const int row = blockIdx.y;
  const int slice = call.part.slice + static_cast<int>(blockIdx.x);
  const int length = row_length(call, row);
  const int begin = slice * slice_frames(length);
  const int end = min(begin + slice_frames(length), length);
  if (begin >= end || call.row_weight[row] == 0.0) return;
  const FrameTile tile(call.sizes.classes);
  const Posterior posterior(call, row);
  double* cover =
      call.cover + (static_cast<long long>(row) * call.slices + slice) * call.sizes.classes;
  for (int base = 0; base < call.sizes.classes; base += tile.classes) {
    const int c = base + tile.c;
    double sum = 0.0;
    if (c < call.sizes.classes && tile.mine) {
#pragma unroll 4
      for (int t = begin + tile.y; t < end; t += tile.rows) {
        const Place at = posterior.place(t);
        sum += posterior.start(t, c, at) - posterior.end(t, c, at);
      }
    }
    __syncthreads();
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (tile.y == 0 && c < call.sizes.classes) {
      double total = 0.0;
      for (int y = 0; y < tile.rows; ++y) total += sums[y * tile.classes + tile.c];
      cover[c] = total;
    }
  }
}

/// Writes frame t of class c; outside the row, zeros.
DEVICE void store_frame(const Call& call, int row, int t, int c, double weight, double label,
                        double start, double end) {
  if (call.gold_frames != nullptr && weight != 0.0) {
    const int gold = call.gold_frames[static_cast<long long>(row) * call.sizes.frames + t];
    if ((gold & kGoldLabel) == c) {
      label -= 1.0;
      if ((gold & kGoldStart) != 0) start -= 1.0;
      if ((gold & kGoldEnd) != 0) end -= 1.0;
    }
  }
  store(call.gradients.emission, row, t, c, weight * label);
  store(call.gradients.start, row, t, c, weight * start);
  store(call.gradients.end, row, t, c, weight * end);
}

/// Start posteriors of frames, and end posteriors of boundaries, of one tile.
struct FrameStage {
  double starts[kTileFrames][kFrameClasses];
  double ends[kTileFrames + 1][kFrameClasses];  ///< [i]: ended before frame i
  double labels[kTileFrames][kFrameClasses];
};

/// Posteriors of frames [begin, end) and the boundaries around them.
DEVICE void load_posteriors(const Posterior& posterior, const FrameTile& tile, int begin, int end,
                            int c, FrameStage& stage) {
#pragma unroll 2
  for (int i = tile.y; i <= end - begin; i += tile.rows) {
    const Place at = posterior.place(begin + i);
    stage.ends[i][tile.c] = posterior.end(begin + i, c, at);
    if (begin + i < end) stage.starts[i][tile.c] = posterior.start(begin + i, c, at);
  }
}

/// Zeros past the row's end: those that fall to one of the row's blocks.
DEVICE void clear_past(const Call& call, int row, int length, const FrameTile& tile) {
  const long long past = call.sizes.frames - length;
  const int begin = length + static_cast<int>(past * blockIdx.x / gridDim.x);
  const int end = length + static_cast<int>(past * (blockIdx.x + 1) / gridDim.x);
  for (int base = 0; base < call.sizes.classes; base += tile.classes) {
    const int c = base + tile.c;
    if (c >= call.sizes.classes || !tile.mine) continue;
    for (int t = begin + tile.y; t < end; t += tile.rows)
      store_frame(call, row, t, c, 0.0, 0.0, 0.0, 0.0);
  }
}

/// grid (slices, B), over all T frames.
KERNEL frame_gradients(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, memory);
  FrameStage& stage = *reinterpret_cast<FrameStage*>(memory);
  const int row = blockIdx.y;
  const int slice = call.part.slice + static_cast<int>(blockIdx.x);
  const double weight = call.row_weight[row];
  const int length = weight == 0.0 ? 0 : row_length(call, row);
  const int begin = slice * slice_frames(length);
  const int end = min(begin + slice_frames(length), length);
  const FrameTile tile(call.sizes.classes);
  clear_past(call, row, length, tile);
  if (begin >= end) return;
  const Posterior posterior(call, row);
  for (int base = 0; base < call.sizes.classes; base += tile.classes) {
    const int c = base + tile.c;
    const bool mine = c < call.sizes.classes && tile.mine;
    double label = 0.0;  // of the frame before, in the threads that sum over time
#pragma unroll 4
    for (int i = 0; i < slice && mine && tile.y == 0; ++i)
      label += call.cover[(static_cast<long long>(row) * call.slices + i) * call.sizes.classes + c];
    for (int first = begin; first < end; first += kTileFrames) {
      const int last = min(first + kTileFrames, end);
      __syncthreads();
      if (mine) load_posteriors(posterior, tile, first, last, c, stage);
      __syncthreads();
      for (int t = first; t < last && mine && tile.y == 0; ++t) {
        label += stage.starts[t - first][tile.c] - stage.ends[t - first][tile.c];
        stage.labels[t - first][tile.c] = label;
      }
      __syncthreads();
      for (int t = first + tile.y; t < last && mine; t += tile.rows) {
        // A forbidden label has no probability: what rounding left over ends here.
        const bool possible = load(call.scores.emission, row, t, c) > minus_infinity();
        store_frame(call, row, t, c, weight,
                    possible ? fmax(stage.labels[t - first][tile.c], 0.0) : 0.0,
                    stage.starts[t - first][tile.c], stage.ends[t - first + 1][tile.c]);
      }
    }
  }
}

/// P(some segment starts at t); grid (T / blockDim, B).
KERNEL boundary_posteriors(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= call.sizes.frames) return;
  double sum = 0.0;
  if (call.row_weight[row] != 0.0 && t < row_length(call, row)) {
    const Posterior posterior(call, row);
    const Place at = posterior.place(t);
    for (int c = 0; c < call.sizes.classes; ++c) sum += posterior.start(t, c, at);
  }
  store(call.gradients.boundary, row, t, 0, sum);
}

/// Initial (y = 0) and final (y = 1) gradients: one warp a class. Lane l adds rows l, l + 32, ..
/// and the lanes are added in order.
KERNEL end_gradients(const __grid_constant__ Call call) {
  const bool initial = blockIdx.y == 0;
  if ((call.part.ends >> blockIdx.y & 1) == 0) return;
  const int c = blockIdx.x * blockDim.y + threadIdx.y;
  double sum = 0.0;
  for (int row = threadIdx.x; row < call.sizes.batch && c < call.sizes.classes; row += 32) {
    const double weight = call.row_weight[row];
    if (weight == 0.0) continue;
    const Posterior posterior(call, row);
    const int t = initial ? 0 : row_length(call, row);
    const Place at = posterior.place(t);
    double p = initial ? posterior.start(t, c, at) : posterior.end(t, c, at);
    if (call.gold_frames != nullptr) {
      const int frame = initial ? 0 : t - 1;
      const int gold = call.gold_frames[static_cast<long long>(row) * call.sizes.frames + frame];
      if ((gold & kGoldLabel) == c) p -= 1.0;
    }
    sum += weight * p;
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0 && c < call.sizes.classes)
    store(initial ? call.gradients.initial : call.gradients.final, c, 0, 0, sum);
}

}  // namespace segfuse::semicrf::gpu
