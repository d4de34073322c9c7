#pragma once
// The derivative of a lattice along a direction: what its values, its log-partition and its
// expected counts change by when the scores move. One more pair of passes over a lattice that both
// its passes have filled; docs/semicrf.md has the formulas.
//
// A tangent at a boundary is relative to a number that is kept per boundary, a whole multiple of a
// power of two, so that sums of them stay exact at any length.

#include <vector>

#include "semicrf/exact/lattice.h"

namespace segfuse::semicrf {

/// A direction along the scores of one row. All of them are there, with 0 in padding, and 0 where
/// the score is -inf.
struct LatticeDirection {
  const Model& model;
  const Row& row;
  const double* tail = nullptr;  ///< (stride); there is one where the lattice has a tail
};

struct LatticeTangent {
  double log_partition = 0.0;
  /// Tangents of the lattice's members of these names, in the same shapes.
  AlignedDoubles value;
  AlignedDoubles open;
  AlignedDoubles source;
  AlignedDoubles rest;
  AlignedDoubles sink;
  AlignedDoubles open_rest;
  std::vector<double> base;       ///< of value, open and source
  std::vector<double> rest_base;  ///< of the others
  // Scratch: a name with `d` holds the tangents of the other.
  double unit = 1.0;
  AlignedDoubles terms, dterms;
  AlignedDoubles pairs, dpairs;
  AlignedDoubles entered, dentered;
  AlignedDoubles inner, dinner;
  AlignedDoubles content;
  AlignedDoubles shifts, dshifts;
  AlignedDoubles transposed;  ///< the direction along transitions
};

/// After lattice_forward with Sum::kLog and a finite result: the derivative of the log-partition.
double lattice_forward_tangent(const LatticeInput& input, const Lattice& lattice,
                               const LatticeDirection& direction, LatticeTangent& tangent);

/// After that, and after lattice_backward: the derivatives of the expected counts, in the places
/// that lattice_backward puts the counts in.
void lattice_backward_tangent(const LatticeInput& input, const Lattice& lattice,
                              const LatticeDirection& direction, LatticeTangent& tangent,
                              RowExpectations& counts, double* tail_count);

}  // namespace segfuse::semicrf
