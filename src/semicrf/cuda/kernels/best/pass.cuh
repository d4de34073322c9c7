#pragma once
// The best segmentation: the passes of sum/exact.cuh with max for sum, in natural units, with back
// pointers. Ties: the smallest duration, then the smallest label, from the last segment on.

#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"

namespace segfuse::semicrf::gpu {

/// The best of a group of lanes, by `choose`; all of them get it.
template <class Choose>
DEVICE Candidate group_best(Candidate x, Choose choose) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2) {
    Candidate other;
    other.score = __shfl_xor_sync(kAllLanes, x.score, lane);
    other.choice = __shfl_xor_sync(kAllLanes, x.choice, lane);
    x = choose(x, other);
  }
  return x;
}

/// grid (B). alpha and gamma hold scores.
KERNEL best_pass(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  const int lane = threadIdx.x % kExactLanes;
  const int group = threadIdx.x / kExactLanes;
  const int groups = blockDim.x / kExactLanes;
  const int rounds = (classes + groups - 1) / groups;
  const ScoreGrid grid = grid_of_row(call, row);
  double* source = call.lattice.gamma;
  double* value = call.lattice.alpha;
  double* ring = call.pending + static_cast<long long>(row) * longest * classes;

  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    source[at_boundary(call, row, 0) + c] = grid(score_of(call.scores.initial, c, 0, 0));
  __syncthreads();
  for (int i = 0; i < length; ++i) {
    const long long here = at_boundary(call, row, i);
    const long long next = here + classes;
    const int known = min(longest, i + 1);
    const int newest = i % longest;
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const bool mine = round * groups + group < classes;
      const double emission = grid(load(call.scores.emission, row, i, c));
      Candidate best{minus_infinity(), longest};
      for (int j = lane; mine && j < known; j += kExactLanes) {
        double* slot = ring + static_cast<long long>(j) * classes + c;
        const double before =
            j == newest ? source[here + c] + grid(score_of(call.scores.start, row, i, c)) : *slot;
        *slot = before + emission;
        const int age = newest >= j ? newest - j : newest - j + longest;
        best = better(best, {before + emission + grid(load(call.scores.duration, age, c, 0)), age});
      }
      best = group_best(best, better);
      if (mine && lane == 0) {
        value[next + c] = best.score + grid(score_of(call.scores.end, row, i, c));
        call.best.duration[next + c] = best.choice + 1;
      }
    }
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const int* durations = call.best.duration + next;
      const auto choose = [&](Candidate a, Candidate b) { return better_label(a, b, durations); };
      Candidate best{minus_infinity(), 0};
      for (int other = lane; other < classes; other += kExactLanes)
        best = choose(
            best, {value[next + other] + grid(load(call.scores.transition, 0, other, c)), other});
      best = group_best(best, choose);
      if (round * groups + group < classes && lane == 0) {
        source[next + c] = best.score;
        call.best.label[next + c] = best.choice;
      }
    }
    __syncthreads();
  }
}

}  // namespace segfuse::semicrf::gpu
