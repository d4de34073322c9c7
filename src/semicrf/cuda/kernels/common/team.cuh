#pragma once
// Blocks that work on one pass together: all run at the same time (GpuLaunch::together), and wait
// for each other at every boundary.

#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// What one block writes before arrive(), the others may read after wait(). All threads of a block
/// call both.
struct TeamBarrier {
  unsigned* counter;  ///< zero at the start of the launch
  int members;
  unsigned target = 0;

  DEVICE_MEMBER void arrive() {
    target += members;
    __syncthreads();
    if (members == 1 || not_first()) return;
    __threadfence();
    atomicAdd(counter, 1u);
  }
  DEVICE_MEMBER void wait() {
    if (members > 1 && !not_first()) {
      while (static_cast<int>(*static_cast<volatile unsigned*>(counter) - target) < 0)
        __nanosleep(8);
      __threadfence();
    }
    __syncthreads();
  }

 private:
  static DEVICE_MEMBER bool not_first() { return threadIdx.x != 0 || threadIdx.y != 0; }
};

}  // namespace segfuse::semicrf::gpu
