#pragma once
// Posteriors that are sums over a row: expected durations, and the entropy as log Z less the
// expected score. Every row is a group of slots of its own then.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/frames.cuh"

namespace segfuse::semicrf::gpu {

/// Sum over a row's slots, in order.
DEVICE double count_of_row(const Call& call, int row, const double* partial, long long size,
                           long long i) {
  double sum = 0.0;
#pragma unroll 8
  for (int slot = row; slot < call.slots; slot += call.sizes.batch) sum += partial[slot * size + i];
  return sum;
}

/// grid (K C / blockDim, B).
KERNEL row_durations(const __grid_constant__ Call call) {
  const long long size = static_cast<long long>(call.sizes.max_duration) * call.sizes.classes;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = blockIdx.y;
  if (i >= size) return;
  store(call.gradients.row_duration, row, i / call.sizes.classes, i % call.sizes.classes,
        count_of_row(call, row, call.duration_partial, size, i));
}

/// grid (slices, B): the expected score of a slice's frames, and of what its first and last frame
/// have to do with initial and final.
KERNEL expected_frames(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const int row = blockIdx.y;
  const int slice = blockIdx.x;
  const int length = call.row_weight[row] == 0.0 ? 0 : row_length(call, row);
  const int begin = slice * slice_frames(length);
  const int end = min(begin + slice_frames(length), length);
  const Posterior posterior(call, row);
  double sum = 0.0;
  for (int c = threadIdx.x; c < call.sizes.classes && begin < end; c += blockDim.x) {
    double label = 0.0;
    for (int i = 0; i < slice; ++i)
      label += call.cover[(static_cast<long long>(row) * call.slices + i) * call.sizes.classes + c];
    for (int t = begin; t < end; ++t) {
      const Place at = posterior.place(t);
      const double starts = posterior.start(t, c, at);
      const double ends = posterior.end(t + 1, c, posterior.place(t + 1));
      label += starts - posterior.end(t, c, at);
      const double emission = load(call.scores.emission, row, t, c);
      if (is_rounding(label, emission, t)) label = 0.0;
      sum += expected(fmax(label, 0.0), emission);
      sum += expected(starts, score_of(call.scores.start, row, t, c));
      sum += expected(ends, score_of(call.scores.end, row, t, c));
      if (t == 0) sum += expected(starts, score_of(call.scores.initial, c, 0, 0));
      if (t + 1 == length) sum += expected(ends, score_of(call.scores.final, c, 0, 0));
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) call.expected[static_cast<long long>(row) * call.slices + slice] = sum;
}

/// grid (B).
KERNEL row_entropy(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const int row = blockIdx.x;
  const int classes = call.sizes.classes;
  const long long transitions = all_transitions(call.sizes);
  const long long durations = static_cast<long long>(call.sizes.max_duration) * classes;
  double sum = 0.0;
  for (long long i = threadIdx.x; i < transitions; i += blockDim.x)
    sum += expected(
        count_of_row(call, row, call.transition_partial, transitions, i),
        load(call.scores.transition, i / classes / classes, i / classes % classes, i % classes));
  for (long long i = threadIdx.x; i < durations; i += blockDim.x)
    sum += expected(count_of_row(call, row, call.duration_partial, durations, i),
                    load(call.scores.duration, i / classes, i % classes, 0));
  for (int i = threadIdx.x; i < call.slices; i += blockDim.x)
    sum += call.expected[static_cast<long long>(row) * call.slices + i];
  sum = block_sum(sum, scratch);
  // Only rounding can make the difference negative.
  if (threadIdx.x == 0)
    put(call.rows.entropy, row,
        call.row_weight[row] == 0.0
            ? 0.0
            : fmax(0.0, call.rows.log_partition.data[row * call.rows.log_partition.stride] - sum));
}

}  // namespace segfuse::semicrf::gpu
