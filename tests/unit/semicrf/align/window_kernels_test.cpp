#include "semicrf/align/window_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

TEST(WindowKernels, SlideOverWindowsOfAnySize) {
  Rng rng(18);
  for (std::int64_t width = 1; width <= 20; ++width) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 31, 32, 33, 100}) {
      std::vector<double> in, weights;
      for (std::int64_t i = 0; i < n + width - 1; ++i) in.push_back(rng.normal());
      for (std::int64_t i = 0; i < width; ++i) weights.push_back(rng.normal());
      std::vector<double> sums(static_cast<std::size_t>(n)), maxima = sums;
      window_products(in.data(), weights.data(), width, n, sums.data());
      window_maxima(in.data(), weights.data(), width, n, maxima.data());
      for (std::int64_t j = 0; j < n; ++j) {
        EXPECT_NEAR(sums[static_cast<std::size_t>(j)],
                    product_by_lanes(in.data() + j, weights.data(), width), 1e-13);
        EXPECT_EQ(maxima[static_cast<std::size_t>(j)],
                  window_max(in.data() + j, weights.data(), width));
      }
    }
  }
}

TEST(WindowKernels, ExponentialsAndLogarithmsOfEach) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Rng rng(19);
  for (const std::int64_t n : {0, 1, 7, 8, 9, 40}) {
    std::vector<double> in, other;
    for (std::int64_t i = 0; i < n; ++i) {
      in.push_back(i % 5 == 3 ? -kInf : 100 * rng.normal());
      other.push_back(i % 7 == 3 ? -kInf : in.back() + rng.normal());
    }
    std::vector<double> exps(in.size()), logs(in.size()), sums = in;
    const double reference = largest_of(in.data(), n);
    EXPECT_EQ(reference, n == 0 ? -kInf : *std::ranges::max_element(in));
    exp_each(in.data(), reference, n, exps.data());
    log_each(exps.data(), reference, n, logs.data());
    log_add_each(other.data(), 0.5, n, sums.data());
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_NEAR(exps[i], std::exp(in[i] - reference), 1e-15);
      if (exps[i] > 0) {
        EXPECT_NEAR(logs[i], in[i], 1e-12);
      } else {
        EXPECT_EQ(logs[i], -kInf);
      }
      const double a = std::max(in[i], other[i] + 0.5);
      const double b = std::min(in[i], other[i] + 0.5);
      if (b == -kInf) {
        EXPECT_EQ(sums[i], a);
      } else {
        EXPECT_NEAR(sums[i], a + std::log1p(std::exp(b - a)), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf
