#include "semicrf/align/window_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace segfuse::semicrf {
namespace {

/// As the header says it, one number at a time.
double product_by_lanes(const double* a, const double* b, std::int64_t n) {
  double lanes[8] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i < n / 8 * 8 ? i % 8 : 0] += a[i] * b[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

TEST(WindowKernels, TakeEveryPairOfWindowsOfAnySize) {
  Rng rng(17);
  for (std::int64_t n = 0; n <= 41; ++n) {
    std::vector<double> a, b;
    double max = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < n; ++i) {
      a.push_back(rng.normal());
      b.push_back(rng.normal());
      max = std::max(max, a.back() + b.back());
    }
    EXPECT_EQ(window_product(a.data(), b.data(), n), product_by_lanes(a.data(), b.data(), n)) << n;
    EXPECT_EQ(window_max(a.data(), b.data(), n), max) << n;
    // The largest may stand anywhere.
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<double> raised = a;
      raised[static_cast<std::size_t>(i)] = 100.0;
      EXPECT_EQ(window_max(raised.data(), b.data(), n), 100.0 + b[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf
