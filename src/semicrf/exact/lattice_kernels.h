#pragma once
// Sums over rows of log scores, vectorised over classes. Rows have `stride` doubles, a multiple of
// kLanes, aligned to 64 bytes; values are finite or -inf.

#include <cstdint>

namespace segfuse::semicrf {

/// out[c] = log sum_i exp(rows[i, c]) over n rows; -inf for an empty sum.
void log_sum_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out);

/// The same, and rows[i, c] becomes its share in the sum, times `total[c]`; 0 in an empty one.
void log_sum_shares(double* rows, std::int64_t n, std::int64_t stride, double* out, double* total);

/// rows[i, c] *= factor[c] over n rows.
void scale_rows(const double* factor, std::int64_t n, std::int64_t stride, double* rows);

/// column_max[c] = the largest of rows[i, c], and linear[i, c] = exp(rows[i, c] - column_max[c])
/// over n rows; -inf and 0 where all are -inf.
void exp_columns(const double* rows, std::int64_t n, std::int64_t stride, double* linear,
                 double* column_max);

/// out[c] = the largest of rows[i, c] over n rows; -inf for none.
void max_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out);

/// rows[i, c] = values[i] + matrix[i, c] over n rows.
void add_to_rows(const double* values, const double* matrix, std::int64_t n, std::int64_t stride,
                 double* rows);

/// out[c] = sum_i tangents[i, c] exp(rows[i, c]) / sum_i exp(rows[i, c]) over n rows: the
/// derivative of log_sum_rows; 0 for an empty sum. A tangent whose row is -inf is not read.
void log_sum_tangents(const double* rows, const double* tangents, std::int64_t n,
                      std::int64_t stride, double* out);

/// What segments of growing duration score, going away from a boundary: for i = 0 .. n-1,
///   content[c] += frame[i * frame_step + c]
///   rows[i, c] = beyond[i * beyond_step + c] + shifts[i] + (content[c] + duration[i, c])
struct Extension {
  const double* beyond;
  std::int64_t beyond_step;
  const double* frame;
  std::int64_t frame_step;
  const double* shifts;
  const double* duration;
};
void extend_rows(const Extension& from, std::int64_t n, std::int64_t stride, double* content,
                 double* rows);

/// sums[i, c] += exp(rows[i, c] + offset[c] + scalar) over n rows.
void add_exp_rows(const double* rows, const double* offset, double scalar, std::int64_t n,
                  std::int64_t stride, double* sums);

/// sums[i, c] += exp(rows[i, c] + offset[c] + scalar) * (tangents[i, c] + offset_tangent[c] +
/// scalar_tangent) over n rows: the derivative of add_exp_rows. No tangent is read where its row or
/// the offset is -inf.
struct ExpTangents {
  const double* rows;
  const double* tangents;
  const double* offset;
  const double* offset_tangent;
  double scalar;
  double scalar_tangent;
};
void add_exp_tangents(const ExpTangents& of, std::int64_t n, std::int64_t stride, double* sums);

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
