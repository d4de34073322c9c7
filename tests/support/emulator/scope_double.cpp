#define INPUT double
#define SPACE tools_as_double
#include "support/emulator/scope_kernels.h"

#define gpu gpu::SPACE
#include "semicrf/cuda/kernels/online/kernels.cuh"
#include "semicrf/cuda/kernels/scope/kernels.cuh"
#undef gpu

void segfuse::testing::add_double_scope_kernels() {
  ADD_TYPED("double")
  ADD("semicrf_online", online_push)
  ADD("semicrf_online", online_begin)
  ADD("semicrf_online", online_finish)
  ADD("semicrf_online", online_move)
  ADD("semicrf_online", online_moved)
  ADD("semicrf_scope", scope_forward)
  ADD("semicrf_scope", scope_backward)
  ADD("semicrf_scope", scope_rows)
  ADD("semicrf_scope", count_draws)
  ADD("semicrf_scope", write_draws)
  ADD("semicrf_scope", list_pointers)
  ADD("semicrf_scope", best_lists)
  ADD("semicrf_scope", best_lists_by_duration)
  ADD("semicrf_scope", best_last)
  ADD("semicrf_scope", count_best)
  ADD("semicrf_scope", write_best)
  ADD("semicrf_scope", expected_scores)
  ADD("semicrf_scope", find_forbidden)
  ADD("semicrf_scope", short_segments)
  ADD("semicrf_scope", long_segments)
  ADD("semicrf_scope", starts_within)
  ADD("semicrf_scope", likeliest_labels)
}
