#pragma once
// The best segmentation with all state in registers: the layout of sum/scan.cuh in the max-plus
// semiring, in natural units, with back pointers. A pending sum becomes the best score that the
// known sources give to a boundary ahead, and where its segment began.

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
  double pending[kTaps];
  int began[kTaps];
  int lane_of_class;
  int c;
  bool active;

  DEVICE_MEMBER void init(const Call& call, const ScoreGrid& grid) {
    lane_of_class = threadIdx.x % kGroup;
    c = threadIdx.x / kGroup;
    active = c < kClasses;
    if (!active) c = kClasses - 1;
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
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      pending[j] = minus_infinity();
      began[j] = 0;
    }
  }

  /// Among this lane's labels of the best score, that of the shortest last segment. Marks them
  /// first, so that the loop with the loads needs no unrolling.
  DEVICE_MEMBER int break_tie(const double* part, double score, const int* durations) const {
    int label = -1;
#pragma unroll
    for (int base = 0; base < kSources; base += 32) {
      unsigned best = 0;
#pragma unroll
      for (int i = base; i < (base + 32 < kSources ? base + 32 : kSources); ++i)
        best |= part[i] + from[i] == score ? 1u << (i - base) : 0u;
#pragma unroll 1
      for (int other = lane_of_class * kSources + base; best != 0; best >>= 1, ++other)
        if ((best & 1u) != 0 && (label < 0 || durations[other] < durations[label])) label = other;
    }
    return label;
  }

  /// The best label before a segment of this lane's class, and its score. `durations` are those of
  /// the labels' last segments.
  DEVICE_MEMBER Candidate link(const double* values, const int* durations) const {
    const double* part = values + lane_of_class * kPart;
    Candidate best{part[0] + from[0], lane_of_class * kSources};
    bool tied = false;
#pragma unroll
    for (int i = 1; i < kSources; ++i) {
      const double score = part[i] + from[i];
      tied = (tied && !(score > best.score)) || score == best.score;
      if (score > best.score) best = {score, lane_of_class * kSources + i};
    }
    if (tied && best.score > minus_infinity()) best.choice = break_tie(part, best.score, durations);
#pragma unroll
    for (int lane = kGroup / 2; lane > 0; lane /= 2) {
      Candidate other;
      other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
      other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
      best = better_label(best, other, durations);
    }
    return best;
  }

  /// The source of frame t joins pending, which moves on by the frame. Among equals the later
  /// source wins: the shorter segment.
  DEVICE_MEMBER void push(double w, double emission, int t) {
    double next = minus_infinity();
    int next_began = 0;
    if (kGroup > 1) {
      next = __shfl_down_sync(kAllLanes, pending[0], 1);
      next_began = __shfl_down_sync(kAllLanes, began[0], 1);
      if (lane_of_class == kGroup - 1) next = minus_infinity();
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const double known = j + 1 < kTaps ? pending[j + 1 < kTaps ? j + 1 : 0] : next;
      const int known_began = j + 1 < kTaps ? began[j + 1 < kTaps ? j + 1 : 0] : next_began;
      const double joining = w + tap[j + 1];
      const bool later = joining >= known;
      pending[j] = (later ? joining : known) + emission;
      began[j] = later ? t : known_began;
    }
  }
};

/// The scores of one stride of frames, loaded before they are needed.
struct FrameScores {
  double emission[4];
  double start[4];
  double end[4];

  template <bool kEdges>
  DEVICE_MEMBER void load_from(const Call& call, const ScoreGrid& grid, int row, int t, int length,
                               int c) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int frame = min(t + u, length - 1);
      const bool inside = frame >= 0;
      emission[u] = inside ? grid(load(call.scores.emission, row, frame, c)) : 0.0;
      start[u] = kEdges && inside ? grid(score_of(call.scores.start, row, frame, c)) : 0.0;
      end[u] = kEdges && inside ? grid(score_of(call.scores.end, row, frame, c)) : 0.0;
    }
  }
};

/// The window as the chunk before left it; returns the source of the run's first boundary.
template <bool kEdges, class Lane>
DEVICE double resume(const Call& call, const ScoreGrid& grid, const BestRun& run, Lane& lane,
                     double& base) {
  const int longest = call.sizes.max_duration;
  const long long ring = ring_of(call, run.row, run.chunk - 1, 1);
  base = call.best.ring_base[ring + longest - 1];
  double source = 0.0;
#pragma unroll 1
  for (int i = 0; i < longest; ++i) {
    source = call.best.ring[(ring + i) * call.sizes.classes + lane.c] +
             (call.best.ring_base[ring + i] - base);
    if (i + 1 == longest) break;
    const int t = run.own - longest + 1 + i;
    const double start = kEdges ? grid(score_of(call.scores.start, run.row, t, lane.c)) : 0.0;
    lane.push(source + start, grid(load(call.scores.emission, run.row, t, lane.c)), t);
  }
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
                       BestScan<kClasses, kGroup, kTaps>& lane, double* values, int* durations) {
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
  if (run.resumed) source = resume<kEdges>(call, grid, run, lane, base);
  long long at = at_boundary(call, run.row, run.first) + lane.c;
  FrameScores next;
  next.load_from<kEdges>(call, grid, run.row, run.first, run.length, lane.c);
  __syncthreads();
#pragma unroll 1
  for (int begin = run.first; begin < run.stop; begin += 4) {
    if (begin == run.own) bad = false;  // what became of the guess counts by its outcome
    const FrameScores now = next;
    next.load_from<kEdges>(call, grid, run.row, begin + 4, run.length, lane.c);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int t = begin + u;
      if (t < run.stop) {
        at += kClasses;
        const double w = source + now.start[u];
        const bool later = w + lane.tap[0] >= lane.pending[0];
        const double value =
            (later ? w + lane.tap[0] : lane.pending[0]) + now.emission[u] + now.end[u];
        const bool mine = writer && t >= run.own;
        if (writer) {
          values[u % 2 * kValues + slot] = value;
          const int duration = later ? 1 : t + 1 - lane.began[0];
          durations[u % 2 * kClasses + lane.c] = duration;
          if (mine) call.best.duration[at] = duration;
          if (t + 1 == run.length) call.lattice.alpha[at] = value;
        }
        bad |= value < grid.least && value > minus_infinity();
        lane.push(w, now.emission[u], t);
        __syncthreads();
        const Candidate before = lane.link(values + u % 2 * kValues, durations + u % 2 * kClasses);
        source = before.score;
        if (mine) call.best.label[at] = before.choice;
        if (run.cut) keep_source(call, run, lane, t + 1, source, base, writer);
      }
    }
    if ((begin + 4) % kRebase == 0 && begin + 4 < run.stop) {
      double largest = minus_infinity();
#pragma unroll 4
      for (int c = 0; c < kClasses; ++c) largest = fmax(largest, values[kValues + slot_of(c)]);
      if (largest > minus_infinity()) {
        const double shift = (largest + grid.base_rounder) - grid.base_rounder;
        source -= shift;
        base += shift;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) lane.pending[j] -= shift;
      }
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
  __shared__ int durations[2 * kClasses];
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
    const bool bad =
        best_steps<kClasses, kGroup, kTaps, kEdges>(call, grid, run, lane, values, durations);
    if (whole) continue;
    if (!again && bad) atomicOr(&call.lattice.flags[row], static_cast<int>(kInexact));
    if (again && !__syncthreads_and(!bad)) {  // sums have to round as in one piece
      whole = true;
      chunk = -1;
      last = 1;
    }
  }
}

}  // namespace segfuse::semicrf::gpu
