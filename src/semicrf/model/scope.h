#pragma once
// Constraints on checked and loaded problems: they become -inf in the loaded scores, and boundaries
// that the lattice must not pass.

#include <vector>

#include "segfuse/semicrf_tools.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

void check_constraint_shapes(const Constraints& constraints, const Dims& dims);
/// Checks all shapes, known labels and limits of durations.
void check_constraints(const Constraints& constraints, const Dims& dims, const Lengths& lengths);
void check_scope(const Scope& scope, const Dims& dims, const Lengths& lengths);

/// Whether a scope is a matter of scores: no tail, and no known boundaries. Not whether a batch's
/// boundaries could be written as scores: the algorithm, and so a row's rounding, must not depend
/// on other rows.
inline bool is_plain(const Scope& scope) {
  return scope.tail.empty() && scope.constraints.boundary.empty();
}

/// The scores that all rows share, within a scope.
struct ScopedModel {
  Model model;
  AlignedDoubles tail;  ///< (stride); empty without a tail
  const double* tail_or_null() const { return tail.size() == 0 ? nullptr : tail.data(); }
};
void constrain_model(const Constraints& constraints, ScopedModel& scoped);

/// One row's scores, within a scope.
struct ScopedRow {
  RowBuffers buffers;
  Row row;
  std::vector<std::uint8_t> forced;  ///< empty, or (length): a segment must start here
  const std::uint8_t* forced_or_null() const { return forced.empty() ? nullptr : forced.data(); }
};
void constrain_row(const Constraints& constraints, const Dims& dims, std::int64_t b,
                   ScopedRow& scoped);

}  // namespace segfuse::semicrf
