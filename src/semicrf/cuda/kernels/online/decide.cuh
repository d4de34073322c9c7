#pragma once
// What is decided of a row that arrives in pieces: the common beginning of all paths that may still
// become the best, or what is due.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/online/arguments.h"
#include "semicrf/cuda/kernels/online/online.cuh"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

/// Marks a junction that is to be followed back; 1 if it was not marked, and `at_decided` set where
/// it is the last that was decided.
DEVICE int mark_junction(const OnlineRow& r, Junction j, int* at_decided) {
  if (!r.is_decided(j)) return atomicExch(&r.mark(j.t, j.c), 1) == 0 ? 1 : 0;
  atomicExch(at_decided, 1);
  return 0;
}

DEVICE int warp_count(int x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

/// The last junction that all paths share which may still become the best; the whole block calls
/// it, and thread 0 gets it.
DEVICE Junction common_beginning(const OnlineRow& r) {
  __shared__ int open_ends;
  __shared__ int at_decided;
  const int last = r.state.frames;
  const int first = r.state.decided.t;
  const long long cells = static_cast<long long>(last - first + 1) * r.classes;
  for (long long i = threadIdx.x; i < cells; i += blockDim.x) r.call.marked[i] = 0;
  if (threadIdx.x == 0) open_ends = at_decided = 0;
  __syncthreads();
  int found = 0;
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x)
    if (r.value(c) > minus_infinity()) found += mark_junction(r, {last, c}, &at_decided);
  each_open_segment(r, [&](int s, int c, double, int) {
    found += mark_junction(r, r.entry_at(s, c), &at_decided);
  });
  atomicAdd(&open_ends, found);
  __syncthreads();
  if (threadIdx.x >= 32) return r.state.decided;
  int open = open_ends;
  for (int t = last; t > first && at_decided == 0; --t) {
    int here = 0;
    int label = -1;
    for (int c = threadIdx.x; c < r.classes; c += 32)
      if (r.mark(t, c) != 0) ++here, label = c;
    const int all = warp_count(here);
    if (all == 0) continue;
    // With one open end, it is this one.
    if (open == 1) return {t, warp_count(label < 0 ? 0 : label)};
    int more = 0;
    for (int c = threadIdx.x; c < r.classes; c += 32)
      if (r.mark(t, c) != 0) more += mark_junction(r, r.previous({t, c}), &at_decided);
    open += warp_count(more) - all;
    __syncwarp();
  }
  return r.state.decided;
}

/// Appends the segments from the last decided junction up to another to the log; thread 0's work.
DEVICE void decide(const OnlineRow& r, Junction until) {
  int count = 0;
  for (Junction j = until; !r.is_decided(j); j = r.previous(j)) ++count;
  int* next = r.call.log + 3ll * (r.state.decided_count + count);
  for (Junction j = until; !r.is_decided(j); j = r.previous(j)) {
    next -= 3;
    next[1] = r.duration(j.t, j.c);
    next[0] = j.t - next[1];
    next[2] = j.c;
  }
  r.state.decided_count += count;
  r.state.decided = until;
}

/// The junction before the open segment, or the one just made, that looks best now; all threads
/// get it.
DEVICE Junction likeliest(const OnlineRow& r) {
  __shared__ Candidate best_of_warp[16];
  Candidate top{minus_infinity(), 0x7fffffff};
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) top = better(top, {r.value(c), c});
  const int width = r.longest + 1;
  each_open_segment(r, [&](int, int c, double score, int k) {
    top = better(top, {score, r.classes + c * width + k});
  });
  for (int lane = 16; lane > 0; lane /= 2) {
    Candidate other;
    other.score = __shfl_xor_sync(kAllLanes, top.score, lane);
    other.choice = __shfl_xor_sync(kAllLanes, top.choice, lane);
    top = better(top, other);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) best_of_warp[threadIdx.x / 32] = top;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) top = better(top, best_of_warp[w]);
  if (top.score == minus_infinity()) return r.state.decided;
  if (top.choice < r.classes) return {r.state.frames, top.choice};
  const int c = (top.choice - r.classes) / width;
  const int k = (top.choice - r.classes) % width;
  return r.entry_at(r.state.frames - (k == 0 ? r.call.open_frames[c] : k), c);
}

/// Forbids all paths that do not pass the decided junction, or make another up to `due`.
DEVICE void drop_others(const OnlineRow& r, int due) {
  const int last = r.state.frames;
  const int here = r.local(last);
  const auto may_start = [&](int s, int c) {
    if (s < r.state.decided.t) return false;
    const Junction from = r.entry_at(s, c);
    return r.is_decided(from) || r.mark(s, from.c) != 0;
  };
  const long long cells = static_cast<long long>(last - r.state.decided.t + 1) * r.classes;
  for (long long i = threadIdx.x; i < cells; i += blockDim.x) r.call.marked[i] = 0;
  __syncthreads();
  for (int t = due + 1; t <= last; ++t) {
    for (int c = threadIdx.x; c < r.classes; c += blockDim.x)
      r.mark(t, c) = may_start(t - r.duration(t, c), c) ? 1 : 0;
    __syncthreads();
  }
  const ScopeRow& x = r.best;
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) {
    if (r.mark(last, c) == 0) x.l.value[x.at(here) + c] = minus_infinity();
    for (int t = max(0, here - r.longest); t < here; ++t)
      if (!may_start(t + r.state.offset, c)) x.l.source[x.at(t) + c] = minus_infinity();
    if (r.open(c) > minus_infinity() && !may_start(last - r.call.open_frames[c], c))
      x.l.open[x.at(here) + c] = minus_infinity();
  }
  __syncthreads();
}

/// Decides every boundary that is max_delay old, as the most probable path has it.
DEVICE void decide_what_is_due(const OnlineRow& r) {
  const int due = r.state.frames - r.call.max_delay;
  if (due <= r.state.decided.t) return;
  Junction j = likeliest(r);
  __syncthreads();
  if (threadIdx.x == 0) {
    while (!r.is_decided(j) && j.t > due) j = r.previous(j);
    decide(r, j);
  }
  __syncthreads();
  drop_others(r, due);
}

}  // namespace segfuse::semicrf::gpu
