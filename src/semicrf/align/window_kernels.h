#pragma once
// Sums and maxima over the durations of a segment, in vectors. window_product, window_max,
// window_maxima and largest_of have the same bits on every processor; the others on those that
// multiply and add in one step, and on those that do not.

#include <cstdint>

namespace segfuse::semicrf {

/// The sum of a[i] b[i]: of i, i + 8, .. for each of eight lanes, the last n % 8 in the first, and
/// then of the lanes.
double window_product(const double* a, const double* b, std::int64_t n);

/// The largest of a[i] + b[i]; -inf of none.
double window_max(const double* a, const double* b, std::int64_t n);

/// For n windows, each one further than the one before: out[j] is the sum over k < width of
/// in[j + k] weights[k].
void window_products(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                     double* out);
/// The same, the largest of in[j + k] + weights[k].
void window_maxima(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                   double* out);

/// out[i] = exp(in[i] - reference), where no difference is above 700.
void exp_each(const double* in, double reference, std::int64_t n, double* out);
/// out[i] = log(in[i]) + reference; -inf of less than 2^-1022.
void log_each(const double* in, double reference, std::int64_t n, double* out);
/// into[i] = log(exp(into[i]) + exp(from[i] + shift)).
void log_add_each(const double* from, double shift, std::int64_t n, double* into);
/// The largest of n numbers; -inf of none.
double largest_of(const double* in, std::int64_t n);

}  // namespace segfuse::semicrf
