#pragma once
// The pass of the best segmentation: max-plus sums over vectors of classes, no pointers back.
//
// Scores are rounded to multiples of one power of two, fine enough that no sum of a window rounds:
// then sums are exact, in any order and relative to any base, so a pass that starts in the middle
// of a row decides as the pass over the whole row does.

#include <cmath>
#include <cstdint>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// What scores of a row are rounded to. The CUDA engine has the same rule
/// (cuda/kernels/best/grid.cuh).
struct ScoreGrid {
  bool exact = false;              ///< else scores differ too much in size: nothing is rounded
  double rounder = 0.0;            ///< adding and subtracting it rounds to the grid
  double base_rounder = 0x1.8p52;  ///< the same for bases, which are multiples of a coarser unit
  double least = kNegInf;          ///< values below it may round in later sums

  double operator()(double score) const { return (score + rounder) - rounder; }
};

/// For scores of at most this size, -inf apart.
ScoreGrid grid_of(double largest_score, std::int64_t max_duration);
/// Largest size of n scores, -inf apart.
double largest_size(const double* scores, std::int64_t n);

/// Largest of a[c] + b[c], c < n; both aligned, n whole vectors.
double largest_sum(const double* a, const double* b, std::int64_t n);

/// Boundaries [first, ...) of a row, by t - first: value, the best prefix that ends at t with label
/// c, and source, the best entry into label c at t; both relative to base.
struct BestLattice {
  double* value = nullptr;   ///< (., stride)
  double* source = nullptr;  ///< (., stride)
  double* base = nullptr;
  std::int64_t first = 0;
};

/// A pass on its way through a row. Tables are on the grid, frames are not.
struct BestPass {
  const Row* row = nullptr;
  const Dims* dims = nullptr;
  const double* transition = nullptr;
  const double* duration = nullptr;
  ScoreGrid grid;

  AlignedDoubles window;    ///< (., stride) sources with start scores less origin, oldest first
  AlignedDoubles origin;    ///< (stride) content since it is in here
  AlignedDoubles best;      ///< (stride)
  std::int64_t newest = 0;  ///< row of the window
  std::int64_t known = 0;   ///< rows of the window
  double base = 0.0;
  double least = 0.0;  ///< smallest finite value since it was set
};

/// Starts a pass at boundary t from the sources of boundaries (t - K, t] that the lattice has.
void open_pass(BestPass& pass, const BestLattice& lattice, std::int64_t t);
/// Goes on from boundary `from` to boundary `to`; fills the lattice after `from`.
void advance_pass(BestPass& pass, const BestLattice& lattice, std::int64_t from, std::int64_t to);

}  // namespace segfuse::semicrf
