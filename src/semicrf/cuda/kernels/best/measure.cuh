#pragma once
// Before the best segmentation: faults of the scores, and how large they are.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// Exponent of a score as largest sizes count it; reports a fault.
DEVICE int measured(const Call& call, double score, Fault fault, long long index) {
  if (is_nan_or_inf_above(score)) report(call, fault, index);
  return score == minus_infinity() ? 0 : exponent_bits(score);
}

/// Most threads find that theirs is not larger than what is known.
DEVICE void raise(int* magnitude, int exponent) {
  if (exponent > *static_cast<volatile int*>(magnitude)) atomicMax(magnitude, exponent);
}

/// Blocks of 256 threads; grid (blocks, B). A row's frames one class after the other, so that few
/// classes leave no lane idle.
KERNEL measure_frames(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int classes = call.sizes.classes;
  const int length = row_length(call, row);
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const int hop = static_cast<int>(gridDim.x * blockDim.x);
  long long t = first / classes;
  int c = static_cast<int>(first % classes);
  int largest = 0;
#pragma unroll 4
  while (t < length) {
    const long long at = (row * static_cast<long long>(call.sizes.frames) + t) * classes + c;
    const int frame = static_cast<int>(t);
    largest =
        max(largest, measured(call, load(call.scores.emission, row, frame, c), kFaultEmission, at));
    if (call.scores.start.data != nullptr)
      largest =
          max(largest, measured(call, load(call.scores.start, row, frame, c), kFaultStart, at));
    if (call.scores.end.data != nullptr)
      largest = max(largest, measured(call, load(call.scores.end, row, frame, c), kFaultEnd, at));
    t += hop / classes;
    c += hop % classes;
    if (c >= classes) {
      c -= classes;
      ++t;
    }
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % 32 == 0) raise(call.best.magnitude + row, largest);
}

/// Scores that rows share, and the rows' lengths; grid-stride.
KERNEL measure_shared(const __grid_constant__ Call call) {
  const Sizes& n = call.sizes;
  const long long transitions = all_transitions(n);
  const long long durations = static_cast<long long>(n.max_duration) * n.classes;
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const long long hop = static_cast<long long>(gridDim.x) * blockDim.x;
  int largest = 0;
  for (long long i = first; i < transitions; i += hop)
    largest = max(largest, measured(call,
                                    load(call.scores.transition, i / n.classes / n.classes,
                                         i / n.classes % n.classes, i % n.classes),
                                    kFaultTransition, i));
  for (long long i = first; i < durations; i += hop)
    largest =
        max(largest, measured(call, load(call.scores.duration, i / n.classes, i % n.classes, 0),
                              kFaultDuration, i));
  for (long long i = first; i < n.classes; i += hop) {
    largest =
        max(largest, measured(call, score_of(call.scores.initial, i, 0, 0), kFaultInitial, i));
    largest = max(largest, measured(call, score_of(call.scores.final, i, 0, 0), kFaultFinal, i));
  }
  for (long long row = first; row < n.batch; row += hop) {
    long long length = 0;
    if (call.lengths.wide != nullptr) length = call.lengths.wide[row * call.lengths.stride];
    if (call.lengths.narrow != nullptr) length = call.lengths.narrow[row * call.lengths.stride];
    if (length < 0 || length > n.frames) report(call, kFaultLength, row);
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % 32 == 0) raise(call.best.magnitude + n.batch, largest);
}

}  // namespace segfuse::semicrf::gpu
