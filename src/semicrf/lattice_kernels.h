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

/// out[i] = exp(values[i] + shift).
void exp_vector(const double* values, double shift, std::int64_t stride, double* out);

/// out[c] = log sum_i weights[i] matrix[i, c] + shift + column_shift[c] over n rows. A column whose
/// sum is too small to be trusted gets NaN; returns whether there is one. One whose shift is -inf
/// gets -inf.
bool log_product(const double* weights, const double* matrix, const double* column_shift,
                 double shift, std::int64_t n, std::int64_t stride, double* out);

/// sums[i, c] += a[i] b[c] over n rows.
void add_outer(const double* a, const double* b, std::int64_t n, std::int64_t stride, double* sums);

}  // namespace segfuse::semicrf
