#pragma once
// Decoding of a row that arrives in pieces: one block does all, frame after frame. The algorithm
// and its order of ties are those of src/semicrf/exact/online.cpp.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/online/arguments.h"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/pass.cuh"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

/// What the threads of the block share.
struct OnlineRow {
  const OnlineCall& call;
  ScopeRow sum, best;
  OnlineState& state;  ///< in shared memory
  int classes, longest;

  DEVICE_MEMBER OnlineRow(const OnlineCall& c, OnlineState& s)
      : call(c), state(s), classes(c.sizes.classes), longest(c.sizes.max_duration) {
    sum.length = best.length = c.capacity;
    sum.classes = best.classes = classes;
    sum.longest = best.longest = longest;
    sum.by_duration = best.by_duration = false;
    sum.x = best.x = c.shared;
    sum.l = c.sum;
    best.l = c.best;
  }
  DEVICE_MEMBER int local(int t) const { return t - state.offset; }
  DEVICE_MEMBER double value(int c) const { return best.l.value[best.at(local(state.frames)) + c]; }
  DEVICE_MEMBER double open(int c) const {
    return best.x.tail == nullptr ? minus_infinity()
                                  : best.l.open[best.at(local(state.frames)) + c];
  }
  DEVICE_MEMBER long long in_history(int t, int c) const {
    return static_cast<long long>(t - state.history_first) * classes + c;
  }
  DEVICE_MEMBER int& duration(int t, int c) const { return call.duration[in_history(t, c)]; }
  DEVICE_MEMBER int& before(int t, int c) const { return call.before[in_history(t, c)]; }
  /// The junction before a segment of label c that starts at t.
  DEVICE_MEMBER Junction entry_at(int t, int c) const {
    if (t == 0) return {0, -1};
    return {t, before(t, c)};
  }
  DEVICE_MEMBER Junction previous(Junction j) const {
    return entry_at(j.t - duration(j.t, j.c), j.c);
  }
  DEVICE_MEMBER bool is_decided(Junction j) const {
    return j.t == state.decided.t && j.c == state.decided.c;
  }
  DEVICE_MEMBER int& mark(int t, int c) const {
    return call.marked[static_cast<long long>(t - state.decided.t) * classes + c];
  }
};

/// Moves an array's rows [first, last] to the front; the whole block calls it.
DEVICE void move_rows(double* rows, int first, int last, int width) {
  if (rows == nullptr) return;
  const long long step = static_cast<long long>(first) * width;
  const long long end = static_cast<long long>(last + 1) * width;
  // What is read in a round was not written in it.
  for (long long from = step; from < end; from += step) {
    for (long long i = from + threadIdx.x; i < min(from + step, end); i += blockDim.x)
      rows[i - step] = rows[i];
    __syncthreads();
  }
}

/// Moves the window when it is full, by a multiple of K, so that segments keep their slots. K + 1
/// boundaries stay at least, so the first is in no window again.
DEVICE void make_room(OnlineRow& r) {
  const int last = r.local(r.state.frames);
  if (last < r.call.capacity) return;
  const int first = (last - r.longest) / r.longest * r.longest;
  const LogLattice* lattices[2] = {&r.sum.l, &r.best.l};
  for (const LogLattice* l : lattices) {
    move_rows(l->value, first, last, r.classes);
    move_rows(l->source, first, last - 1, r.classes);
    move_rows(l->open, first, last, r.classes);
    move_rows(l->base, first, last, 1);
  }
  if (threadIdx.x == 0) r.state.offset += first;
  __syncthreads();
}

/// The label before each segment that starts at the last boundary. Ties: the smallest duration,
/// then the smallest label.
DEVICE void choose_before(const OnlineRow& r) {
  const int t = r.state.frames;
  for (int c = threadIdx.x; t > 0 && c < r.classes; c += blockDim.x) {
    double top = minus_infinity();
    int chosen = 0;
    for (int from = 0; from < r.classes; ++from) {
      const double score = r.value(from) + r.best.transition(1, from, c);
      if (score > top || (score == top && r.duration(t, from) < r.duration(t, chosen))) {
        top = score;
        chosen = from;
      }
    }
    r.before(t, c) = chosen;
  }
}

/// Score of a segment of k frames that ends at the last boundary, relative to the boundary before.
DEVICE double ending(const OnlineRow& r, int t, int k, int c) {
  const double* base = r.best.l.base;
  return (r.best.l.source[r.best.at(t - k) + c] + (base[t - k] - base[t - 1])) +
         (*content_of(r.best, t - k, c) + r.best.duration(k, c));
}

/// The duration of each segment that ends at the last boundary: a warp a class. `frame` has the
/// last frame's scores.
DEVICE void choose_durations(const OnlineRow& r, const double* frame) {
  const Warp w;
  const int t = r.local(r.state.frames);
  const int n = min(t, r.longest);
  for (int c = w.index; c < r.classes; c += w.count) {
    Candidate top{minus_infinity(), 0x7fffffff};
    for (int k = 1 + w.lane; k <= n; k += 32) top = better(top, {ending(r, t, k, c), k});
    for (int lane = 16; lane > 0; lane /= 2) {
      Candidate other;
      other.score = __shfl_xor_sync(kAllLanes, top.score, lane);
      other.choice = __shfl_xor_sync(kAllLanes, top.choice, lane);
      top = better(top, other);
    }
    if (w.lane != 0) continue;
    int chosen = top.score > minus_infinity() ? top.choice : 0;
    if (r.best.x.tail != nullptr) {
      const double goes_on = r.best.l.open[r.best.at(t - 1) + c] + r.best.x.tail[c] + frame[c];
      const bool fresh = n == r.longest && goes_on <= ending(r, t, n, c);
      r.call.open_frames[c] = fresh ? n : r.call.open_frames[c] + 1;
      if (goes_on > top.score) chosen = r.call.open_frames[c];
    }
    r.duration(r.state.frames, c) = chosen;
  }
}

/// Calls visit(s, c, score, k) for this thread's part of the segments that have begun and may go
/// on: first frame, label, score with the best duration left, relative to the last base; k is 0 for
/// those beyond K.
template <class Visit>
DEVICE void each_open_segment(const OnlineRow& r, Visit visit) {
  const int t = r.local(r.state.frames);
  const int n = min(t, r.longest - 1);
  const ScopeRow& x = r.best;
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x)
    if (r.open(c) > minus_infinity() && x.x.tail[c] > minus_infinity())
      visit(r.state.frames - r.call.open_frames[c], c, r.open(c), 0);
  for (int i = threadIdx.x; i < n * r.classes; i += blockDim.x) {
    const int k = i / r.classes + 1;
    const int c = i % r.classes;
    const double score = x.l.source[x.at(t - k) + c] + *content_of(x, t - k, c) +
                         r.call.longer[static_cast<long long>(k) * r.classes + c] +
                         (x.l.base[t - k] - x.l.base[t]);
    if (score > minus_infinity()) visit(r.state.frames - k, c, score, k);
  }
}

}  // namespace segfuse::semicrf::gpu
