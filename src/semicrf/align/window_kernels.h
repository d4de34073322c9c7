#pragma once
// Sums and maxima over the durations of a segment, in vectors. Results have the same bits on every
// processor.

#include <cstdint>

namespace segfuse::semicrf {

/// The sum of a[i] b[i]: of i, i + 8, .. for each of eight lanes, the last n % 8 in the first, and
/// then of the lanes.
double window_product(const double* a, const double* b, std::int64_t n);

/// The largest of a[i] + b[i]; -inf of none.
double window_max(const double* a, const double* b, std::int64_t n);

}  // namespace segfuse::semicrf
