#pragma once
// Frames of a piece into doubles: what depends on the stored type.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/online/arguments.h"

namespace segfuse::semicrf::gpu {

DEVICE void load_piece(const OnlineCall& call, const Strided& from, double* to, Fault fault, int t,
                       int c) {
  if (to == nullptr) return;
  const double score = load(from, t, c, 0);
  const long long at = static_cast<long long>(call.frames_before + t) * call.sizes.classes + c;
  if (is_nan_or_inf_above(score))
    atomicMin(&call.faults[fault], static_cast<unsigned long long>(at));
  to[static_cast<long long>(t) * call.sizes.classes + c] = score;
}

/// Grid-stride over (n, C).
KERNEL online_load(const __grid_constant__ OnlineCall call) {
  const long long cells = static_cast<long long>(call.sizes.frames) * call.sizes.classes;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < cells;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int t = static_cast<int>(i / call.sizes.classes);
    const int c = static_cast<int>(i % call.sizes.classes);
    load_piece(call, call.scores.emission, call.emission, kFaultEmission, t, c);
    load_piece(call, call.scores.start, call.start, kFaultStart, t, c);
    load_piece(call, call.scores.end, call.end, kFaultEnd, t, c);
  }
}

}  // namespace segfuse::semicrf::gpu
