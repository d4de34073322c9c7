#include "support/structure.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "samples.h"

namespace segfuse::ir {
namespace {

void expect_equal(const Fusion& a, const Fusion& b) {
  EXPECT_EQ(structural_hash(a), structural_hash(b)) << print(a) << print(b);
  EXPECT_TRUE(structurally_equal(a, b)) << print(a) << print(b);
}

void expect_different(const Fusion& a, const Fusion& b) {
  EXPECT_NE(structural_hash(a), structural_hash(b)) << print(a) << print(b);
  EXPECT_FALSE(structurally_equal(a, b)) << print(a) << print(b);
}

constexpr const char* kBase = R"(fusion "base" { symbols B, T
  require B*T == T + 6
  %x = input "x" : f32[B, T]
  %y = input "y" : f32[B, T]
  %0 = exp(%x)
  %1 = sub(%0, %y)
  %2 = constant {value=2, dtype=f32}
  %3 = broadcast(%2) {axes=[], shape=[B, T]}
  %4 = mul(%1, %3)
  %5, %6 = welford(%4) {axes=[1]}
  output %4 "z" output %6 "m"
  alias %4 -> %x })";

std::string changed(std::string_view from, std::string_view to) {
  std::string text = kBase;
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw InternalError(fmt::format("'{}' is not in the text", from));
  return text.replace(at, from.size(), to);
}

TEST(Hash, ACopyIsEqual) {
  const Fusion f = sample();
  const Fusion copy = f;
  expect_equal(f, copy);
  expect_equal(f, parse(print(f)));
}

TEST(Hash, NamesAndDeadCodeDoNotCount) {
  const Fusion base = parse(kBase);
  const Fusion other = parse(R"(fusion "other" { symbols dead, T9, A
    require A*T9 == T9 + 6
    %in1 = input "first" : f32[A, T9]
    %in2 = input "second" : f32[A, T9]
    %c = constant {value=2, dtype=f32}
    %d = constant {value=3, dtype=f32}
    %w = broadcast(%c) {axes=[], shape=[A, T9]}
    %e = broadcast(%d) {axes=[], shape=[dead]}
    %0 = exp(%in1)
    %again = exp(%in1)
    %1 = sub(%again, %in2)
    %m = mul(%1, %w)
    %twin = mul(%1, %w)
    %k, %l = welford(%twin) {axes=[1]}
    output %m output %l
    alias %m -> %in1
  })");
  expect_equal(base, other);
}

TEST(Hash, EveryChangeOfMeaningCounts) {
  const Fusion base = parse(kBase);
  const std::pair<const char*, const char*> changes[] = {
      {"exp(%x)", "sin(%x)"},
      {"exp(%x)", "exp(%y)"},
      {"sub(%0, %y)", "sub(%y, %0)"},
      {"value=2", "value=2.0000000000000004"},
      {"value=2", "value=-2"},
      {"axes=[1]", "axes=[0]"},
      {"output %6", "output %5"},
      {"output %6 \"m\"", ""},
      {"output %4 \"z\" output %6 \"m\"", "output %6 output %4"},
      {"output %6", "output %6 output %6"},
      {"alias %4 -> %x", "alias %4 -> %y"},
      {"alias %4 -> %x", ""},
      {"B*T == T + 6", "B*T == T + 7"},
      {"require B*T == T + 6", ""},
      {"require B*T == T + 6", "require B == T"},
      {"require B*T == T + 6", "require T == 8"},
  };
  for (const auto& [from, to] : changes) expect_different(base, parse(changed(from, to)));
  std::string wide = kBase;
  for (std::size_t at; (at = wide.find("f32")) != std::string::npos;) wide.replace(at, 3, "f64");
  expect_different(base, parse(wide));
}

TEST(Hash, RequirementsOfUnusedSizesDoNotCount) {
  expect_equal(parse(kBase), parse(changed("require", "symbols P, Q require P*Q == 12 require")));
}

TEST(Hash, ExtentsCount) {
  const auto program = [](const std::string& shape, const std::string& target) {
    return parse("fusion { symbols A, B, C %x = input \"x\" : f32[" + shape +
                 "] %y = pad(%x) {low=[" + target + ", 0], high=[0, 0], value=0} output %y }");
  };
  const Fusion base = program("A, B", "A");
  expect_equal(base, program("C, A", "C"));
  expect_different(base, program("A, B", "B"));
  expect_different(base, program("A, A", "A"));
  expect_different(base, program("A, B", "2*A"));
  expect_different(base, program("A, B", "A + 1"));
  expect_different(base, program("A, B", "A*A"));
  expect_different(base, program("A, B", "floordiv(A, 2)"));
  expect_different(program("A, B", "floordiv(A, 3)"), program("A, B", "floordiv(A, 2)"));
  expect_different(program("A, B", "floordiv(A, 2)"), program("A, B", "floordiv(B, 2)"));
  expect_equal(program("A, B", "floordiv(A + B, 2)"), program("B, A", "floordiv(B + A, 2)"));
}

TEST(Hash, SymbolsThatNeverStandAloneAreMatched) {
  const auto program = [](const std::string& x, const std::string& y) {
    return parse("fusion { symbols A, B, C %x = input \"x\" : f32[" + x +
                 "] %y = input \"y\" : f32[" + y + "] output %x output %y }");
  };
  expect_equal(program("A*B", "2*A"), program("C*A", "2*C"));
  expect_equal(program("A*B", "2*A"), program("A*B", "2*B"));
  expect_equal(program("A*B + C", "3"), program("B*C + A", "3"));
  expect_different(program("A*B", "2*A"), program("A*B", "2*C"));
  expect_different(program("A + 2*B", "A"), program("2*A + B", "A"));
}

TEST(Hash, OrderOfInsertionDoesNotCount) {
  // One DAG of random operations, its expressions added in random topological orders.
  Rng rng(5);
  Fusion first("first");
  {
    Builder b(first);
    std::vector<ValId> values;
    for (const char* name : {"x", "y"})
      values.push_back(first.add_input(name, DType::kF32, {first.symbol("N"), first.symbol("M")}));
    const auto any = [&] { return values[rng.below(values.size())]; };
    for (int i = 0; i < 40; ++i) {
      const ValId a = any();
      const ValId c = any();
      values.push_back(rng.below(2) ? b.add(a, c) : rng.below(2) ? b.exp(a) : b.sub(a, c));
    }
    for (int i = 0; i < 5; ++i) first.add_output(any());
    first.add_output(b.reshape(values.back(), {Extent(first.symbol("N")) * first.symbol("M")}));
  }
  for (int trial = 0; trial < 10; ++trial) {
    Fusion other("other");
    for (const char* unused : {"q", "r"}) (void)other.symbol(unused);
    std::map<ValId, ValId> map;
    std::map<SymbolId, Extent> sizes{{first.symbol("M"), other.symbol("rows")},
                                     {first.symbol("N"), other.symbol("columns")}};
    const auto translate = [&](const Extents& from) {
      Extents to;
      for (const Extent& extent : from)
        to.push_back(extent.substitute([&](SymbolId id) { return sizes.at(id); }));
      return to;
    };
    for (const Input& input : first.inputs())
      map[input.val] =
          other.add_input(input.name + "2", DType::kF32, translate(first.val(input.val).shape));
    std::vector<ExprId> open = first.sorted_exprs();
    while (!open.empty()) {
      const std::size_t pick = rng.below(open.size());
      const Expr& e = first.expr(open[pick]);
      std::vector<ValId> operands;
      for (const ValId operand : e.operands)
        if (map.contains(operand)) operands.push_back(map[operand]);
      if (operands.size() != e.operands.size()) continue;
      Attrs attrs = e.attrs;
      for (Attr& attr : attrs)
        if (auto* extents = std::get_if<Extents>(&attr)) *extents = translate(*extents);
      map[e.results[0]] = other.result(other.add_expr(e.op, operands, attrs));
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    for (const Output& output : first.outputs()) other.add_output(map[output.val]);
    verify(other);
    expect_equal(first, other);
    other.replace_uses(map[first.inputs()[0].val], map[first.inputs()[1].val]);
    expect_different(first, other);
  }
}

TEST(Hash, IsTheSameOnEveryMachine) {
  EXPECT_EQ(fmt::format("{:016x}", structural_hash(parse(kBase))), "b2528fb9965694b5");
}

}  // namespace
}  // namespace segfuse::ir
