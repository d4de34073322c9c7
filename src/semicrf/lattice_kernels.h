#pragma once
// Sums over rows of log scores, vectorised over classes. Rows have `stride` doubles, a multiple of
// kLanes, aligned to 64 bytes; values are finite or -inf.

#include <cstdint>

namespace segfuse::semicrf {

/// out[c] = log sum_i exp(rows[i, c]) over n rows; -inf for an empty sum.
void log_sum_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out);

/// sums[i, c] += exp(rows[i, c] + offset[c] + scalar) over n rows.
void add_exp_rows(const double* rows, const double* offset, double scalar, std::int64_t n,
                  std::int64_t stride, double* sums);

}  // namespace segfuse::semicrf
