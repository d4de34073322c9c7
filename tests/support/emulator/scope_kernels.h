#pragma once
// The kernels of CudaInference and CudaOnlineDecoder that load and store scores as INPUT, in the
// namespace gpu::SPACE. Both are defined before. Once a source file: the kernels have include
// guards.

#include <string>

#include "semicrf/cuda/kernels/online/arguments.h"
#include "support/emulator/emulated_kernels.h"
#include "support/emulator/kernel_language.h"
// After them:
#include "semicrf/cuda/kernels/common/half.cuh"

#define gpu gpu::SPACE
#include "semicrf/cuda/kernels/online/load.cuh"
#include "semicrf/cuda/kernels/scope/load.cuh"
#undef gpu

#define ADD(program, name) \
  emulated_kernels()[program " " #name] = emulated(semicrf::gpu::SPACE::name);
#define ADD_TYPED(type)                           \
  ADD("semicrf_scope_" type, load_frames)         \
  ADD("semicrf_scope_" type, load_shared)         \
  ADD("semicrf_scope_" type, store_frames)        \
  ADD("semicrf_scope_" type, store_shared)        \
  ADD("semicrf_scope_" type, store_row_durations) \
  ADD("semicrf_scope_" type, store_within)        \
  ADD("semicrf_scope_" type, copy_constrained)    \
  ADD("semicrf_scope_" type, subtract_gradients)  \
  ADD("semicrf_online_" type, online_load)
