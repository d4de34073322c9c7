// Scores stored in 16 bits: the same results as the same numbers in double, stored back rounded.

#include <gtest/gtest.h>

#include "base/half.h"
#include "problems.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(Half, EveryPatternReadsAsItsNumber) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Half half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto found = static_cast<double>(half);
    const auto wanted = static_cast<double>(half_to_float(half.bits));
    ASSERT_TRUE(found == wanted || (std::isnan(found) && std::isnan(wanted))) << bits;
    if (!std::isnan(wanted)) {
      ASSERT_EQ(Half(wanted).bits, half.bits);
    }
  }
  EXPECT_EQ(static_cast<double>(BFloat16(-3.0)), -3.0);
  EXPECT_EQ(static_cast<double>(BFloat16(1.0 + 0x1p-9)), 1.0);
  EXPECT_EQ(static_cast<double>(BFloat16(-kInf)), -kInf);
}

template <class T>
class HalfStorage : public ::testing::Test {};
using HalfTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(HalfStorage, HalfTypes);

template <class T>
void expect_rounded(const std::vector<T>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].bits, T(wanted[i]).bits) << i;
}

TYPED_TEST(HalfStorage, EqualsTheSameNumbersInDouble) {
  for (const bool by_duration : {false, true}) {
    for (const Draw& draw : {Draw(gaussian), Draw(holes)}) {
      Rng rng(1);
      auto p = random_problem<TypeParam>(3, 40, 6, 11, by_duration, draw, rng);
      p.lengths = {40, 0, 23};
      const auto exact = p.template to<double>();
      const Segmentations gold = random_gold(p, rng);
      Engine engine(1);
      OwnedGradients<TypeParam> found(p);
      OwnedGradients<double> wanted(exact);
      std::vector<double> a(3), b(3);
      LossResult result;
      result.loss = a;
      engine.loss(p.potentials(), gold, result, found.views());
      result.loss = b;
      engine.loss(exact.potentials(), gold, result, wanted.views());
      EXPECT_EQ(a, b);
      expect_rounded(found.emission, wanted.emission);
      expect_rounded(found.transition, wanted.transition);
      expect_rounded(found.duration, wanted.duration);
      expect_rounded(found.start, wanted.start);
      expect_rounded(found.final, wanted.final);
      engine.log_partition(p.potentials(), {a, {}});
      engine.log_partition(exact.potentials(), {b, {}});
      EXPECT_EQ(a, b);
      Segmentations path, exact_path;
      engine.viterbi(p.potentials(), path);
      engine.viterbi(exact.potentials(), exact_path);
      EXPECT_EQ(path, exact_path);
      std::vector<TypeParam> boundary(3 * 40);
      std::vector<double> exact_boundary(3 * 40);
      Posteriors<TypeParam> posteriors;
      Posteriors<double> exact_posteriors;
      posteriors.boundary = {boundary.data(), {3, 40}};
      exact_posteriors.boundary = {exact_boundary.data(), {3, 40}};
      engine.posteriors(p.potentials(), posteriors);
      engine.posteriors(exact.potentials(), exact_posteriors);
      expect_rounded(boundary, exact_boundary);
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
