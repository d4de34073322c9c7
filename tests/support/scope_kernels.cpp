// The kernels of CudaInference for the emulator.

#include "support/device_language.h"
#include "support/emulated_kernels.h"

#define DEVICE_MEMBER
#include "semicrf/cuda/kernels/arguments.h"
#include "semicrf/cuda/kernels/half.cuh"
#include "semicrf/cuda/kernels/scope_arguments.h"
// After it:
#include "semicrf/cuda/kernels/online_arguments.h"

namespace segfuse::semicrf::gpu {
inline double approximate_reciprocal(double x) { return 1.0 / x; }
inline double to_double(float x) { return x; }
inline double to_double(double x) { return x; }
}  // namespace segfuse::semicrf::gpu

#define KERNEL inline void
#define DEVICE inline
#define from_double static_cast<INPUT>
#define INPUT float
#define gpu gpu::tools_as_float
#include "support/scope_loading.inc"
#undef gpu
#undef INPUT
#define INPUT double
#define gpu gpu::tools_as_double
#include "support/scope_loading.inc"
#include "support/scope_passes.inc"
#undef gpu

namespace segfuse::testing {

#define ADD(program, space, name) \
  emulated_kernels()[program " " #name] = emulated(semicrf::gpu::space::name);
#define ADD_TYPED(name)                            \
  ADD("semicrf_scope_float", tools_as_float, name) \
  ADD("semicrf_scope_double", tools_as_double, name)
#define ADD_PLAIN(name) ADD("semicrf_scope", tools_as_double, name)

void add_scope_kernels() {
  ADD_TYPED(load_frames)
  ADD_TYPED(load_shared)
  ADD_TYPED(store_frames)
  ADD_TYPED(store_shared)
  ADD_TYPED(store_row_durations)
  ADD_TYPED(store_within)
  ADD_TYPED(copy_constrained)
  ADD_TYPED(subtract_gradients)
  ADD("semicrf_online_float", tools_as_float, online_load)
  ADD("semicrf_online_double", tools_as_double, online_load)
  ADD("semicrf_online", tools_as_double, online_push)
  ADD("semicrf_online", tools_as_double, online_begin)
  ADD("semicrf_online", tools_as_double, online_finish)
  ADD("semicrf_online", tools_as_double, online_move)
  ADD("semicrf_online", tools_as_double, online_moved)
  ADD_PLAIN(scope_forward)
  ADD_PLAIN(scope_backward)
  ADD_PLAIN(scope_rows)
  ADD_PLAIN(count_draws)
  ADD_PLAIN(write_draws)
  ADD_PLAIN(list_pointers)
  ADD_PLAIN(best_lists)
  ADD_PLAIN(best_lists_by_duration)
  ADD_PLAIN(best_last)
  ADD_PLAIN(count_best)
  ADD_PLAIN(write_best)
  ADD_PLAIN(expected_scores)
  ADD_PLAIN(find_forbidden)
  ADD_PLAIN(short_segments)
  ADD_PLAIN(long_segments)
  ADD_PLAIN(starts_within)
  ADD_PLAIN(likeliest_labels)
}

}  // namespace segfuse::testing
