// Indices against the arithmetic that they stand for, and the forms that kernels rely on.

#include "compiler/loop/index.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/rng.h"

namespace segfuse::compiler::loop {
namespace {

using ir::Extent;
using ir::SymbolId;

const Extent kRows(SymbolId{0});
const Extent kColumns(SymbolId{1});

/// An index, and the same as a tree of arithmetic; `evaluate` says nothing where a number that is
/// divided is negative.
struct Expression {
  Index index;
  std::function<std::optional<std::int64_t>()> evaluate;
};

class RandomSizes {
 public:
  explicit RandomSizes(std::uint64_t seed) : rng_(seed, 1) {
    for (int i = 0; i < 3; ++i) {
      const Extent bound = size();
      vars.push_back(indices.add_var("v" + std::to_string(i), bound));
      bounds.push_back(bound);
    }
    values.resize(3);
  }

  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(rng_.uniform() * static_cast<double>(below));
  }
  std::int64_t value_of(const Extent& size) const {
    return size.evaluate([&](SymbolId id) { return symbols[id.index]; });
  }
  /// A product of small numbers and symbols, so that sizes share factors.
  Extent size() {
    const Extent factors[] = {2, 3, 4, 5, kRows, kColumns};
    Extent product = 1;
    for (std::int64_t i = draw(3); i >= 0; --i) product = product * factors[draw(6)];
    return product;
  }
  Expression leaf() {
    if (draw(4) == 0) {
      const Extent constant = size();
      return {constant, [this, constant] { return value_of(constant); }};
    }
    const auto i = static_cast<std::size_t>(draw(3));
    return {indices.of(vars[i]), [this, i] { return values[i]; }};
  }
  Expression expression(int depth) {
    if (depth == 0) return leaf();
    const Expression a = expression(depth - 1);
    const Extent by = size();
    switch (draw(5)) {
      case 0: {
        const Expression b = expression(depth - 1);
        return {indices.add(a.index, b.index), [a, b]() -> std::optional<std::int64_t> {
                  const auto x = a.evaluate();
                  const auto y = b.evaluate();
                  if (!x || !y) return {};
                  return *x + *y;
                }};
      }
      case 1: {
        const Expression b = leaf();
        return {indices.subtract(a.index, b.index), [a, b]() -> std::optional<std::int64_t> {
                  const auto x = a.evaluate();
                  const auto y = b.evaluate();
                  if (!x || !y) return {};
                  return *x - *y;
                }};
      }
      case 2:
        return {indices.multiply(a.index, by), [this, a, by]() -> std::optional<std::int64_t> {
                  const auto x = a.evaluate();
                  if (!x) return {};
                  return *x * value_of(by);
                }};
      case 3:
        return {indices.divide(a.index, by), [this, a, by]() -> std::optional<std::int64_t> {
                  const auto x = a.evaluate();
                  if (!x || *x < 0) return {};
                  return *x / value_of(by);
                }};
      default:
        return {indices.modulo(a.index, by), [this, a, by]() -> std::optional<std::int64_t> {
                  const auto x = a.evaluate();
                  if (!x || *x < 0) return {};
                  return *x % value_of(by);
                }};
    }
  }

  Indices indices;
  std::vector<VarId> vars;
  std::vector<Extent> bounds;
  std::vector<std::int64_t> values;
  std::int64_t symbols[2] = {3, 2};

 private:
  Rng rng_;
};

TEST(Index, RandomOnesAreWhatTheyWereMadeOf) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    RandomSizes random(seed);
    const Expression e = random.expression(4);
    const Indices::Numbers numbers{[&](VarId var) { return random.values[var.index]; },
                                   [](ValueId) { return 0; },
                                   [&](const Extent& size) { return random.value_of(size); }};
    for (int trial = 0; trial < 20; ++trial) {
      for (std::int64_t& symbol : random.symbols) symbol = 1 + random.draw(4);
      for (std::size_t i = 0; i < random.vars.size(); ++i)
        random.values[i] = random.draw(random.value_of(random.bounds[i]));
      const auto expected = e.evaluate();
      if (!expected) continue;
      ASSERT_EQ(random.indices.evaluate(e.index, numbers), *expected) << "seed " << seed;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20000);
}

/// Rows of two steps of 80 columns, seen as rows of 160: where a lane is does not depend on the
/// number of rows.
TEST(Index, FactorsThatDividendAndDivisorShareGoAway) {
  Indices indices;
  const VarId p = indices.add_var("p", kRows);
  const VarId j = indices.add_var("j", 160);
  const Index flat = indices.add(indices.multiply(indices.of(p), 160), indices.of(j));
  const Index step = indices.divide(flat, 80);
  EXPECT_EQ(step,
            indices.add(indices.multiply(indices.of(p), 2), indices.divide(indices.of(j), 80)));
  EXPECT_EQ(indices.divide(step, kColumns * 2), indices.divide(indices.of(p), kColumns));
  EXPECT_EQ(indices.modulo(step, kColumns * 2),
            indices.add(indices.multiply(indices.modulo(indices.of(p), kColumns), 2),
                        indices.divide(indices.of(j), 80)));
  EXPECT_EQ(indices.modulo(flat, 80), indices.modulo(indices.of(j), 80));
}

TEST(Index, TwoAxesOfThreeAreFoundAgain) {
  Indices indices;
  const VarId b = indices.add_var("b", 7);
  const VarId h = indices.add_var("h", kRows);
  const VarId w = indices.add_var("w", kColumns);
  const Index row = indices.add(indices.multiply(indices.of(b), kRows), indices.of(h));
  const Index flat = indices.add(indices.multiply(row, kColumns), indices.of(w));
  EXPECT_EQ(indices.divide(flat, kRows * kColumns), indices.of(b));
  EXPECT_EQ(indices.divide(indices.modulo(flat, kRows * kColumns), kColumns), indices.of(h));
}

/// What may be negative by itself is not taken apart: 2 v - 1 is 1 at v = 1, and (2 v - 1) / 2 is
/// 0.
TEST(Index, NegativePartsStayWhereTheyAre) {
  Indices indices;
  const VarId v = indices.add_var("v", 8);
  const Index odd = indices.add(indices.multiply(indices.of(v), 2), -1);
  const Index half = indices.divide(odd, 2);
  const Indices::Numbers one{[](VarId) { return 1; }, [](ValueId) { return 0; },
                             [](const Extent& size) { return size.constant(); }};
  EXPECT_EQ(indices.evaluate(half, one), 0);
  EXPECT_EQ(indices.evaluate(indices.modulo(odd, 2), one), 1);
}

}  // namespace
}  // namespace segfuse::compiler::loop
