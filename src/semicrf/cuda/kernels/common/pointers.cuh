#pragma once
// Row pointers of packed segmentations.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// One block: row pointers from counts.
KERNEL best_pointers(const __grid_constant__ Call call) {
  __shared__ long long sums[256];
  const int rows = call.sizes.batch;
  const int each = (rows + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
  const int begin = min(rows, static_cast<int>(threadIdx.x) * each);
  const int end = min(rows, begin + each);
  long long sum = 0;
  for (int row = begin; row < end; ++row) sum += call.best.count[row];
  sums[threadIdx.x] = sum;
  __syncthreads();
  long long before = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) before += sums[i];
  for (int row = begin; row < end; ++row) {
    call.best.row_pointer[row] = before;
    before += call.best.count[row];
  }
  if (end == rows && begin < rows) call.best.row_pointer[rows] = before;
}

}  // namespace segfuse::semicrf::gpu
