#pragma once
// The best segmentation with all state in registers: the layout of sum/scan.cuh in the max-plus
// semiring, in natural units. A pending sum becomes the best score that the known sources give to a
// boundary ahead. No pointers back are kept: recover.cuh finds them from the values, in parallel
// over time, so that a step does no more than a maximum for each product of a sum.
//
// Frames gather in `grown`, and sources join less by it, until pending takes it every kRebase
// frames. A frame that forbids the class is taken at once, and so is every frame of a row whose
// sums round: those are the sums that a plain recursion forms.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/best/run.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

template <int kClasses, int kGroup, int kTaps>
struct BestScan {
  static constexpr int kSources = (kClasses + kGroup - 1) / kGroup;
  /// A group's lanes read 16 bytes each from different banks.
  static constexpr int kPart = (kSources + 13) / 16 * 16 + 2;

  double from[kSources];
  double tap[kTaps + 1];
  double pending[kTaps];  ///< less `grown`
  double grown;           ///< emissions since pending took them
  double least_frame;     ///< smaller emissions are taken at once
  int lane_of_class;
  int c;
  bool active;

  DEVICE_MEMBER void init(const Call& call, const ScoreGrid& grid) {
    lane_of_class = threadIdx.x % kGroup;
    c = threadIdx.x / kGroup;
    active = c < kClasses;
    if (!active) c = kClasses - 1;
    const double largest = __longlong_as_double(0x7fefffffffffffffll);
    least_frame = grid.exact ? -largest : -minus_infinity();
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const int other = lane_of_class * kSources + i;
      from[i] =
          other < kClasses ? grid(load(call.scores.transition, 0, other, c)) : minus_infinity();
    }
#pragma unroll
    for (int j = 0; j <= kTaps; ++j) {
      const int k = lane_of_class * kTaps + j;
      tap[j] = k < call.sizes.max_duration ? grid(load(call.scores.duration, k, c, 0))
                                           : minus_infinity();
    }
  }

  DEVICE_MEMBER void clear() {
    grown = 0.0;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] = minus_infinity();
  }

  static DEVICE_MEMBER double larger(double a, double b) { return a > b ? a : b; }

  /// The best score before a segment of this lane's class.
  DEVICE_MEMBER double link(const double* values) const {
    constexpr int kChains = kSources < 4 ? kSources : 4;
    const double* part = values + lane_of_class * kPart;
    double best[kChains];
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const double score = part[i] + from[i];
      best[i % kChains] = i < kChains ? score : larger(score, best[i % kChains]);
    }
#pragma unroll
    for (int i = 1; i < kChains; ++i) best[0] = larger(best[0], best[i]);
#pragma unroll
    for (int lane = kGroup / 2; lane > 0; lane /= 2)
      best[0] = larger(best[0], __shfl_xor_sync(kAllLanes, best[0], lane));
    return best[0];
  }

  /// The source of a frame, less `grown`, joins pending, which moves on by the frame.
  DEVICE_MEMBER void push(double w, double emission) {
    double next = minus_infinity();
    if (kGroup > 1) {
      next = __shfl_down_sync(kAllLanes, pending[0], 1);
      if (lane_of_class == kGroup - 1) next = minus_infinity();
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
      pending[j] =
          larger(w + tap[j + 1], j + 1 < kTaps ? pending[j + 1 < kTaps ? j + 1 : 0] : next);
    if (emission >= least_frame) {
      grown += emission;
      return;
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] += emission;
  }

  /// Pending takes what has grown, all of it less by `shift`.
  DEVICE_MEMBER void rebase(double shift) {
    const double more = grown - shift;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] += more;
    grown = 0.0;
  }
};

/// The scores of one stride of frames, loaded before they are needed, as stored: they wait in
/// fewer registers.
struct FrameScores {
  INPUT emission[4];
  INPUT start[4];
  INPUT end[4];

  template <bool kEdges>
  DEVICE_MEMBER void load_from(const Call& call, int row, int t, int length, int c) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int frame = min(t + u, length - 1);
      const bool inside = frame >= 0;
      emission[u] = inside ? stored(call.scores.emission, row, frame, c) : from_double(0.0);
      if (!kEdges) continue;
      start[u] = inside ? stored(call.scores.start, row, frame, c) : from_double(0.0);
      end[u] = inside ? stored(call.scores.end, row, frame, c) : from_double(0.0);
    }
  }

 private:
  static DEVICE_MEMBER INPUT stored(const Strided& scores, long long i, long long j, long long k) {
    if (scores.data == nullptr) return from_double(0.0);
    const long long at = i * scores.stride[0] + j * scores.stride[1] + k * scores.stride[2];
    return static_cast<const INPUT*>(scores.data)[at];
  }
};

/// The window as the chunk before left it, which is now what came before this chunk; returns the
/// source of the run's first boundary.
template <bool kEdges, class Lane>
DEVICE double resume(const Call& call, const ScoreGrid& grid, const BestRun& run, Lane& lane,
                     double& base, bool writer) {
  const int longest = call.sizes.max_duration;
  const int classes = call.sizes.classes;
  const long long theirs = ring_of(call, run.row, run.chunk - 1, 1);
  const long long mine = ring_of(call, run.row, run.chunk, 0);
  base = call.best.ring_base[theirs + longest - 1];
  double source = 0.0;
#pragma unroll 1
  for (int i = 0; i < longest; ++i) {
    const double kept = call.best.ring[(theirs + i) * classes + lane.c];
    const double kept_base = call.best.ring_base[theirs + i];
    if (writer) call.best.ring[(mine + i) * classes + lane.c] = kept;
    if (threadIdx.x == 0) call.best.ring_base[mine + i] = kept_base;
    source = kept + (kept_base - base);
    if (i + 1 == longest) break;
    const int t = run.own - longest + 1 + i;
    const double start = kEdges ? grid(score_of(call.scores.start, run.row, t, lane.c)) : 0.0;
    lane.push(source + start - lane.grown, grid(load(call.scores.emission, run.row, t, lane.c)));
  }
  lane.rebase(0.0);
  return source;
}

/// Sources that other chunks compare with; `s` is the boundary.
template <class Lane>
DEVICE void keep_source(const Call& call, const BestRun& run, const Lane& lane, int s,
                        double source, double base, bool writer) {
  const int longest = call.sizes.max_duration;
  const int end = s <= run.own ? run.own : run.stop;
  const int i = s - (end - longest) - 1;
  if (i < 0) return;
  const long long ring = ring_of(call, run.row, run.chunk, s <= run.own ? 0 : 1) + i;
  if (writer) call.best.ring[ring * call.sizes.classes + lane.c] = source;
  if (threadIdx.x == 0) call.best.ring_base[ring] = base;
}

/// True when some sum may have been rounded.
template <int kClasses, int kGroup, int kTaps, bool kEdges>
DEVICE bool best_steps(const Call& call, const ScoreGrid& grid, const BestRun& run,
                       BestScan<kClasses, kGroup, kTaps>& lane, double* values) {
  using Lane = BestScan<kClasses, kGroup, kTaps>;
  constexpr int kValues = kGroup * Lane::kPart;
  constexpr int kRebase = 32;
  const bool writer = lane.active && lane.lane_of_class == 0;
  const auto slot_of = [](int c) { return c / Lane::kSources * Lane::kPart + c % Lane::kSources; };
  const int slot = slot_of(lane.c);
  bool bad = false;
  double base = 0.0;
  lane.clear();
  double source = run.first == 0 ? grid(score_of(call.scores.initial, lane.c, 0, 0)) : 0.0;
  if (run.resumed) source = resume<kEdges>(call, grid, run, lane, base, writer);
  long long at = at_boundary(call, run.row, run.first) + lane.c;
  double* const bases = call.best.base + static_cast<long long>(run.row) * (call.sizes.frames + 1);
  if (writer && run.first == 0) call.lattice.gamma[at] = source;
  if (threadIdx.x == 0 && run.first == 0) bases[0] = base;
  FrameScores next;
  next.load_from<kEdges>(call, run.row, run.first, run.length, lane.c);
  __syncthreads();
#pragma unroll 1
  for (int begin = run.first; begin < run.stop; begin += 4) {
    if (begin == run.own) bad = false;  // what became of the guess counts by its outcome
    const FrameScores now = next;
    next.load_from<kEdges>(call, run.row, begin + 4, run.length, lane.c);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int t = begin + u;
      if (t < run.stop) {
        at += kClasses;
        const double emission = grid(to_double(now.emission[u]));
        const double start = kEdges ? grid(to_double(now.start[u])) : 0.0;
        const double end = kEdges ? grid(to_double(now.end[u])) : 0.0;
        const double w = source + start - lane.grown;
        const double value =
            Lane::larger(w + lane.tap[0], lane.pending[0]) + (lane.grown + emission) + end;
        const bool mine = t >= run.own;
        if (writer) {
          values[u % 2 * kValues + slot] = value;
          if (mine) call.lattice.alpha[at] = value;
        }
        if (mine && threadIdx.x == 0) bases[t + 1] = base;
        bad |= value < grid.least && value > minus_infinity();
        lane.push(w, emission);
        __syncthreads();
        source = lane.link(values + u % 2 * kValues);
        if (writer && mine) call.lattice.gamma[at] = source;
        if (run.cut) keep_source(call, run, lane, t + 1, source, base, writer);
      }
    }
    if ((begin + 4) % kRebase == 0 && begin + 4 < run.stop) {
      double largest = minus_infinity();
#pragma unroll 4
      for (int c = 0; c < kClasses; ++c) largest = fmax(largest, values[kValues + slot_of(c)]);
      const double shift =
          largest > minus_infinity() ? (largest + grid.base_rounder) - grid.base_rounder : 0.0;
      source -= shift;
      base += shift;
      lane.rebase(shift);
    }
  }
  __syncthreads();
  return bad;
}

/// kEdges: there are start or end scores. grid (B, chunks); (B) to do chunks again.
template <int kClasses, int kGroup, int kTaps, bool kEdges>
DEVICE void best_row(const Call& call) {
  using Lane = BestScan<kClasses, kGroup, kTaps>;
  __shared__ double values[2 * kGroup * Lane::kPart];
  __shared__ int pivot;
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const ScoreGrid grid = grid_of_row(call, row);
  const int chunks = call.chunks.count;
  const bool again = call.chunks.round != 0;
  bool whole = chunks == 1 || !grid.exact;
  if (whole && (again || blockIdx.y > 0)) return;
  if (again) whole = (call.lattice.flags[row] & kInexact) != 0;
  for (int i = threadIdx.x; i < 2 * kGroup * Lane::kPart; i += blockDim.x) values[i] = 0.0;
  Lane lane;
  lane.init(call, grid);
  bool changed = false;  // the chunk before has been done again
  int last = whole ? 1 : (again ? chunks : blockIdx.y + 1);
#pragma unroll 1
  for (int chunk = whole ? 0 : (again ? 1 : blockIdx.y); chunk < last; ++chunk) {
    const int own = whole ? 0 : chunk * call.chunks.steps;
    if (chunk > 0 && own >= length) return;
    if (again && !whole) {
      changed = changed ? !same_ring(call, row, chunk, &pivot)
                        : call.best.wrong[row * chunks + chunk] != 0;
      if (!changed) continue;
    }
    const int stop = whole ? length : min(length, own + call.chunks.steps);
    const int first = again || chunk == 0 ? own : max(0, own - call.chunks.warm_up);
    const BestRun run{row, chunk, first, own, stop, length, again && !whole, !whole};
    const bool bad = best_steps<kClasses, kGroup, kTaps, kEdges>(call, grid, run, lane, values);
    if (whole) continue;
    if (bad) atomicOr(&call.lattice.flags[row], static_cast<int>(kInexact));
    if (again && !__syncthreads_and(!bad)) {  // sums have to round as in one piece
      whole = true;
      chunk = -1;
      last = 1;
    }
  }
}

}  // namespace segfuse::semicrf::gpu
