#pragma once
// The kernel of one shape.

#include "semicrf/cuda/kernels/best/scan.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"

namespace segfuse::semicrf::gpu {

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, SCAN_RESIDENT)
    best_scan(const __grid_constant__ Call call) {
  best_row<SCAN_CLASSES, SCAN_GROUP, SCAN_TAPS, SCAN_EDGES, SCAN_BLOCKS, SCAN_FAR>(call);
}

}  // namespace segfuse::semicrf::gpu
