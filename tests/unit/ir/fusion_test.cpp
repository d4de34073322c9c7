#include "ir/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ir/rules/verify.h"
#include "ir/text.h"
#include "samples.h"

namespace segfuse::ir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FusionTest : public testing::Test {
 protected:
  void TearDown() override { verify(f); }

  Fusion f{"test"};
  Builder b{f};
  ValId x = f.add_input("x", DType::kF32, {f.symbol("N")});
};

// --- erase

TEST_F(FusionTest, EraseNeedsNoUsesAndNoOutput) {
  const ValId a = b.exp(x);
  const ValId c = b.log(a);
  EXPECT_THAT(message_of<UsageError>([&] { f.erase(f.val(a).definition); }),
              HasSubstr("the result of 'exp' still has 1 uses"));
  f.add_output(c);
  EXPECT_THAT(message_of<UsageError>([&] { f.erase(f.val(c).definition); }),
              HasSubstr("the result of 'log' is an output of the Fusion 'test'"));
  f.remove_output(0);
  f.erase(f.val(c).definition);
  EXPECT_FALSE(f.contains(c));
  f.erase(f.val(a).definition);
  EXPECT_TRUE(f.val(x).uses.empty());
  EXPECT_TRUE(f.exprs().empty());
  EXPECT_THROW((void)f.val(a), UsageError);
}

TEST_F(FusionTest, DeadUsersCountAsUsers) {
  const ValId a = b.exp(x);
  const ValId dead = b.log(a);  // no output needs it
  EXPECT_THAT(f.val(a).uses, ElementsAre(f.val(dead).definition));
  EXPECT_TRUE(f.live_exprs().empty());
  EXPECT_THROW(f.erase(f.val(a).definition), UsageError);
  const Fusion copy = f;  // the copy holds the dead expression too and is whole
  verify(copy);
  EXPECT_EQ(print(copy), print(f));
}

TEST_F(FusionTest, EraseWithUsersTakesDeadOnesUsersFirst) {
  const ValId a = b.exp(x);
  const ValId c = b.log(a);
  const ValId kept = b.sin(x);
  const ValId d = b.add(c, kept);
  const ValId e = b.mul(a, d);
  f.add_output(kept);
  const std::vector<ExprId> expected{f.val(e).definition, f.val(d).definition, f.val(c).definition,
                                     f.val(a).definition};
  EXPECT_EQ(f.erase_with_users(a), expected);
  verify(f);
  EXPECT_THAT(f.exprs(), ElementsAre(f.val(kept).definition));
}

TEST_F(FusionTest, EraseWithUsersOfAValueInTheMiddle) {
  const ValId a = b.exp(x);
  const ValId c = b.log(a);
  const ValId d = b.sin(c);
  f.add_output(a);
  EXPECT_EQ(f.erase_with_users(c).size(), 2U);
  EXPECT_FALSE(f.contains(d));
  EXPECT_TRUE(f.contains(a));
}

TEST_F(FusionTest, EraseWithUsersOfOneResultTakesTheUsersOfTheOther) {
  const auto moments = b.welford(x, {0});
  const ValId user = b.exp(moments.m2);
  EXPECT_EQ(f.erase_with_users(moments.mean).size(), 2U);
  EXPECT_FALSE(f.contains(user));
}

TEST_F(FusionTest, EraseWithUsersRefusesOutputsAndInputsAndChangesNothing) {
  const ValId a = b.exp(x);
  f.add_output(b.log(a));
  const std::string before = print(f);
  EXPECT_THAT(message_of<UsageError>([&] { f.erase_with_users(a); }),
              HasSubstr("would remove an output of the Fusion 'test' (made by 'log')"));
  EXPECT_THROW(f.erase_with_users(x), UsageError);
  EXPECT_EQ(print(f), before);
}

TEST_F(FusionTest, RemoveInput) {
  const ValId y = f.add_input("y", DType::kF32, {});
  const ValId z = b.exp(y);
  EXPECT_THROW(f.remove_input(y), UsageError);
  f.erase(f.val(z).definition);
  EXPECT_THROW(f.remove_input(z), UsageError);
  f.remove_input(y);
  EXPECT_EQ(f.inputs().size(), 1U);
  f.add_output(x);
  EXPECT_THROW(f.remove_input(x), UsageError);
}

// --- copies

TEST(FusionCopies, EditingACopyLeavesTheOriginal) {
  const Fusion original = sample();
  const std::string before = print(original);
  Fusion copy = original;
  Builder b(copy);
  copy.add_output(b.neg(copy.outputs()[0].val));
  copy.remove_output(0);
  copy.compact();
  verify(copy);
  verify(original);
  EXPECT_EQ(print(original), before);
  EXPECT_NE(print(copy), before);
}

TEST(FusionCopies, SwapKeepsConstantsWhenEitherDies) {
  Fusion kept;
  {
    Fusion dying("other");
    Builder b(dying);
    const ValId one = b.constant(1);
    dying.add_output(one);
    kept.constant(2, DType::kF32);
    swap(kept, dying);
    EXPECT_EQ(dying.name(), "main");
  }
  verify(kept);
  EXPECT_EQ(kept.name(), "other");
  EXPECT_EQ(kept.constant(1, DType::kF32), kept.outputs()[0].val);
  EXPECT_EQ(kept.exprs().size(), 1U);
}

TEST(FusionCopies, SelfSwapAndSwapWithEmpty) {
  Fusion f = sample();
  const std::string before = print(f);
  f.swap(f);
  EXPECT_EQ(print(f), before);
  Fusion empty("empty");
  f.swap(empty);
  EXPECT_EQ(print(empty), before);
  EXPECT_EQ(print(f), "fusion \"empty\" {\n}\n");
  verify(f);
  verify(empty);
  const std::size_t exprs = empty.exprs().size();
  empty.constant(1e-5, DType::kF32);  // still known
  EXPECT_EQ(empty.exprs().size(), exprs);
}

TEST(FusionCopies, MoveLeavesAReusableObject) {
  Fusion from = sample();
  const std::string before = print(from);
  Fusion to = std::move(from);
  EXPECT_EQ(print(to), before);
  // NOLINTBEGIN(bugprone-use-after-move): the contract says that it can be used
  EXPECT_TRUE(from.vals().empty());
  from.set_name("again");
  from.add_output(from.constant(1, DType::kF32));
  verify(from);
  EXPECT_EQ(from.exprs().size(), 1U);
  from = std::move(to);
  EXPECT_EQ(print(from), before);
  EXPECT_TRUE(to.vals().empty());
  // NOLINTEND(bugprone-use-after-move)
  Fusion& same = from;
  from = std::move(same);
  EXPECT_EQ(print(from), before);
}

TEST(FusionCopies, ClearThenRebuild) {
  Fusion f = sample();
  const std::string before = print(f);
  f.clear();
  EXPECT_EQ(f.name(), "sample");
  EXPECT_TRUE(f.inputs().empty());
  verify(f);
  const Fusion again = sample();
  f = again;
  EXPECT_EQ(print(f), before);
}

TEST(FusionCopies, AttachedDataTravels) {
  Fusion f;
  f.set_data("answer", 42);
  const Fusion copy = f;
  f.clear();
  ASSERT_NE(copy.data("answer"), nullptr);
  EXPECT_EQ(std::any_cast<int>(*copy.data("answer")), 42);
  EXPECT_EQ(f.data("answer"), nullptr);
}

// --- constants

TEST_F(FusionTest, EqualConstantsAreOneWhileTheyLive) {
  const ValId one = b.constant(1);
  EXPECT_EQ(b.constant(1), one);
  EXPECT_NE(b.constant(1, DType::kF64), one);
  EXPECT_NE(b.constant(-0.0), b.constant(0.0));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(b.constant(nan), b.constant(-nan));
  f.erase(f.val(one).definition);
  const ValId again = b.constant(1);
  EXPECT_NE(again, one);
  EXPECT_TRUE(f.contains(again));
}

TEST_F(FusionTest, ConstantsAreFoundAfterCompactAndMove) {
  f.erase(f.val(b.exp(x)).definition);
  const ValId one = b.constant(1);
  f.add_output(one);
  f.erase(f.val(b.constant(2)).definition);
  const ValId moved = f.compact().vals[one.index];
  EXPECT_NE(moved, one);
  EXPECT_EQ(b.constant(1), moved);
  verify(f);
  Fusion other = std::move(f);
  EXPECT_EQ(other.constant(1, DType::kF32), moved);
  f.swap(other);
  EXPECT_EQ(b.constant(1), moved);
}

TEST_F(FusionTest, AnErasedDuplicateLeavesTheTableAlone) {
  const ValId one = b.constant(1);
  const ExprId duplicate = f.add_expr(Op::constant, {}, {1.0, DType::kF32});
  f.erase(duplicate);
  EXPECT_EQ(b.constant(1), one);
}

// --- replace

TEST_F(FusionTest, ReplaceAValueUsedTwiceByOneExpression) {
  const ValId a = b.exp(x);
  const ValId twice = b.mul(a, a);
  const ExprId user = f.val(twice).definition;
  const ValId with = b.sin(x);
  f.replace_uses(a, with);
  EXPECT_THAT(f.expr(user).operands, ElementsAre(with, with));
  EXPECT_THAT(f.val(with).uses, ElementsAre(user));
  EXPECT_TRUE(f.val(a).uses.empty());
}

TEST_F(FusionTest, ReplaceAnOperandOfOneExpression) {
  const ValId a = b.exp(x);
  const ExprId user = f.val(b.mul(a, a)).definition;
  const ExprId other = f.val(b.log(a)).definition;
  const ValId with = b.sin(x);
  f.replace_operand(user, a, with);
  EXPECT_THAT(f.expr(user).operands, ElementsAre(with, with));
  EXPECT_THAT(f.expr(other).operands, ElementsAre(a));
  EXPECT_THAT(f.val(with).uses, ElementsAre(user));
  EXPECT_THAT(f.val(a).uses, ElementsAre(other));
  EXPECT_THROW(f.replace_operand(user, a, with), UsageError);
}

TEST_F(FusionTest, ReplaceAnInputThatIsAnOutput) {
  const ValId y = f.add_input("y", DType::kF32, {f.symbol("N")});
  const ValId user = b.exp(x);
  f.add_output(x, "first");
  f.add_output(user);
  f.add_output(x, "second");
  f.replace_uses(x, y);
  EXPECT_EQ(f.outputs()[0], (Output{y, "first"}));
  EXPECT_EQ(f.outputs()[2], (Output{y, "second"}));
  EXPECT_THAT(f.expr(f.val(user).definition).operands, ElementsAre(y));
  EXPECT_TRUE(f.is_input(x));
  f.remove_input(x);
}

TEST_F(FusionTest, ReplaceMovesAliasesWithTheOutput) {
  const ValId a = b.exp(x);
  f.add_output(a);
  f.add_alias(a, x);
  const ValId with = b.sin(x);
  f.replace_uses(a, with);
  EXPECT_THAT(f.aliases(), ElementsAre(Alias{with, x}));
}

TEST_F(FusionTest, ReplaceKeepsUsesSortedWhenTheUserIsOlder) {
  const ValId a = b.exp(x);
  const ValId old_user = b.log(a);
  const ValId with = b.sin(x);
  const ValId new_user = b.cos(with);
  f.replace_uses(a, with);
  EXPECT_THAT(f.val(with).uses,
              ElementsAre(f.val(old_user).definition, f.val(new_user).definition));
  f.add_output(old_user);
  EXPECT_THAT(f.live_exprs(), ElementsAre(f.val(with).definition, f.val(old_user).definition));
}

TEST_F(FusionTest, ReplaceRefusesCyclesAndOtherTypes) {
  const ValId a = b.exp(x);
  const ValId c = b.log(a);
  const std::string before = print(f);
  EXPECT_THAT(message_of<UsageError>([&] { f.replace_uses(x, c); }), HasSubstr("depends on it"));
  EXPECT_THAT(message_of<UsageError>([&] { f.replace_uses(a, b.sum(x, {0})); }),
              HasSubstr("f32[N] cannot be replaced by one of type f32[]"));
  f.erase(f.exprs().back());
  f.replace_uses(a, a);
  EXPECT_EQ(print(f), before);
}

// --- outputs and order

TEST_F(FusionTest, DuplicateOutputs) {
  const ValId a = b.exp(x);
  f.add_output(a, "one");
  f.add_output(a, "two");
  f.add_alias(a, x);
  f.remove_output(0);
  EXPECT_TRUE(f.is_output(a));
  EXPECT_EQ(f.aliases().size(), 1U);
  f.remove_output(0);
  EXPECT_FALSE(f.is_output(a));
  EXPECT_TRUE(f.aliases().empty());
  EXPECT_THROW(f.remove_output(0), UsageError);
}

TEST_F(FusionTest, LiveExprsKeepAnExpressionWithOneLiveResult) {
  const auto moments = b.welford(x, {0});
  const ValId dead = b.exp(moments.mean);
  f.add_output(b.log(moments.m2));
  EXPECT_THAT(f.live_exprs(),
              ElementsAre(f.val(moments.m2).definition, f.val(f.outputs()[0].val).definition));
  EXPECT_EQ(f.sorted_exprs().size(), 3U);
  EXPECT_TRUE(f.contains(dead));
}

TEST_F(FusionTest, AliasRules) {
  const ValId y = f.add_input("y", DType::kF32, {4});
  const ValId a = b.exp(x);
  EXPECT_THAT(message_of<UsageError>([&] { f.add_alias(a, x); }), HasSubstr("must be an output"));
  f.add_output(a);
  EXPECT_THAT(message_of<UsageError>([&] { f.add_alias(a, a); }), HasSubstr("onto an input"));
  EXPECT_THAT(message_of<UsageError>([&] { f.add_alias(a, y); }),
              HasSubstr("f32[N] cannot be aliased onto an input of type f32[4]"));
  f.add_alias(a, x);
  EXPECT_THAT(message_of<UsageError>([&] { f.add_alias(a, x); }), HasSubstr("aliased twice"));
}

TEST_F(FusionTest, InputsAreNamedOnceAndHaveSizes) {
  EXPECT_THAT(message_of<UsageError>([&] { f.add_input("x", DType::kF32, {}); }),
              HasSubstr("already has an input named 'x'"));
  EXPECT_THAT(message_of<UsageError>([&] { f.add_input("y", DType::kF32, {-3}); }),
              HasSubstr("must not be negative"));
  EXPECT_THAT(message_of<UsageError>([&] { f.add_input("y", DType::kF32, {SymbolId{77}}); }),
              HasSubstr("not of the Fusion 'test'"));
}

TEST_F(FusionTest, RandomNumbersAreStreamsOfTheirOwn) {
  const ValId seed = f.add_input("seed", DType::kI64, {2});
  for (const std::int64_t stream : {0, 1, 2}) {
    const ValId drawn = b.random_uniform(seed, {4});
    EXPECT_EQ(f.attr<std::int64_t>(f.val(drawn).definition, "stream"), stream);
  }
}

TEST_F(FusionTest, ARefusedExpressionChangesNothing) {
  const ValId a = f.add_input("a", DType::kF32, {f.symbol("P"), 3});
  const ValId c = f.add_input("c", DType::kF32, {f.symbol("Q"), 4});
  const std::string before = print(f);
  // The first axes would be united before the second ones are found to differ.
  EXPECT_THROW(f.add_expr(Op::add, {a, c}), UsageError);
  EXPECT_EQ(print(f), before);
  EXPECT_FALSE(f.equal(f.symbol("P"), f.symbol("Q")));
}

TEST_F(FusionTest, CompactRenumbersEverything) {
  Fusion g = sample();
  const ValId first = g.outputs()[0].val;
  Builder bg(g);
  const ValId extra = bg.exp(first);
  g.erase_with_users(extra);
  for (const ExprId id : g.sorted_exprs())
    if (g.expr(id).op == Op::log) g.erase(id);
  const std::string before = print(g);
  const Renumbering map = g.compact();
  EXPECT_EQ(g.vals().size(), g.storage().vals.size());
  EXPECT_EQ(g.exprs().size(), g.storage().exprs.size());
  EXPECT_EQ(map.vals[first.index], g.outputs()[0].val);
  EXPECT_FALSE(map.vals[extra.index].valid());
  EXPECT_EQ(print(g), before);
  verify(g);
}

}  // namespace
}  // namespace segfuse::ir
