#pragma once
// The best segmentation for sizes whose state does not fit the registers of one multiprocessor: the
// recursion, the rounding and the cuts in time of scan.cuh, the classes dealt out to the blocks of a
// team. A block keeps its classes' durations and pending scores, and its part of the matrix, in
// shared memory where they fit. Sums are exact (grid.cuh) or made in one order, and ties have one
// winner, so how many blocks there are shows nowhere.
//
// pending[t mod K] is the best score that the sources known so far give to boundary t, and began
// where its segment began.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/best/run.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/team.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kWideRebase = 32;  ///< steps after which the largest value goes back to 0

/// Transposed transition scores: row c holds what leads into c. Grid-stride.
KERNEL transpose_scores(const __grid_constant__ Call call) {
  const long long classes = call.sizes.classes;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
       i < classes * classes; i += static_cast<long long>(gridDim.x) * blockDim.x)
    call.team.into[i] = load(call.scores.transition, 0, i % classes, i / classes);
}

/// A block's share of a pass.
struct WideBest {
  int row, chunk, length, classes, longest;
  int begin, own;  ///< classes [begin, begin + own)
  ScoreGrid grid;
  double base;
  bool bad;
  double* values;  ///< (C) of the boundary at hand; all but what is said otherwise in shared memory
  int* durations;  ///< (C) of the best segments that end there
  double* source;  ///< (own) and so on
  double* joining;
  double* enter;
  double* leave;
  double* emission;      ///< (2, own) of frames by turns
  const double* matrix;  ///< (own, C) scores that lead into a class; in global memory not rounded
  const double* tap;     ///< (K, own) of durations; null: they are read where the caller has them
  double* pending;       ///< (own, K), in global memory where it does not fit
  int* began;            ///< (own, K)
  double* exchange;      ///< (2, values and durations of all classes) in global memory
  bool rounded;          ///< the matrix is

  DEVICE_MEMBER double tap_of(const Call& call, int j, int k) const {
    return tap != nullptr ? tap[(k - 1) * own + j]
                          : grid(load(call.scores.duration, k - 1, begin + j, 0));
  }

  DEVICE_MEMBER void lay_out(const Call& call, double* shared) {
    row = blockIdx.y;
    chunk = blockIdx.z;
    length = row_length(call, row);
    classes = call.sizes.classes;
    longest = call.sizes.max_duration;
    begin = blockIdx.x * call.team.per_member;
    own = min(call.team.per_member, classes - begin);
    grid = grid_of_row(call, row);
    bad = false;
    const int threads = blockDim.x;
    const int thread = threadIdx.x;
    values = shared;
    durations = reinterpret_cast<int*>(values + classes);
    source = values + classes + (classes + 1) / 2;
    joining = source + own;
    enter = joining + own;
    leave = enter + own;
    emission = leave + own;
    double* rest = emission + 2 * own;
    const long long place = static_cast<long long>(row) * gridDim.z + chunk;
    const long long window = static_cast<long long>(classes) * longest;
    pending = call.pending + 2 * place * window + static_cast<long long>(begin) * longest;
    began = reinterpret_cast<int*>(call.pending + (2 * place + 1) * window) +
            static_cast<long long>(begin) * longest;
    tap = nullptr;
    if (call.team.window_shared != 0) {
      for (int i = thread; i < own * longest; i += threads)
        rest[i] = grid(load(call.scores.duration, i / own, begin + i % own, 0));
      tap = rest;
      pending = rest + own * longest;
      began = reinterpret_cast<int*>(pending + own * longest);
      rest = pending + own * longest + (own * longest + 1) / 2;
    }
    matrix = call.team.into + static_cast<long long>(begin) * classes;
    rounded = call.team.matrix_shared != 0;
    if (rounded) {
      for (int i = thread; i < own * classes; i += threads) rest[i] = grid(matrix[i]);
      matrix = rest;
    }
    exchange = call.team.exchange + 4 * place * classes;
  }

  /// Scores of frame t.
  DEVICE_MEMBER void load_frame(const Call& call, int t) {
    if (t >= length) return;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      emission[t % 2 * own + j] = grid(load(call.scores.emission, row, t, begin + j));
      enter[j] = grid(score_of(call.scores.start, row, t, begin + j));
      leave[j] = grid(score_of(call.scores.end, row, t, begin + j));
    }
  }

  /// Values of the boundary after frame t, to the other blocks.
  DEVICE_MEMBER void close(const Call& call, int t, bool mine) {
    double* given = exchange + t % 2 * 2 * classes;
    int* given_duration = reinterpret_cast<int*>(given + classes);
    const long long at = at_boundary(call, row, t + 1) + begin;
    const int slot = (t + 1) % longest;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      const long long place = static_cast<long long>(j) * longest + slot;
      const double w = source[j] + enter[j];
      const double known = longest > 1 ? pending[place] : minus_infinity();
      const bool later = w + tap_of(call, j, 1) >= known;
      const double value =
          (later ? w + tap_of(call, j, 1) : known) + emission[t % 2 * own + j] + leave[j];
      const int duration = later ? 1 : t + 1 - began[place];
      joining[j] = w;
      given[begin + j] = value;
      given_duration[begin + j] = duration;
      if (mine) call.best.duration[at + j] = duration;
      if (t + 1 == length) call.lattice.alpha[at + j] = value;
      bad |= value < grid.least && value > minus_infinity();
    }
  }

  /// The sources of frame t join pending for all longer durations, and all of it takes the frame.
  /// Among equals the later source wins: the shorter segment.
  DEVICE_MEMBER void push(const Call& call, int t) {
    const int others = longest - 1;
    if (others == 0) return;
    const int newest = t % longest;
    const int threads = blockDim.x;
    const int hop = threads / others;
    const int rest = threads % others;
    int j = threadIdx.x / others;
    int k = threadIdx.x % others;
    while (j < own) {
      const int duration = k + 2;
      const int slot = newest + duration < longest ? newest + duration
                                                   : newest + duration - longest;
      const long long place = static_cast<long long>(j) * longest + slot;
      const double known = duration == longest ? minus_infinity() : pending[place];
      const double joined = joining[j] + tap_of(call, j, duration);
      const bool later = joined >= known;
      pending[place] = (later ? joined : known) + emission[t % 2 * own + j];
      if (later) began[place] = t;
      j += hop;
      k += rest;
      if (k >= others) {
        k -= others;
        ++j;
      }
    }
  }

  DEVICE_MEMBER void take_values(int t) {
    const double* given = exchange + t % 2 * 2 * classes;
    const int* given_duration = reinterpret_cast<const int*>(given + classes);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
      values[c] = given[c];
      durations[c] = given_duration[c];
    }
  }

  /// The best label before a segment of class j of this block, one warp.
  DEVICE_MEMBER Candidate before(int j) const {
    const double* into = matrix + static_cast<long long>(j) * classes;
    Candidate best{minus_infinity(), 0};
#pragma unroll 4
    for (int other = threadIdx.x % 32; other < classes; other += 32) {
      const double score = values[other] + (rounded ? into[other] : grid(into[other]));
      const bool shorter = score == best.score && durations[other] < durations[best.choice];
      if (score > best.score || shorter) best = {score, other};
    }
    for (int lane = 16; lane > 0; lane /= 2) {
      Candidate other;
      other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
      other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
      best = better_label(best, other, durations);
    }
    return best;
  }

  /// Sources of the boundary after frame t.
  DEVICE_MEMBER void link(const Call& call, const BestRun& run, int t) {
    const int end = t + 1 <= run.own ? run.own : run.stop;
    const int kept = t + 1 - (end - longest) - 1;  // its place among those that chunks compare
    const bool keep = run.cut && kept >= 0;
    const long long ring =
        keep ? ring_of(call, row, run.chunk, t + 1 <= run.own ? 0 : 1) + kept : 0;
    if (keep && blockIdx.x == 0 && threadIdx.x == 0) call.best.ring_base[ring] = base;
    for (int j = threadIdx.x / 32; j < own; j += blockDim.x / 32) {
      const Candidate best = before(j);
      if (threadIdx.x % 32 != 0) continue;
      source[j] = best.score;
      if (t >= run.own) call.best.label[at_boundary(call, row, t + 1) + begin + j] = best.choice;
      if (keep) call.best.ring[ring * classes + begin + j] = best.score;
    }
  }

  /// The largest value goes back to about 0.
  DEVICE_MEMBER void rebase() {
    double largest = minus_infinity();
    for (int c = threadIdx.x % 32; c < classes; c += 32) largest = fmax(largest, values[c]);
    largest = warp_max(largest);
    if (largest == minus_infinity()) return;
    const double shift = (largest + grid.base_rounder) - grid.base_rounder;
    base += shift;
    __syncthreads();
    for (int j = threadIdx.x; j < own; j += blockDim.x) source[j] -= shift;
    for (int e = threadIdx.x; e < own * longest; e += blockDim.x) pending[e] -= shift;
  }

  /// The window as the chunk before left it, and the sources of the run's first boundary.
  DEVICE_MEMBER void resume(const Call& call, const BestRun& run) {
    const long long ring = ring_of(call, row, run.chunk - 1, 1);
    base = call.best.ring_base[ring + longest - 1];
    for (int i = 0; i < longest; ++i) {
      const int t = run.own - longest + 1 + i;
      if (i + 1 < longest) load_frame(call, t);
      __syncthreads();
      for (int j = threadIdx.x; j < own; j += blockDim.x) {
        source[j] = call.best.ring[(ring + i) * classes + begin + j] +
                    (call.best.ring_base[ring + i] - base);
        joining[j] = source[j] + enter[j];
      }
      __syncthreads();
      if (i + 1 < longest) push(call, t);
    }
  }

  /// Everything as before the run's first frame.
  DEVICE_MEMBER void start(const Call& call, const BestRun& run) {
    base = 0.0;
    __syncthreads();  // of a run before this one
    for (int e = threadIdx.x; e < own * longest; e += blockDim.x) {
      pending[e] = minus_infinity();
      began[e] = 0;
    }
    for (int j = threadIdx.x; j < own; j += blockDim.x)
      source[j] = run.first == 0 ? grid(score_of(call.scores.initial, begin + j, 0, 0)) : 0.0;
    __syncthreads();
    if (run.resumed) resume(call, run);
    load_frame(call, run.first);
    __syncthreads();
  }

  DEVICE_MEMBER void steps(const Call& call, const BestRun& run, TeamBarrier& barrier) {
    start(call, run);
    for (int t = run.first; t < run.stop; ++t) {
      if (t == run.own) bad = false;  // what became of the guess counts by its outcome
      close(call, t, t >= run.own);
      barrier.arrive();
      push(call, t);
      load_frame(call, t + 1);
      barrier.wait();
      take_values(t);
      __syncthreads();
      link(call, run, t);
      if ((t + 1) % kWideRebase == 0 && t + 1 < run.stop) rebase();
      __syncthreads();
    }
  }
};

/// grid (members, B, chunks); (members, B) to do chunks again, or rows in one piece whose sums may
/// have been rounded. Dynamic shared memory as lay_out takes it.
KERNEL __launch_bounds__(512, 1) wide_best(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, shared);
  __shared__ int pivot;
  WideBest pass;
  pass.lay_out(call, shared);
  const int row = pass.row;
  const int chunks = call.chunks.count;
  const bool again = call.chunks.redo != 0;
  bool whole = chunks == 1 || !pass.grid.exact;
  if (whole && (again || pass.chunk > 0)) return;
  volatile int* flags = call.lattice.flags + row;
  if (again) whole = (*flags & kInexact) != 0;
  TeamBarrier barrier{call.team.counter + row * gridDim.z + pass.chunk, call.team.members};
  bool changed = false;  // the chunk before has been done again
  int last = whole ? 1 : (again ? chunks : pass.chunk + 1);
  for (int chunk = whole ? 0 : (again ? 1 : pass.chunk); chunk < last; ++chunk) {
    const int own = whole ? 0 : chunk * call.chunks.steps;
    if (chunk > 0 && own >= pass.length) return;
    if (again && !whole) {
      changed = changed ? !same_ring(call, row, chunk, &pivot)
                        : call.best.wrong[row * chunks + chunk] != 0;
      if (!changed) continue;
    }
    const int stop = whole ? pass.length : min(pass.length, own + call.chunks.steps);
    const int first = again || chunk == 0 ? own : max(0, own - call.chunks.warm_up);
    const BestRun run{row, chunk, first, own, stop, pass.length, again && !whole, !whole};
    pass.steps(call, run, barrier);
    if (whole) continue;
    if (pass.bad) atomicOr(&call.lattice.flags[row], static_cast<int>(kInexact));
    if (!again) continue;
    barrier.arrive();  // the sources that this chunk goes out with are all there, and the flag
    barrier.wait();
    if ((*flags & kInexact) != 0) {  // sums have to round as in one piece
      whole = true;
      chunk = -1;
      last = 1;
    }
  }
}

}  // namespace segfuse::semicrf::gpu
