#pragma once
// The best segmentation with all state in registers, of one block or of a cluster: the layout of
// sum/scan.cuh in the max-plus semiring, in natural units. A pending sum becomes the best score
// that the known sources give to a boundary ahead. No pointers back are kept: recover.cuh finds
// them from the values, in parallel over time, so that a step does no more than a maximum for each
// product of a sum.
//
// Frames gather in `grown`, and sources join less by it, until pending takes it every kRebase
// frames. A frame that forbids the class is taken at once, and so is every frame of a row whose
// sums round: those are the sums that a plain recursion forms.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/best/run.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/cluster.cuh"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/far.cuh"

namespace segfuse::semicrf::gpu {

template <int kClasses, int kGroup, int kTaps, int kBlocks, bool kFar>
struct BestScan {
  static constexpr int kAll = kClasses;
  static constexpr int kSources = (kClasses + kGroup - 1) / kGroup;
  /// A group's lanes read 16 bytes each from different banks.
  static constexpr int kPart = (kSources + 13) / 16 * 16 + 2;
  static constexpr int kOwn = classes_of_block(kClasses, kBlocks);

  double from[kSources];
  double tap[kTaps + 1];
  double pending[kTaps];  ///< less `grown`
  FarWindow<kFar> far;    ///< durations and pending scores beyond those
  double far_more;        ///< to be added to its scores
  double grown;           ///< emissions since pending took them
  double least_frame;     ///< smaller emissions are taken at once
  int lane_of_class;
  int c;
  bool active;
  bool keeps_base;  ///< writes what all classes share

  DEVICE_MEMBER void init(const Call& call, const ScoreGrid& grid, int block, double* shared) {
    lane_of_class = threadIdx.x % kGroup;
    const int own = threadIdx.x / kGroup;
    c = block * kOwn + own;
    active = own < kOwn && c < kClasses;
    keeps_base = block == 0 && threadIdx.x == 0;
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
    far.init(shared, call.sizes.max_duration - kGroup * kTaps, active ? own : -1, lane_of_class);
    far.template fill<kGroup>(
        [&](int i) { return grid(load(call.scores.duration, kGroup * kTaps + i, c, 0)); });
  }

  DEVICE_MEMBER void clear() {
    grown = 0.0;
    far_more = 0.0;
    far.template clear<kGroup>(minus_infinity());
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
    const double beyond = kFar ? far.first(minus_infinity()) + far_more : minus_infinity();
    double next = beyond;
    if (kGroup > 1) {
      next = __shfl_down_sync(kAllLanes, pending[0], 1);
      if (lane_of_class == kGroup - 1) next = beyond;
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
      pending[j] =
          larger(w + tap[j + 1], j + 1 < kTaps ? pending[j + 1 < kTaps ? j + 1 : 0] : next);
    if constexpr (kFar) {
      far.template advance<kGroup>(minus_infinity(), [&](double known, double score) {
        return larger(w + score, known + far_more);
      });
      far_more = 0.0;
    }
    if (emission >= least_frame) {
      grown += emission;
      return;
    }
    add(emission);
  }

  DEVICE_MEMBER void add(double more) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] += more;
    if (kFar) far_more += more;
  }

  /// Pending takes what has grown, all of it less by `shift`.
  DEVICE_MEMBER void rebase(double shift) {
    add(grown - shift);
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
    if (lane.keeps_base) call.best.ring_base[mine + i] = kept_base;
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
  if (lane.keeps_base) call.best.ring_base[ring] = base;
}

/// True when some sum may have been rounded.
template <bool kEdges, class Lane, class Values>
DEVICE bool best_steps(const Call& call, const ScoreGrid& grid, const BestRun& run, Lane& lane,
                       const Values& boundary) {
  constexpr int kClasses = Lane::kAll;
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
  if (lane.keeps_base && run.first == 0) bases[0] = base;
  FrameScores next;
  next.load_from<kEdges>(call, run.row, run.first, run.length, lane.c);
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
          boundary.put(u, slot, value);
          if (mine) call.lattice.alpha[at] = value;
        }
        if (mine && lane.keeps_base) bases[t + 1] = base;
        bad |= value < grid.least && value > minus_infinity();
        lane.push(w, emission);
        boundary.wait(u);
        source = lane.link(boundary.of(u));
        if (writer && mine) call.lattice.gamma[at] = source;
        if (run.cut) keep_source(call, run, lane, t + 1, source, base, writer);
      }
    }
    if ((begin + 4) % kRebase == 0 && begin + 4 < run.stop) {
      double largest = minus_infinity();
      if constexpr (Values::kAlone) {
#pragma unroll 4
        for (int c = 0; c < kClasses; ++c) largest = fmax(largest, boundary.of(3)[slot_of(c)]);
      } else {
        for (int c = threadIdx.x % 32; c < kClasses; c += 32)
          largest = fmax(largest, boundary.of(3)[slot_of(c)]);
        largest = warp_max(largest);
      }
      const double shift =
          largest > minus_infinity() ? (largest + grid.base_rounder) - grid.base_rounder : 0.0;
      source -= shift;
      base += shift;
      lane.rebase(shift);
    }
  }
  return bad;
}

/// kEdges: there are start or end scores. grid (kBlocks * B, chunks); (kBlocks * B) to do chunks
/// again. Dynamic shared memory for a Boundary, a number and a FarWindow.
template <int kClasses, int kGroup, int kTaps, bool kEdges, int kBlocks, bool kFar>
DEVICE void best_row(const Call& call) {
  using Lane = BestScan<kClasses, kGroup, kTaps, kBlocks, kFar>;
  using Values = Boundary<kClasses, kBlocks, kGroup * Lane::kPart>;
  DYNAMIC_SHARED(double, shared);
  double* values = shared;
  int* pivot = reinterpret_cast<int*>(shared + Values::kDoubles);
  if constexpr (kBlocks == 1) {  // at addresses that the assembler knows
    __shared__ double placed[Values::kDoubles];
    __shared__ int place;
    values = placed;
    pivot = &place;
  }
  const int row = blockIdx.x / kBlocks;
  const int block = blockIdx.x % kBlocks;
  const int length = row_length(call, row);
  const ScoreGrid grid = grid_of_row(call, row);
  const int chunks = call.chunks.count;
  const bool again = call.chunks.round != 0;
  bool whole = chunks == 1 || !grid.exact;
  if (whole && (again || blockIdx.y > 0)) return;
  const volatile int* flags = call.lattice.flags + row;
  if (again) whole = (*flags & kInexact) != 0;
  Lane lane;
  lane.init(call, grid, block, shared + Values::kDoubles + 1);
  Values boundary;
  boundary.start(values);
  const bool has_classes = warp_has_classes<kClasses, kBlocks, kGroup>(block);
  bool changed = false;  // the chunk before has been done again
  int last = whole ? 1 : (again ? chunks : blockIdx.y + 1);
#pragma unroll 1
  for (int chunk = whole ? 0 : (again ? 1 : blockIdx.y); chunk < last; ++chunk) {
    const int own = whole ? 0 : chunk * call.chunks.steps;
    if (chunk > 0 && own >= length) return;
    if (again && !whole) {
      changed = changed ? !same_ring(call, row, chunk, pivot)
                        : call.best.wrong[row * chunks + chunk] != 0;
      if (!changed) continue;
    }
    const int stop = whole ? length : min(length, own + call.chunks.steps);
    const int first = again || chunk == 0 ? own : max(0, own - call.chunks.warm_up);
    const BestRun run{row, chunk, first, own, stop, length, again && !whole, !whole};
    if (has_classes && best_steps<kEdges>(call, grid, run, lane, boundary))
      if (!whole) atomicOr(&call.lattice.flags[row], static_cast<int>(kInexact));
    if (!again) return;
    const bool rounded = (boundary.restart(flags) & kInexact) != 0;
    if (!whole && rounded) {  // sums have to round as in one piece
      whole = true;
      chunk = -1;
      last = 1;
    }
  }
}

}  // namespace segfuse::semicrf::gpu
