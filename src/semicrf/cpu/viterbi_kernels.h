#pragma once
// The two maxima of a Viterbi step, over vectors of classes.

#include <cstdint>

namespace segfuse::semicrf {

/// best[c] = max over k = 1..n of newest[-(k-1) * stride + c] + duration[(k-1) * stride + c], and
/// best_k[c] the smallest such k (1 when all are -inf). All arrays are padded to stride.
void best_over_durations(const double* newest, const double* duration, std::int64_t n,
                         std::int64_t stride, double* best, double* best_k);

/// best[c] = max over from of value[from] + transition[from * stride + c], and best_from[c] that
/// label; of several the one with the smallest last_duration, then the smallest label.
void best_over_labels(const double* value, const double* last_duration, const double* transition,
                      std::int64_t classes, std::int64_t stride, double* best, double* best_from);

}  // namespace segfuse::semicrf
