#pragma once
// The best labels before segments, for classes that a block of a team has.

#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// Scores of 24 bits have 24 bits on the grid too.
template <int kBytes>
struct OnGrid {
  using Type = float;
};
template <>
struct OnGrid<8> {
  using Type = double;
};

struct BestSources {
  using Held = OnGrid<sizeof(INPUT)>::Type;
  static constexpr int kEach = 4;

  int classes, own;
  ScoreGrid grid;
  double* values;        ///< (C) of the boundary at hand
  int* durations;        ///< (C) of the best segments that end there
  const Held* into;      ///< (own, C) scores that lead into a class; null: they are not held
  const double* matrix;  ///< the same in global memory, not on the grid

  DEVICE_MEMBER double score_into(int j, int other) const {
    const long long at = static_cast<long long>(j) * classes + other;
    return values[other] + (into != nullptr ? static_cast<double>(into[at]) : grid(matrix[at]));
  }

  /// Of all labels before class j with this score, that of the shortest segment; one warp.
  DEVICE_MEMBER int break_tie(int j, double score) const {
    Candidate best{minus_infinity(), 0};
    for (int other = threadIdx.x % 32; other < classes; other += 32)
      if (score_into(j, other) == score) best = better_label(best, {score, other}, durations);
    for (int lane = 16; lane > 0; lane /= 2) {
      Candidate other;
      other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
      other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
      best = better_label(best, other, durations);
    }
    return best.choice;
  }

  /// The best labels before segments of several classes of this block, one warp.
  DEVICE_MEMBER void before(int first_class, int hop, Candidate (&best)[kEach]) const {
    bool tied[kEach];
    int of[kEach];
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      best[u] = {minus_infinity(), 0};
      tied[u] = false;
      of[u] = min(first_class + u * hop, own - 1);
    }
#pragma unroll 2
    for (int other = threadIdx.x % 32; other < classes; other += 32) {
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const double score = score_into(of[u], other);
        tied[u] = (tied[u] && !(score > best[u].score)) || score == best[u].score;
        if (score > best[u].score) best[u] = {score, other};
      }
    }
    unsigned open = 0;  // classes for which several labels are best
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const double largest = warp_max(best[u].score);
      const bool mine = best[u].score == largest;
      const unsigned who = __ballot_sync(kAllLanes, mine);
      const bool several = __any_sync(kAllLanes, mine && tied[u]) || (who & (who - 1)) != 0;
      if (several && largest > minus_infinity()) open |= 1u << u;
      const int choice = __shfl_sync(kAllLanes, best[u].choice, __ffs(who) - 1);
      best[u] = {largest, largest > minus_infinity() ? choice : 0};
    }
#pragma unroll 1
    for (int u = 0; open >> u != 0; ++u) {
      if ((open >> u & 1u) == 0) continue;
      double largest = 0.0;
#pragma unroll
      for (int v = 0; v < kEach; ++v) largest = u == v ? best[v].score : largest;
      const int choice = break_tie(min(first_class + u * hop, own - 1), largest);
#pragma unroll
      for (int v = 0; v < kEach; ++v) best[v].choice = u == v ? choice : best[v].choice;
    }
  }
};

}  // namespace segfuse::semicrf::gpu
