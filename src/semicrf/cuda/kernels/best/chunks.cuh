#pragma once
// Passes of the best segmentation that are cut in time. Sums are exact (grid.cuh): when the sources
// of the last K boundaries of a chunk's warm-up are those of the chunk before it, all shifted by
// one number, so is everything after them, and pointers back are the same.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// Sources of K boundaries, the oldest first: those before a chunk as its warm-up found them
/// (outgoing = 0), and the chunk's last ones (1). One base a boundary.
DEVICE long long ring_of(const Call& call, int row, int chunk, int outgoing) {
  return ((static_cast<long long>(row) * call.chunks.count + chunk) * 2 + outgoing) *
         call.sizes.max_duration;
}

/// Whether the chunk came in with what the chunk before it went out with. The whole block calls it;
/// `pivot` is shared.
DEVICE bool same_ring(const Call& call, int row, int chunk, int* pivot) {
  const int classes = call.sizes.classes;
  const int cells = call.sizes.max_duration * classes;
  const long long mine = ring_of(call, row, chunk, 0);
  const long long theirs = ring_of(call, row, chunk - 1, 1);
  const double* my_source = call.best.ring + mine * classes;
  const double* their_source = call.best.ring + theirs * classes;
  const auto shift_of_base = [&](int boundary) {
    return call.best.ring_base[theirs + boundary] - call.best.ring_base[mine + boundary];
  };
  const double base = shift_of_base(0);
  const auto difference = [&](int i) {
    return their_source[i] - my_source[i] + (shift_of_base(i / classes) - base);
  };
  int first = threadIdx.x;
  while (first < cells && their_source[first] == minus_infinity()) first += blockDim.x;
  __syncthreads();
  if (threadIdx.x == 0) *pivot = cells;
  __syncthreads();
  if (first < cells) atomicMin(pivot, first);
  __syncthreads();
  const double all = *pivot < cells ? difference(*pivot) : 0.0;
  bool same = true;
  for (int i = threadIdx.x; i < cells; i += blockDim.x) {
    const bool possible = their_source[i] > minus_infinity();
    if (possible != (my_source[i] > minus_infinity()))
      same = false;
    else if (possible && difference(i) != all)
      same = false;
  }
  return __syncthreads_and(same);
}

}  // namespace segfuse::semicrf::gpu
