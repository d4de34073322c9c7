#pragma once
// From a row's expected counts to the posteriors of Engine and Inference.

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// Checks the shapes of the outputs; UsageError.
template <class T>
void check_posteriors(const Posteriors<T>& result, const Dims& dims);

/// Writes row b of label, start, end, boundary and duration; without `e`, zeros.
template <class T>
void store_posteriors(const Posteriors<T>& result, const Dims& dims, std::int64_t b,
                      std::int64_t length, const RowExpectations* e);

/// Sum of expected counts times scores; 0 * -inf counts as 0. Needs all counts of `e`.
double expected_score(const Model& model, const Row& row, const RowExpectations& e);

}  // namespace segfuse::semicrf
