#pragma once
// The kernels of CudaOnlineDecoder.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/online/arguments.h"
#include "semicrf/cuda/kernels/online/decide.cuh"
#include "semicrf/cuda/kernels/online/online.cuh"
#include "semicrf/cuda/kernels/scope/pass.cuh"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

/// The log-partition, or the best score, of a row that ended now; a warp's work.
template <class Sum>
DEVICE double total_of(const ScopeRow& x, int t) {
  Sum sum;
  for (int c = threadIdx.x; c < x.classes; c += 32) sum.add(x.l.value[x.at(t) + c] + x.x.final[c]);
  const double all = over_warp(sum);
  return t == 0 ? 0.0 : all + x.l.base[t];
}

DEVICE void start_row(const OnlineRow& r) {
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) {
    if (r.best.x.tail != nullptr) r.sum.l.open[c] = r.best.l.open[c] = minus_infinity();
    r.call.open_frames[c] = 0;
  }
  if (threadIdx.x != 0) return;
  r.sum.l.base[0] = r.best.l.base[0] = 0.0;
  r.state.frames = r.state.offset = r.state.next_check = r.state.history_first = 0;
  r.state.decided = {0, -1};
  r.state.log_partition = r.state.best_score = 0.0;
}

/// One frame more.
DEVICE void advance(OnlineRow& r, int i) {
  make_room(r);
  const int t = r.local(r.state.frames);
  const long long here = static_cast<long long>(i - t) * r.classes;
  ScopeRow* rows[2] = {&r.sum, &r.best};
  for (ScopeRow* x : rows) {
    x->x.emission = r.call.emission + here;
    x->x.start = r.call.start == nullptr ? nullptr : r.call.start + here;
    x->x.end = r.call.end == nullptr ? nullptr : r.call.end + here;
  }
  choose_before(r);
  leave_boundary<LogSum>(r.sum, t);
  arrive_at_boundary<LogSum>(r.sum, t + 1, min(r.longest, t + 1));
  leave_boundary<Largest>(r.best, t);
  arrive_at_boundary<Largest>(r.best, t + 1, min(r.longest, t + 1));
  if (threadIdx.x == 0) ++r.state.frames;
  __syncthreads();
  choose_durations(r, r.call.emission + static_cast<long long>(i) * r.classes);
  __syncthreads();
  const bool check = r.state.frames >= r.state.next_check;
  if (check) {
    const Junction common = common_beginning(r);
    __syncthreads();
    if (threadIdx.x == 0) {
      decide(r, common);
      r.state.next_check = r.state.frames + 1 + (r.state.frames - r.state.decided.t) / 16;
    }
    __syncthreads();
  }
  if (r.call.max_delay > 0) decide_what_is_due(r);
}

/// One block: the frames of a piece.
KERNEL __launch_bounds__(kScopeThreads) online_push(const __grid_constant__ OnlineCall call) {
  __shared__ OnlineState state;
  if (threadIdx.x == 0) state = *call.state;
  __syncthreads();
  OnlineRow r(call, state);
  for (int i = 0; i < call.sizes.frames; ++i) advance(r, i);
  if (threadIdx.x >= 32) return;
  const int t = r.local(state.frames);
  const double z = total_of<LogSum>(r.sum, t);
  const double best = total_of<Largest>(r.best, t);
  if (threadIdx.x != 0) return;
  *call.state = state;
  call.state->log_partition = z;
  call.state->best_score = best;
}

/// One block: ready for the first row.
KERNEL online_begin(const __grid_constant__ OnlineCall call) {
  OnlineState& state = *call.state;
  if (threadIdx.x == 0) state.decided_count = state.status = 0;
  __syncthreads();
  start_row(OnlineRow(call, state));
  for (int c = threadIdx.x; c < call.sizes.classes; c += blockDim.x) {
    double longer = minus_infinity();
    for (int k = call.sizes.max_duration; k >= 0; --k) {
      const long long i = static_cast<long long>(k) * call.sizes.classes + c;
      call.longer[i] = longer;
      if (k > 0) longer = fmax(longer, call.shared.duration[i - call.sizes.classes]);
    }
  }
}

/// One block: the segments that are left, and ready for another row.
KERNEL online_finish(const __grid_constant__ OnlineCall call) {
  OnlineState& state = *call.state;
  const OnlineRow r(call, state);
  if (threadIdx.x == 0) {
    Junction last = state.decided;
    double top = minus_infinity();
    for (int c = 0; state.frames > 0 && c < r.classes; ++c) {
      const double score = r.value(c) + r.best.x.final[c];
      if (score < top || score == minus_infinity()) continue;
      if (score == top && r.duration(state.frames, c) >= r.duration(state.frames, last.c)) continue;
      top = score;
      last = {state.frames, c};
    }
    const bool possible = state.frames == 0 || top > minus_infinity();
    if (possible) decide(r, last);
    state.status = possible ? 0 : 1;
  }
  __syncthreads();
  start_row(r);
}

/// The undecided part of the history to other memory, and an empty log; grid-stride.
KERNEL online_move(const __grid_constant__ OnlineCall call) {
  const OnlineState& state = *call.state;
  const int first = call.frames_before;  // the last decided boundary
  const long long rows = static_cast<long long>(state.frames - first + 1) * call.sizes.classes;
  const long long from = static_cast<long long>(first - state.history_first) * call.sizes.classes;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    call.duration[i] = call.old_duration[from + i];
    call.before[i] = call.old_before[from + i];
  }
}

/// After it.
KERNEL online_moved(const __grid_constant__ OnlineCall call) {
  call.state->history_first = call.frames_before;
  call.state->decided_count = 0;
}

}  // namespace segfuse::semicrf::gpu
