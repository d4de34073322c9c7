#pragma once
// A loss with all gradients under one algorithm, and the comparison of two.

#include <gtest/gtest.h>

#include <vector>

#include "problems.h"

namespace segfuse::semicrf::testing {

/// Loss and gradients of one algorithm.
template <class T>
struct Outcome {
  std::vector<double> loss, log_partition;
  std::vector<RowStatus> status;
  OwnedGradients<T> gradients;
  Outcome(const Problem<T>& p, const Segmentations& gold, Algorithm algorithm,
          const std::vector<double>& weights = {})
      : loss(p.B), log_partition(p.B), status(p.B), gradients(p) {
    Engine engine(1, {algorithm});
    LossResult result;
    result.loss = loss, result.log_partition = log_partition, result.status = status;
    engine.loss(p.potentials(), gold, result, gradients.views(),
                weights.empty() ? View<const double, 1>() : View<const double, 1>(weights));
  }
};

template <class T>
void expect_same(const Problem<T>& p, const Segmentations& gold, double tolerance) {
  const Outcome<T> fast(p, gold, Algorithm::kFast);
  const Outcome<T> slow(p, gold, Algorithm::kReference);
  for (std::int64_t b = 0; b < p.B; ++b) {
    EXPECT_EQ(fast.status[b], slow.status[b]);
    EXPECT_LT(relative(fast.log_partition[b], slow.log_partition[b]), 1e-12);
    EXPECT_TRUE(fast.loss[b] == slow.loss[b] || std::abs(fast.loss[b] - slow.loss[b]) < rounding(p))
        << fast.loss[b] << " " << slow.loss[b];
  }
  const std::vector<T> x = fast.gradients.flat(), y = slow.gradients.flat();
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance) << "at " << i;
}

}  // namespace segfuse::semicrf::testing
