#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"
#include "ir/bind.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "samples.h"

namespace segfuse::ir {
namespace {

using testing::HasSubstr;

class SizesTest : public testing::Test {
 protected:
  void TearDown() override { verify(f); }

  Fusion f;
  Extent a = f.symbol("A");
  Extent b = f.symbol("B");
  Extent c = f.symbol("C");
};

TEST_F(SizesTest, PolynomialsHaveOneForm) {
  EXPECT_EQ((a + b) * (a - b), a * a - b * b);
  EXPECT_EQ(a - a, Extent(0));
  EXPECT_EQ(f.to_string(3 + b * a * 2 - c), "2*A*B - C + 3");
  EXPECT_EQ(f.to_string(Extent(-1) * a), "-A");
  EXPECT_EQ(f.to_string(Extent(0)), "0");
  EXPECT_EQ(f.to_string(Extent(std::numeric_limits<std::int64_t>::min()) * a),
            "-9223372036854775808*A");
}

TEST_F(SizesTest, OverflowAndExplosionAreErrors) {
  const Extent big = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW((void)(big + 1), UsageError);
  EXPECT_THROW((void)(big * a * 2), UsageError);
  Extent product = 1;
  EXPECT_THAT(message_of<UsageError>([&] {
                for (int i = 0; i < 30; ++i)
                  product = product * (Extent(f.symbol("s" + std::to_string(i))) + 1);
              }),
              HasSubstr("more than 1000 terms"));
}

TEST_F(SizesTest, SymbolNamesAreWords) {
  for (const char* name : {"", "1a", "a b", "floordiv", "a-b", "\xC3\xA4"})
    EXPECT_THROW((void)f.symbol(name), UsageError) << name;
  EXPECT_EQ(f.symbol("_x9"), f.symbol("_x9"));
}

TEST_F(SizesTest, DivisionsHaveOneForm) {
  EXPECT_EQ(f.floordiv(7, 2), Extent(3));
  EXPECT_EQ(f.floordiv(-7, 2), Extent(-4));
  EXPECT_EQ(f.floordiv(a * 4 + 6, 2), a * 2 + 3);
  EXPECT_EQ(f.floordiv(a, 1), a);
  EXPECT_EQ(f.floordiv(a - 3, 2) + 1, f.floordiv(a - 1, 2));
  EXPECT_EQ(f.floordiv(a * 3 + b, 2), a + f.floordiv(a + b, 2));
  EXPECT_EQ(f.floordiv(a * 2 + 3, 4), f.floordiv(a + 1, 2));
  EXPECT_EQ(f.to_string(f.floordiv(f.floordiv(a, 2) * 3 + b, 2)),
            "floordiv(A, 2) + floordiv(B + floordiv(A, 2), 2)");
  EXPECT_EQ(f.to_string(f.floordiv(a - 3, 2)), "floordiv(A - 1, 2) - 1");
  EXPECT_THROW((void)f.floordiv(a, 0), UsageError);
  EXPECT_THROW((void)f.floordiv(a, -2), UsageError);
}

TEST_F(SizesTest, DivisionsKeepTheirValue) {
  Rng rng(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  for (int i = 0; i < 300; ++i) {
    Fusion g;
    const Extent p = g.symbol("P");
    const Extent q = g.symbol("Q");
    g.add_input("x", DType::kF32, {p, q});
    const std::int64_t k[5] = {draw(-9, 9), draw(-9, 9), draw(-9, 9), draw(1, 6), draw(1, 6)};
    const Extent inner = g.floordiv(Extent(k[0]) * p + Extent(k[1]) * q + k[2], k[3]);
    const Extent outer = g.floordiv(inner + Extent(k[1]) * q * p + k[0], k[4]);
    const std::int64_t pv = draw(0, 20);
    const std::int64_t qv = draw(0, 20);
    const Sizes sizes = ir::bind(g, std::vector<Shape>{{pv, qv}});
    const auto floor = [](std::int64_t n, std::int64_t d) {
      return static_cast<std::int64_t>(std::floor(static_cast<double>(n) / static_cast<double>(d)));
    };
    const std::int64_t inside = floor(k[0] * pv + k[1] * qv + k[2], k[3]);
    ASSERT_EQ(sizes.of(inner), inside) << g.to_string(inner);
    ASSERT_EQ(sizes.of(outer), floor(inside + k[1] * qv * pv + k[0], k[4])) << g.to_string(outer);
  }
}

TEST_F(SizesTest, UniteSymbolsAndNumbers) {
  EXPECT_TRUE(f.unify(b, a));
  EXPECT_TRUE(f.unify(c, b));
  EXPECT_EQ(f.to_string(c), "A");
  EXPECT_TRUE(f.unify(a, 5));
  EXPECT_EQ(f.canonical(b * c), Extent(25));
  EXPECT_FALSE(f.unify(c, 6));
  EXPECT_TRUE(f.unify(c, 5));
}

TEST_F(SizesTest, WhatCanNeverBeEqualChangesNothing) {
  EXPECT_FALSE(f.unify(a, a + 1));
  EXPECT_FALSE(f.unify(a, -1));
  EXPECT_FALSE(f.unify(a * 2 + b * 4, 7));
  EXPECT_FALSE(f.unify(a + b * c + 1, 0));
  EXPECT_FALSE(f.unify(a * 4, a * 5));  // only if A is zero
  EXPECT_FALSE(f.unify(a + b, b));
  ASSERT_TRUE(f.unify(a * b, 6));
  ASSERT_TRUE(f.unify(a, 2));  // then B = 3
  EXPECT_TRUE(f.equal(b, 3));
  EXPECT_TRUE(f.storage().requirements.empty());
  Fusion g;
  const Extent p = g.symbol("P");
  const Extent q = g.symbol("Q");
  ASSERT_TRUE(g.unify(p * q, 6));
  const std::string before = print(g);
  EXPECT_FALSE(g.unify(p, 4));  // 4 * Q == 6 has no solution
  EXPECT_EQ(print(g), before);
  verify(g);
}

TEST_F(SizesTest, LinearEquationsAreSolved) {
  EXPECT_TRUE(f.unify(a * 2 + 2, b * 2 + 2));
  EXPECT_TRUE(f.equal(a, b));
  EXPECT_TRUE(f.unify(c * 3, 12));
  EXPECT_TRUE(f.equal(c, 4));
  EXPECT_TRUE(f.storage().requirements.empty());
}

TEST_F(SizesTest, ASizeMayBeZero) {
  EXPECT_TRUE(f.unify(a, 0));
  EXPECT_EQ(f.canonical(a * b), Extent(0));
  EXPECT_TRUE(f.unify(b * c, 0));
  EXPECT_EQ(f.storage().requirements.size(), 1U);
  EXPECT_TRUE(f.unify(b, 3));
  EXPECT_TRUE(f.equal(c, 0));
}

TEST_F(SizesTest, ASymbolThatCanBeWrittenInOthersIs) {
  ASSERT_TRUE(f.unify(a - 1, b));  // a slice beside an operand of its size
  EXPECT_EQ(f.canonical(a), f.canonical(b + 1));
  ASSERT_TRUE(f.unify(f.floordiv(a + 1, 2) + b, c));
  EXPECT_EQ(f.to_string(c), "B + floordiv(B, 2) + 1");
  EXPECT_TRUE(f.storage().requirements.empty());
  verify(f);
}

TEST_F(SizesTest, SumsAreBetterThanDifferences) {
  ASSERT_TRUE(f.unify(c + 2, a));  // C is the later symbol, but it would be A - 2
  EXPECT_EQ(f.to_string(a), "C + 2");
  EXPECT_TRUE(f.unify(f.symbol("D") + b, c + 2));
  EXPECT_TRUE(f.equal(a, f.symbol("D") + b));
  verify(f);
}

TEST_F(SizesTest, PolynomialEqualitiesBecomeRequirementsOnce) {
  EXPECT_TRUE(f.unify(a * b, c * c));
  EXPECT_TRUE(f.unify(c * c * 2, a * b * 2));
  ASSERT_EQ(f.storage().requirements.size(), 1U);
  EXPECT_THAT(print(f), HasSubstr("  require A*B == C*C\n"));
  EXPECT_TRUE(f.unify(b, 1));
  EXPECT_TRUE(f.storage().requirements.empty());
  EXPECT_TRUE(f.equal(a, c * c));
}

TEST_F(SizesTest, WhatFollowsFromRequirementsIsEqual) {
  const Extent half = f.floordiv(a, 2);
  EXPECT_FALSE(f.equal(half * 2, a));
  ASSERT_TRUE(f.unify(half * 2, a));  // A is even
  EXPECT_TRUE(f.equal(half * 2, a));
  EXPECT_TRUE(f.equal(half * b * 2 + 3, a * b + 3));
  EXPECT_TRUE(f.equal(half * half * 4, a * a));
  EXPECT_FALSE(f.equal(half * 2, a + 1));
  EXPECT_FALSE(f.equal(half * 2, b));
  ASSERT_TRUE(f.unify(b * 2, c * 3));
  const Extent d = f.symbol("D");
  ASSERT_TRUE(f.unify(d * 5, b * 2));
  EXPECT_TRUE(f.equal(d * 5, c * 3));  // by both
  EXPECT_TRUE(f.equal(d * 10 + a, b + c * 3 + half * 2 + b - c * 3 + d * 5));
  EXPECT_FALSE(f.equal(d * 5, c * 2));
  EXPECT_TRUE(f.equal(Extents{a, b * 2}, Extents{half * 2, c * 3}));
  EXPECT_FALSE(f.equal(Extents{a, b * 2}, Extents{half * 2}));
  verify(f);
}

TEST_F(SizesTest, ASizeThatIsKnownToBeZeroMayBeLeftOut) {
  const Extent half = f.floordiv(a, 2);
  EXPECT_FALSE(f.unify(half + b, b)) << "nobody means 0 who does not write it";
  ASSERT_TRUE(f.unify(half, 0));
  EXPECT_TRUE(f.unify(half + b, b));
  EXPECT_TRUE(f.unify(b, b - half));
  verify(f);
}

TEST_F(SizesTest, NumbersThatDoNotFitAreNotKnownToBeEqual) {
  ASSERT_TRUE(f.unify(a * 4611686018427387847, b * 4611686018427387843));
  ASSERT_TRUE(f.unify(b * 4611686018427387843, c * 4611686018427387733));
  EXPECT_FALSE(f.equal(a * 4611686018427387761, c * 3));
}

TEST_F(SizesTest, DivisionsFollowTheirSymbols) {
  const Extent half_a = f.floordiv(a, 2);
  const Extent half_b = f.floordiv(b, 2);
  EXPECT_FALSE(f.equal(half_a, half_b));
  ASSERT_TRUE(f.unify(a, b));
  EXPECT_TRUE(f.equal(half_a, half_b));
  ASSERT_TRUE(f.unify(a, 9));
  EXPECT_EQ(f.canonical(half_b), Extent(4));
}

TEST_F(SizesTest, ASymbolIsNeverUnitedWithASizeMadeOfIt) {
  // A == floordiv(A, 2) holds for 0 only: it stays a requirement.
  ASSERT_TRUE(f.unify(a, f.floordiv(a, 2)));
  EXPECT_EQ(f.storage().requirements.size(), 1U);
  EXPECT_EQ(f.to_string(a), "A");
  ASSERT_TRUE(f.unify(b, f.floordiv(c, 2)));
  EXPECT_EQ(f.to_string(b), "floordiv(C, 2)");
  ASSERT_TRUE(f.unify(c, f.floordiv(b, 2)));  // C == floordiv(floordiv(C, 2), 2)
  EXPECT_EQ(f.storage().requirements.size(), 2U);
}

TEST_F(SizesTest, ASymbolInsideAnOlderDivisionIsFound) {
  const Extent half_a = f.floordiv(a, 2);
  const Extent t = f.symbol("T");  // younger than the division
  ASSERT_TRUE(f.unify(a, f.floordiv(t, 3)));
  ASSERT_TRUE(f.unify(t, half_a));  // T == floordiv(floordiv(T, 3), 2)
  EXPECT_EQ(f.to_string(t), "T");
  EXPECT_EQ(f.storage().requirements.size(), 1U);
}

TEST_F(SizesTest, SizesThatGrowWithoutBoundAreRefused) {
  Extent p = a;
  Extent q = b;
  EXPECT_THAT(message_of<UsageError>([&] {
                for (int i = 0; i < 100; ++i) {
                  const Extent sum = p * a + q * b;
                  p = f.floordiv(sum, 2);
                  q = f.floordiv(sum, 3);
                }
              }),
              HasSubstr("more than 1000"));
}

TEST_F(SizesTest, UnifyDoesNotBreakExpressions) {
  Builder builder(f);
  const ValId x = f.add_input("x", DType::kF32, {a, b - 2});
  builder.unfold(x, 0, 3, 1, 1);
  EXPECT_FALSE(f.unify(a, 2));
  EXPECT_FALSE(f.unify(b, 1));
  EXPECT_EQ(f.to_string(f.val(x).shape), "[A, B - 2]");
  EXPECT_TRUE(f.unify(a, 3));
  EXPECT_TRUE(f.unify(b, 2));
}

TEST_F(SizesTest, StaleShapesAreReadAsTheyAreNow) {
  Builder builder(f);
  const ValId x = f.add_input("x", DType::kF32, {a});
  const ValId y = f.add_input("y", DType::kF32, {b});
  ASSERT_TRUE(f.unify(a, 1));
  const ValId sum = builder.add(x, y);  // x is now stretched
  EXPECT_EQ(f.to_string(f.val(sum).shape), "[B]");
}

}  // namespace
}  // namespace segfuse::ir
