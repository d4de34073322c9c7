#pragma once
// The best segmentation for sizes whose state does not fit the registers of one multiprocessor: the
// recursion, the rounding and the cuts in time of scan.cuh, the classes dealt out to the blocks of
// a team. A block keeps its classes' durations and pending scores, and its part of the matrix, in
// shared memory where they fit. Sums are exact (grid.cuh) or made in one order, and ties have one
// winner, so how many blocks there are shows nowhere.
//
// pending[t mod K] is the best score that the sources known so far give to boundary t, and began
// where its segment began.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/best/run.cuh"
#include "semicrf/cuda/kernels/best/sources.cuh"
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
struct WideBest : BestSources {
  int row, chunk, length, longest;
  int begin;  ///< classes [begin, begin + own)
  TeamValues given;
  double base;
  unsigned turn;  ///< of the values at hand, over all runs of the launch
  int newest;     ///< frame modulo K
  bool bad;
  double next_emission, next_enter, next_leave;  ///< of the frame after the next, as stored
  double* source;  ///< (own) in shared memory, as values and durations; and so on
  double* joining;
  double* enter;
  double* leave;
  double* emission;  ///< (2, own) of frames by turns
  const Held* tap;   ///< (own, K) of durations; null: they are read where the caller has them
  double* pending;   ///< (own, K), in global memory where it does not fit
  int* began;        ///< (own, K)

  DEVICE_MEMBER double tap_of(const Call& call, int j, int k) const {
    return tap != nullptr ? tap[j * longest + k - 1]
                          : grid(load(call.scores.duration, k - 1, begin + j, 0));
  }

  /// Cells of pending and began.
  DEVICE_MEMBER long long window() const { return static_cast<long long>(own) * longest; }

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
    turn = 0;
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
    const long long all = static_cast<long long>(classes) * longest;
    pending = call.pending + 2 * place * all + static_cast<long long>(begin) * longest;
    began = reinterpret_cast<int*>(call.pending + (2 * place + 1) * all) +
            static_cast<long long>(begin) * longest;
    tap = nullptr;
    if (call.team.window_shared != 0) {
      pending = rest;
      began = reinterpret_cast<int*>(pending + own * longest);
      rest += own * longest + (own * longest + 1) / 2;
      Held* taps = reinterpret_cast<Held*>(rest);
      for (int i = thread; i < own * longest; i += threads)
        taps[i % own * longest + i / own] =
            static_cast<Held>(grid(load(call.scores.duration, i / own, begin + i % own, 0)));
      tap = taps;
      rest += (own * longest * static_cast<int>(sizeof(Held)) + 7) / 8;
    }
    matrix = call.team.into + static_cast<long long>(begin) * classes;
    into = nullptr;
    if (call.team.matrix_shared != 0) {
      Held* held = reinterpret_cast<Held*>(rest);
      for (int i = thread; i < own * classes; i += threads)
        held[i] = static_cast<Held>(grid(matrix[i]));
      into = held;
    }
    given = {reinterpret_cast<unsigned long long*>(call.team.exchange) +
                 place * 2 * classes * TeamValues::kWords,
             classes};
  }

  /// Loads of frame t begin: of the first class that the thread has.
  DEVICE_MEMBER void ask_for_frame(const Call& call, int t) {
    const int c = begin + threadIdx.x;
    if (t >= length || static_cast<int>(threadIdx.x) >= own) return;
    next_emission = load(call.scores.emission, row, t, c);
    next_enter = score_of(call.scores.start, row, t, c);
    next_leave = score_of(call.scores.end, row, t, c);
  }

  /// Scores of frame t, which have been asked for; asks for those of the next.
  DEVICE_MEMBER void load_frame(const Call& call, int t) {
    if (t >= length) return;
    int j = threadIdx.x;
    if (j < own) {
      emission[t % 2 * own + j] = grid(next_emission);
      enter[j] = grid(next_enter);
      leave[j] = grid(next_leave);
    }
    for (j += blockDim.x; j < own; j += blockDim.x) {
      emission[t % 2 * own + j] = grid(load(call.scores.emission, row, t, begin + j));
      enter[j] = grid(score_of(call.scores.start, row, t, begin + j));
      leave[j] = grid(score_of(call.scores.end, row, t, begin + j));
    }
    ask_for_frame(call, t + 1);
  }

  /// Values of the boundary after frame t, to all blocks.
  DEVICE_MEMBER void close(const Call& call, int t, bool mine, bool together) {
    const long long at = at_boundary(call, row, t + 1) + begin;
    const int slot = newest + 1 < longest ? newest + 1 : 0;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      const long long place = static_cast<long long>(j) * longest + slot;
      const double w = source[j] + enter[j];
      const double known = longest > 1 ? pending[place] : minus_infinity();
      const bool later = w + tap_of(call, j, 1) >= known;
      const double value =
          (later ? w + tap_of(call, j, 1) : known) + emission[t % 2 * own + j] + leave[j];
      const int duration = later ? 1 : t + 1 - began[place];
      joining[j] = w;
      if (together) {
        given.put(turn, begin + j, value, duration);
      } else {
        values[j] = value;
        durations[j] = duration;
      }
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
    const int hop = blockDim.x / others;
    const int rest = blockDim.x % others;
    int j = threadIdx.x / others;
    int k = threadIdx.x % others;
    while (j < own) {
      const int duration = k + 2;
      const int slot =
          newest + duration < longest ? newest + duration : newest + duration - longest;
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

  DEVICE_MEMBER void take_values() {
    for (int c = threadIdx.x; c < classes; c += blockDim.x)
      values[c] = given.take(turn, c, durations + c);
  }

  /// Sources of the boundary after frame t.
  DEVICE_MEMBER void link(const Call& call, const BestRun& run, int t) {
    const int end = t + 1 <= run.own ? run.own : run.stop;
    const int kept = t + 1 - (end - longest) - 1;  // its place among those that chunks compare
    const bool keep = run.cut && kept >= 0;
    const long long ring =
        keep ? ring_of(call, row, run.chunk, t + 1 <= run.own ? 0 : 1) + kept : 0;
    if (keep && blockIdx.x == 0 && threadIdx.x == 0) call.best.ring_base[ring] = base;
    const int warps = blockDim.x / 32;
    for (int first = threadIdx.x / 32; first < own; first += kEach * warps) {
      Candidate best[kEach];
      before(first, warps, best);
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const int j = first + u * warps;
        if (threadIdx.x % 32 != 0 || j >= own) continue;
        source[j] = best[u].score;
        if (t >= run.own)
          call.best.label[at_boundary(call, row, t + 1) + begin + j] = best[u].choice;
        if (keep) call.best.ring[ring * classes + begin + j] = best[u].score;
      }
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
    for (long long e = threadIdx.x; e < window(); e += blockDim.x) pending[e] -= shift;
  }

  /// The window as the chunk before left it, and the sources of the run's first boundary.
  DEVICE_MEMBER void resume(const Call& call, const BestRun& run) {
    const long long ring = ring_of(call, row, run.chunk - 1, 1);
    base = call.best.ring_base[ring + longest - 1];
    ask_for_frame(call, run.own - longest + 1);
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
      newest = t % longest;
      if (i + 1 < longest) push(call, t);
    }
  }

  /// Everything as before the run's first frame.
  DEVICE_MEMBER void start(const Call& call, const BestRun& run) {
    base = 0.0;
    __syncthreads();  // of a run before this one
    for (long long e = threadIdx.x; e < window(); e += blockDim.x) {
      pending[e] = minus_infinity();
      began[e] = 0;
    }
    for (int j = threadIdx.x; j < own; j += blockDim.x)
      source[j] = run.first == 0 ? grid(score_of(call.scores.initial, begin + j, 0, 0)) : 0.0;
    __syncthreads();
    if (run.resumed) resume(call, run);
    newest = run.first % longest;
    ask_for_frame(call, run.first);
    load_frame(call, run.first);
    __syncthreads();
  }

  DEVICE_MEMBER void steps(const Call& call, const BestRun& run) {
    const bool together = call.team.members > 1;
    start(call, run);
    for (int t = run.first; t < run.stop; ++t) {
      if (t == run.own) bad = false;  // what became of the guess counts by its outcome
      ++turn;
      close(call, t, t >= run.own, together);
      __syncthreads();
      push(call, t);
      load_frame(call, t + 1);
      if (together) take_values();
      __syncthreads();
      link(call, run, t);
      if ((t + 1) % kWideRebase == 0 && t + 1 < run.stop) rebase();
      newest = newest + 1 < longest ? newest + 1 : 0;
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
  const bool again = call.chunks.round != 0;
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
    pass.steps(call, run);
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
