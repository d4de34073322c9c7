#pragma once
// The recursion as the model's definition reads, O(L K C^2), in the log domain, double: what the
// fast algorithms are compared with. Values are absolute, so rounding grows with their size: with a
// log-partition of 1e6, posteriors are good to about 1e-5.

#include <cmath>
#include <vector>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// log(exp(sum) + exp(term)), one term at a time.
class LogSum {
 public:
  void add(double term) {
    if (term == kNegInf) return;
    if (term > max_) {
      sum_ = sum_ * std::exp(max_ - term) + 1.0;
      max_ = term;
    } else {
      sum_ += std::exp(term - max_);
    }
  }
  double value() const { return max_ == kNegInf ? kNegInf : max_ + std::log(sum_); }

 private:
  double max_ = kNegInf;
  double sum_ = 0.0;
};

struct ReferenceState {
  std::vector<double> forward;   ///< (L+1, C): log sum over prefixes that end at t with label c
  std::vector<double> backward;  ///< (L+1, C): log sum over suffixes from t after label c
  std::vector<LogSum> sums;      ///< (C) scratch
  AlignedDoubles segments;       ///< (K, stride) counts of one start
  AlignedDoubles changes;        ///< (C, stride)
};

/// Fills state.forward and returns the log-partition of a row with length > 0.
double reference_forward(const Model& model, const Row& row, ReferenceState& state);

/// After reference_forward with a finite result: fills state.backward and `out`.
void reference_expectations(const Model& model, const Row& row, double log_partition,
                            ReferenceState& state, RowExpectations& out);

/// log P(segment (start, duration, label)) after reference_expectations.
double reference_segment(const Model& model, const Row& row, double log_partition,
                         const ReferenceState& state, std::int64_t start, std::int64_t duration,
                         std::int64_t label);

}  // namespace segfuse::semicrf
