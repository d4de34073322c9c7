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

/// Adds up the expected scores of a row's tables while their counts are made.
class ExpectedTables : public TableCounts {
 public:
  ExpectedTables(const Row& row, const Dims& dims);
  void segments(std::int64_t s, std::int64_t n, double* counts) override;
  void transitions(std::int64_t s, double* counts) override;
  double value() const { return value_; }

 private:
  void add(const double* counts, std::int64_t n);
  const Row& row_;
  const Dims& dims_;
  AlignedDoubles scores_;
  double value_ = 0.0;
};

/// Sum of expected counts times scores, but for tables; 0 * -inf counts as 0. Needs all counts of
/// `e`.
double expected_score(const Model& model, const Row& row, const RowExpectations& e);

}  // namespace segfuse::semicrf
