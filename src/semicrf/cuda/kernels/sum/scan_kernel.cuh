#pragma once
// The kernel of one shape.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/sum/scan.cuh"

namespace segfuse::semicrf::gpu {

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, SCAN_RESIDENT)
    scan(const __grid_constant__ Call call) {
  scan_row<SCAN_CLASSES, SCAN_GROUP, SCAN_TAPS, SCAN_EDGES, SCAN_BLOCKS, SCAN_FAR>(call);
}

}  // namespace segfuse::semicrf::gpu
