#pragma once
// What scores are rounded to before the best segmentation is looked for: a power of two so fine
// that no sum of a window rounds. Max-plus sums are then exact, in any order and from any start.
// The rule is that of grid_of in semicrf/cpu/best/viterbi_pass.cpp.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

struct ScoreGrid {
  double rounder;       ///< adding and subtracting it rounds to the grid
  double base_rounder;  ///< the same for bases, multiples of a coarser unit
  double least;         ///< values below it may round in later sums
  bool exact;           ///< else scores differ too much in size: nothing is rounded

  DEVICE_MEMBER double operator()(double score) const { return (score + rounder) - rounder; }
};

DEVICE ScoreGrid grid_of_row(const Call& call, int row) {
  constexpr int kCoarsest = -26;
  const int largest = max(call.best.magnitude[row], call.best.magnitude[call.sizes.batch]);
  const int size = max(largest - 1022, -899);
  int terms = 0;
  while ((1ll << terms) < max(call.sizes.max_duration, 60) + 4) ++terms;
  const int range = size + terms + 4;
  ScoreGrid grid;
  grid.exact = range - 52 <= kCoarsest;
  grid.rounder = grid.exact ? 1.5 * power_of_two(range) : 0.0;
  grid.base_rounder = 1.5 * power_of_two(grid.exact ? 52 + size : 52);
  grid.least = grid.exact ? -power_of_two(range - 1) : minus_infinity();
  return grid;
}

}  // namespace segfuse::semicrf::gpu
