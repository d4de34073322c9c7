#include "ir/bind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

using testing::HasSubstr;

Sizes bind_shapes(const Fusion& f, const std::vector<Shape>& shapes) { return ir::bind(f, shapes); }

std::string error_of(const Fusion& f, const std::vector<Shape>& shapes) {
  try {
    (void)ir::bind(f, shapes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Bind, SymbolsThatStandAlone) {
  Fusion f;
  const Extent b = f.symbol("B");
  const Extent t = f.symbol("T");
  f.add_input("x", DType::kF32, {b, t, 4});
  const Sizes sizes = bind_shapes(f, {{2, 7, 4}});
  EXPECT_EQ(sizes.of(b), 2);
  EXPECT_EQ(sizes.of(Extents{t, b * t + 1}), (Shape{7, 15}));
}

TEST(Bind, LinearAxesAfterTheAxesOfOneSymbol) {
  Fusion f;
  const Extent b = f.symbol("B");
  const Extent t = f.symbol("T");
  f.add_input("x", DType::kF32, {b * t + 1});
  f.add_input("y", DType::kF32, {b});
  EXPECT_EQ(bind_shapes(f, {{13}, {3}}).of(t), 4);
  EXPECT_EQ(bind_shapes(f, {{1}, {3}}).of(t), 0);
  EXPECT_THAT(error_of(f, {{14}, {3}}),
              HasSubstr("axis 0 of input 'x' has 14 elements; expected B*T + 1 with B = 3 (axis 0 "
                        "of input 'y'); there is no whole T >= 0"));
  EXPECT_THAT(error_of(f, {{0}, {3}}), HasSubstr("no whole T"));
  // Zero times T says nothing about T.
  EXPECT_THAT(error_of(f, {{1}, {0}}), HasSubstr("the size T (axis 0 of input 'x')"));
}

TEST(Bind, AxesOfOneSymbolGoFirstSoThatTheOthersAreBlamed) {
  Fusion f;
  const Extent t = f.symbol("T");
  f.add_input("x", DType::kF32, {t * 2});
  f.add_input("y", DType::kF32, {t});
  EXPECT_EQ(error_of(f, {{7}, {5}}),
            "axis 0 of input 'x' has 7 elements; expected 2*T = 10 with T = 5 (axis 0 of input "
            "'y')");
}

TEST(Bind, ExtremeNumbersAreErrorsNotCrashes) {
  Fusion f;
  const Extent t = f.symbol("T");
  f.add_input("x", DType::kF32, {Extent(-1) * t + std::numeric_limits<std::int64_t>::min()});
  EXPECT_NE(error_of(f, {{0}}), "");
  EXPECT_NE(error_of(f, {{std::numeric_limits<std::int64_t>::max()}}), "");
}

TEST(Bind, DerivedSizesAreEvaluated) {
  Fusion f;
  Builder b(f);
  const Extent t = f.symbol("T");
  const ValId x = f.add_input("x", DType::kF32, {t});
  const ValId windows = b.unfold(x, 0, 3, 2, 1);
  f.add_output(windows);
  f.add_input("y", DType::kF32, {f.val(windows).shape[0]});
  EXPECT_EQ(bind_shapes(f, {{8}, {3}}).of(f.val(windows).shape), (Shape{3, 3}));
  EXPECT_THAT(error_of(f, {{8}, {4}}),
              HasSubstr("axis 0 of input 'y' has 4 elements; expected floordiv(T - 1, 2) = 3 "
                        "with T = 8 (axis 0 of input 'x')"));
  EXPECT_THAT(error_of(f, {{0}, {0}}), HasSubstr("axis 0 of input 'y' has 0 elements"));
}

TEST(Bind, DisagreementNamesBothAxes) {
  Fusion f;
  const Extent t = f.symbol("T");
  f.add_input("x", DType::kF32, {t});
  f.add_input("y", DType::kF32, {2, t});
  EXPECT_EQ(error_of(f, {{5}, {2, 6}}),
            "axis 1 of input 'y' has 6 elements; expected T = 5 (axis 0 of input 'x')");
  EXPECT_EQ(error_of(f, {{5}, {3, 5}}), "axis 0 of input 'y' has 3 elements; expected 2");
  EXPECT_EQ(error_of(f, {{5}}), "the Fusion 'main' has 2 inputs; 1 were given");
  EXPECT_EQ(error_of(f, {{5}, {5}}),
            "input 'y' has the shape [5] with 1 axes; expected [2, T] with 2");
  EXPECT_THAT(error_of(f, {{-1}, {2, -1}}), HasSubstr("must not be negative"));
}

TEST(Bind, RequirementsAreCheckedAndSolve) {
  Fusion f;
  Builder b(f);
  const Extent n = f.symbol("N");
  const Extent m = f.symbol("M");
  const Extent k = f.symbol("K");
  const ValId x = f.add_input("x", DType::kF32, {n, m});
  const ValId flat = b.reshape(x, {k});
  f.add_output(flat);
  EXPECT_EQ(bind_shapes(f, {{3, 4}}).of(k), 12);
  f.add_input("y", DType::kF32, {k});
  EXPECT_EQ(bind_shapes(f, {{3, 4}, {12}}).of(k), 12);
  EXPECT_THAT(error_of(f, {{3, 4}, {13}}),
              HasSubstr("axis 0 of input 'y' has 13 elements; expected M*N = 12"));
  ASSERT_TRUE(f.unify(n * 4, m * 3));
  EXPECT_THAT(error_of(f, {{3, 5}, {15}}), HasSubstr("must satisfy 3*M == 4*N; found"));
}

TEST(Bind, UnitedSymbolsAllHaveNumbers) {
  Fusion f;
  Builder b(f);
  const Extent s = f.symbol("S");
  const Extent t = f.symbol("T");
  const Extent four = f.symbol("four");
  const ValId x = f.add_input("x", DType::kF32, {s});
  const ValId y = f.add_input("y", DType::kF32, {t});
  f.add_output(b.add(x, y));
  ASSERT_TRUE(f.unify(four, 4));
  const Sizes sizes = bind_shapes(f, {{6}, {6}});
  EXPECT_EQ(sizes.of(s), 6);
  EXPECT_EQ(sizes.of(t), 6);
  EXPECT_EQ(sizes.of(four), 4);
  EXPECT_THAT(error_of(f, {{6}, {7}}), HasSubstr("axis 0 of input 'y' has 7 elements"));
}

TEST(Bind, OnlyLiveSizesAreNeeded) {
  Fusion f;
  Builder b(f);
  const Extent s = f.symbol("S");
  const ValId x = f.add_input("x", DType::kF32, {f.symbol("T")});
  f.add_output(b.exp(x));
  const ValId dead = b.full(1, {s});
  const Sizes sizes = bind_shapes(f, {{3}});
  EXPECT_THROW((void)sizes.of(s), UsageError);
  f.add_output(dead);
  EXPECT_THAT(error_of(f, {{3}}), HasSubstr("the size S ("));
}

TEST(Bind, NegativeSizesAndSlicesOutsideAreRefused) {
  Fusion f;
  Builder b(f);
  const Extent t = f.symbol("T");
  const ValId x = f.add_input("x", DType::kF32, {t});
  f.add_output(b.slice_axis(x, 0, 2, t - 3));
  EXPECT_EQ(bind_shapes(f, {{5}}).of(t - 3), 2);
  EXPECT_THAT(error_of(f, {{2}}), HasSubstr("would be T - 3 = -1 with T = 2"));

  Fusion g;
  Builder bg(g);
  const ValId y = g.add_input("y", DType::kF32, {g.symbol("T")});
  g.add_output(bg.slice_axis(y, 0, 2, 3));
  EXPECT_EQ(error_of(g, {{5}}), "");
  EXPECT_THAT(error_of(g, {{4}}), HasSubstr("[2, 2 + 3) is outside axis 0 of 4 elements (T)"));
}

}  // namespace
}  // namespace segfuse::ir
