#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "segfuse/error.h"

namespace segfuse {
namespace {

TEST(Philox, PublishedVectors) {
  // Philox4x32-10, the known-answer vectors published with the paper of Salmon et al. (SC 2011).
  EXPECT_EQ(philox(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox(ones, ones, ones),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformFromBits, StaysBelowOne) {
  EXPECT_EQ(uniform_from_bits(0), 0.0F);
  EXPECT_EQ(uniform_from_bits(0xFFFFFFFF), 1.0F - 0x1p-24F);
}

/// Pearson's statistic of counts against expected probabilities.
double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probabilities[i];
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

/// Wilson and Hilferty's approximation of the quantile that one in 10^4 draws exceeds.
double chi_square_limit(double degrees) {
  const double z = 3.719;
  const double term = 2 / (9 * degrees);
  return degrees * std::pow(1 - term + z * std::sqrt(term), 3);
}

constexpr int kDraws = 200000;

TEST(Rng, UniformIsUniform) {
  Rng rng(1);
  std::vector<int> counts(100);
  for (int i = 0; i < kDraws; ++i) {
    const double value = rng.uniform();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    ++counts[static_cast<std::size_t>(value * 100)];
  }
  EXPECT_LT(chi_square(counts, std::vector<double>(100, 0.01)), chi_square_limit(99));
}

TEST(Rng, NeighboursAreIndependent) {
  Rng rng(2);
  std::vector<int> counts(100);
  for (int i = 0; i < kDraws; ++i) {
    const auto first = static_cast<std::size_t>(rng.uniform() * 10);
    ++counts[first * 10 + static_cast<std::size_t>(rng.uniform() * 10)];
  }
  EXPECT_LT(chi_square(counts, std::vector<double>(100, 0.01)), chi_square_limit(99));
}

TEST(Rng, BelowIsUnbiasedForBoundsThatDoNotDivide) {
  Rng rng(3);
  std::vector<int> counts(7);
  for (int i = 0; i < kDraws; ++i) ++counts[rng.below(7)];
  EXPECT_LT(chi_square(counts, std::vector<double>(7, 1.0 / 7)), chi_square_limit(6));
  // Without rejection the lower half of this range would come up twice as often as the upper one.
  const std::uint64_t bound = std::uint64_t{3} << 62;
  std::vector<int> halves(2);
  for (int i = 0; i < kDraws; ++i) ++halves[rng.below(bound) >= bound / 2];
  EXPECT_LT(chi_square(halves, {0.5, 0.5}), chi_square_limit(1));
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_THROW(rng.below(0), InternalError);
}

TEST(Rng, NormalFollowsItsDistribution) {
  Rng rng(4);
  const int cells = 80;  // of width 0.1 over [-4, 4]
  std::vector<int> counts(cells + 2);
  for (int i = 0; i < kDraws; ++i) {
    const double cell = std::floor((rng.normal() + 4) * 10);
    ++counts[static_cast<std::size_t>(std::clamp(cell, -1.0, double{cells}) + 1)];
  }
  const auto under = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  std::vector<double> probabilities = {under(-4)};
  for (int i = 0; i < cells; ++i)
    probabilities.push_back(under(-4 + 0.1 * (i + 1)) - under(-4 + 0.1 * i));
  probabilities.push_back(under(-4));
  EXPECT_LT(chi_square(counts, probabilities), chi_square_limit(cells + 1));
}

TEST(Rng, CategoricalFollowsItsWeights) {
  Rng rng(5);
  const std::vector<double> weights = {0, 1, 3, 0, 4, 0};
  std::vector<int> counts(weights.size());
  for (int i = 0; i < kDraws; ++i) ++counts[rng.categorical(weights)];
  EXPECT_EQ(counts[0] + counts[3] + counts[5], 0);
  EXPECT_LT(chi_square({counts[1], counts[2], counts[4]}, {0.125, 0.375, 0.5}),
            chi_square_limit(2));
  EXPECT_THROW(rng.categorical({0, 0}), InternalError);
}

TEST(Rng, ShuffleMakesAllOrdersAlike) {
  Rng rng(6);
  std::vector<int> counts(24);
  for (int i = 0; i < kDraws / 4; ++i) {
    std::vector<int> order = {0, 1, 2, 3};
    rng.shuffle(order);
    int rank = 0;  // among the 24 permutations
    while (std::prev_permutation(order.begin(), order.end())) ++rank;
    ++counts.at(static_cast<std::size_t>(rank));
  }
  EXPECT_LT(chi_square(counts, std::vector<double>(24, 1.0 / 24)), chi_square_limit(23));
}

TEST(Rng, KeysAndStreamsDifferAndRepeat) {
  std::set<std::uint32_t> first;
  for (std::uint64_t key = 0; key < 10; ++key)
    for (std::uint64_t stream = 0; stream < 10; ++stream) first.insert(Rng(key, stream).bits());
  EXPECT_EQ(first.size(), 100U);
  Rng a(9, 9);
  Rng b(9, 9);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a.bits(), b.bits());
}

}  // namespace
}  // namespace segfuse
