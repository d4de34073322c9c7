// Attention by tiles against its meaning, row by row.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "compiler/attention.h"
#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "segfuse/ops.h"
#include "support/attention_case.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::Fusion;
using ir::Op;
using ir::ValId;
using segfuse::testing::Attention;
using segfuse::testing::same_bits;
using segfuse::testing::uniform;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_close(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t o = 0; o < found.size(); ++o)
    for (std::int64_t i = 0; i < found[o].size(); ++i) {
      const double x = found[o].at(i);
      const double y = expected[o].at(i);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      ASSERT_LE(std::abs(x - y), tolerance * (1 + std::abs(y)))
          << what << ", output " << o << " element " << i << ": " << x << ", expected " << y;
    }
}

class AttentionOn : public ::testing::TestWithParam<std::string> {
 protected:
  void check(const Attention& a, std::vector<Tensor> inputs, const std::string& what) {
    const Fusion fusion = a.fusion();
    const auto expected = ir::interpret(fusion, inputs);
    std::vector<Tensor> first;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      auto found = Executable(fusion, pool, {.backend = GetParam(), .poison = true}).run(inputs);
      expect_close(found, expected, a.tolerance(), what);
      if (first.empty()) first = found;
      for (std::size_t o = 0; o < found.size(); ++o)
        EXPECT_TRUE(same_bits(found[o], first[o])) << what << ", " << threads << " threads";
    }
  }
  void check(const Attention& a, const std::string& what) { check(a, a.inputs(), what); }
};

INSTANTIATE_TEST_SUITE_P(On, AttentionOn, ::testing::Values("loops", "compiled"),
                         [](const auto& instance) {
                           return instance.param == "loops" ? "Loops" : "Compiled";
                         });

TEST_P(AttentionOn, IsTheFormulaAtAllSizes) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16})
    for (const auto& [m, n, d, e] : std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1},
                                                                             {1, 257, 33, 5},
                                                                             {97, 129, 33, 17},
                                                                             {257, 1, 8, 64},
                                                                             {96, 128, 4, 66},
                                                                             {95, 127, 7, 3},
                                                                             {200, 260, 2, 1},
                                                                             {3, 0, 2, 2},
                                                                             {0, 3, 2, 2},
                                                                             {4, 5, 0, 3},
                                                                             {4, 5, 3, 0}}) {
      Attention a;
      a.dtype = dtype;
      std::tie(a.rows, a.columns, a.inner, a.outer) = std::tuple(m, n, d, e);
      check(a, fmt::format("{}x{} of {} and {}", m, n, d, e));
      a.ahead = 0;
      a.leading = {1, 2};
      check(a, fmt::format("{}x{} of {} and {}, causal", m, n, d, e));
    }
}

TEST_P(AttentionOn, BiasesMasksAndBandsOfAllShapes) {
  Attention a;
  a.leading = {2, 2};
  a.rows = 101;
  a.columns = 140;
  a.inner = a.outer = 2;
  const std::vector<Shape> shapes{{2, 2, 101, 140}, {1, 1, 101, 140}, {2, 1, 1, 140},
                                  {1, 2, 101, 1},   {1, 1, 1, 1},     {2, 2, 1, 140}};
  const std::vector<std::optional<std::int64_t>> bands{{}, 0, -30, 39, 500};
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (const double fill : {-kInf, -1e9, 0.0})
      for (const std::optional<std::int64_t> ahead : {bands[i % 5], bands[(i + 2) % 5]}) {
        a.fill = fill;
        a.ahead = ahead;
        a.bias = shapes[i];
        a.mask = shapes[(i + 2) % shapes.size()];
        a.gradient = i % 2 == 0;
        check(a, fmt::format("shapes {}, fill {}, ahead {}", i, fill, ahead.value_or(-999)));
      }
}

TEST_P(AttentionOn, RowsThatSeeNothingAreNaN) {
  Attention a;
  a.rows = 110;
  a.columns = 150;
  a.mask = Shape{2, 110, 150};
  std::vector<Tensor> inputs = a.inputs();
  for (const std::int64_t row : {0, 40, 109})
    for (std::int64_t n = 0; n < 150; ++n) inputs[3].set(row * 150 + n, 0);
  check(a, inputs, "masked rows");
  ThreadPool pool(1);
  const Tensor out = Executable(a.fusion(), pool, {.backend = GetParam()}).run(inputs)[0];
  EXPECT_TRUE(std::isnan(out.at(40 * 4)));
  EXPECT_FALSE(std::isnan(out.at(41 * 4)));
  a.mask.reset();
  a.ahead = -100;  // none of the first 100 rows sees anything
  check(a, "a band that leaves rows out");
}

TEST_P(AttentionOn, NaNAndInfinitiesGoWhereTheyGo) {
  Attention a;
  a.leading = {1};
  a.rows = 200;
  a.columns = 300;
  for (const std::optional<std::int64_t> ahead : {std::optional<std::int64_t>(), {0}, {90}})
    for (std::size_t operand = 0; operand < 4; ++operand)
      for (const double what : {kNaN, kInf, -kInf}) {
        a.ahead = ahead;
        std::vector<Tensor> inputs = a.inputs();
        // In the last tile, which a band hides from the first rows.
        inputs[operand].set(inputs[operand].size() - 2, what);
        check(a, inputs, fmt::format("{} in {}, ahead {}", what, operand, ahead.value_or(-999)));
      }
}

TEST_P(AttentionOn, LargeScoresDoNotOverflow) {
  Attention a;
  a.rows = 130;
  a.columns = 260;
  a.gradient = false;
  for (const double scale : {1e3, -1e4, 1e30}) {
    a.scale = scale;
    a.dtype = DType::kF64;
    check(a, fmt::format("scale {}", scale));
  }
  a.dtype = DType::kF32;
  a.scale = 30;
  std::vector<Tensor> inputs = a.inputs();
  for (std::size_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < inputs[i].size(); ++j)
      inputs[i].set(j, std::round(inputs[i].at(j) * 2));  // exact products
  check(a, inputs, "whole numbers");
  Attention hidden;  // rows of one large number have no digits left for their sums
  hidden.ahead = -3;
  for (const double fill : {-1e9, -1e30}) {
    hidden.fill = fill;
    check(hidden, fmt::format("rows of {}", fill));
  }
}

TEST_P(AttentionOn, ABatchHasTheBitsOfItsRowsAlone) {
  Attention all;
  all.leading = {3};
  all.rows = 150;
  all.columns = 200;
  all.inner = 40;
  all.ahead = 20;
  Attention one = all;
  one.leading = {1};
  const std::vector<Tensor> inputs = all.inputs();
  ThreadPool pool(1);
  const auto whole = Executable(all.fusion(), pool, {.backend = GetParam()}).run(inputs);
  for (std::int64_t batch = 0; batch < 3; ++batch) {
    std::vector<Tensor> mine;
    for (const Tensor& input : inputs) {
      Shape shape = input.shape();
      shape[0] = 1;
      Tensor part(input.dtype(), shape);
      for (std::int64_t i = 0; i < part.size(); ++i) part.set(i, input.at(batch * part.size() + i));
      mine.push_back(part);
    }
    const auto alone = Executable(one.fusion(), pool, {.backend = GetParam()}).run(mine);
    for (std::size_t o = 0; o < alone.size(); ++o)
      for (std::int64_t i = 0; i < alone[o].size(); ++i)
        ASSERT_EQ(alone[o].at(i), whole[o].at(batch * alone[o].size() + i)) << o << " " << i;
  }
}

TEST_P(AttentionOn, MemoryGrowsAsTheLengthDoes) {
  for (const bool gradient : {false, true}) {
    std::vector<double> bytes;
    for (const std::int64_t length : {1024, 2048, 4096}) {
      Attention a;
      a.leading = {2};
      a.rows = a.columns = length;
      a.ahead = 0;
      a.gradient = gradient;
      ThreadPool pool(1);
      Executable executable(a.fusion(), pool, {.backend = GetParam()});
      executable.run(a.inputs());
      bytes.push_back(static_cast<double>(executable.workspace_bytes()));
    }
    EXPECT_LT(bytes[1], 2.1 * bytes[0]);
    EXPECT_LT(bytes[2], 2.1 * bytes[1]);
    EXPECT_LT(bytes[2], 4096.0 * 4096);
  }
}

// --- programs that are found

/// softmax(s) v in one of the ways in which people write it.
class Written {
 public:
  explicit Written(std::uint64_t seed) : rng_(seed) {}

  /// The result, and a scalar of it; the first inputs are q, k and v.
  Fusion write(std::vector<Tensor>& inputs) {
    ops::FusionBuilder f("written");
    const std::int64_t heads = 1 + below(3);
    const std::int64_t m = 1 + below(9);
    const std::int64_t n = 1 + below(9);
    const std::int64_t d = 1 + below(5);
    const std::int64_t e = 1 + below(5);
    const auto input = [&](const Shape& shape, DType dtype = DType::kF64) {
      inputs.push_back(dtype == DType::kBool ? Tensor(dtype, shape) : uniform(rng_, dtype, shape));
      for (std::int64_t i = 0; dtype == DType::kBool && i < inputs.back().size(); ++i)
        inputs.back().set(i, below(4) != 0 ? 1 : 0);
      return f.input("x" + std::to_string(inputs.size()), dtype,
                     ops::Sizes(shape.begin(), shape.end()));
    };
    const ops::Value q = input({2, heads, m, d});
    const bool turned = coin();
    const ops::Value k = input(turned ? Shape{2, heads, d, n} : Shape{2, heads, n, d});
    const ops::Value v = input({2, heads, n, e});
    const bool joined = coin();  // one batch for products, as PyTorch writes them
    const auto join = [&](const ops::Value& x) {
      return joined ? ops::reshape(x, {x.size(0) * x.size(1), x.size(2), x.size(3)}) : x;
    };
    ops::Value s = coin() && !turned ? ops::matmul(join(q), join(k), false, true)
                                     : ops::matmul(join(q), join(turned ? k : ops::transpose(k)));
    if (joined) s = ops::reshape(s, {2, heads, m, n});
    if (coin()) s = coin() ? s * 0.5 : s / 3.0;
    if (below(4) == 0) s = ops::Value(2.0) * s;
    const std::vector<Shape> shapes{{2, heads, m, n}, {m, n}, {heads, 1, n}, {2, 1, 1, n}, {n}, {}};
    for (std::int64_t i = below(3); i > 0; --i) {
      const ops::Value bias = input(shapes[static_cast<std::size_t>(below(6))]);
      s = coin() ? s + bias : bias + s;
    }
    const double fill = coin() ? -kInf : -3;
    for (std::int64_t i = below(3); i > 0; --i) s = masked(f, s, m, n, fill, input, shapes);
    const ops::Value p = softmax(s);
    const ops::Value out = ops::matmul(join(p), join(v));
    f.output(out);
    f.output(ops::sum(ops::square(out)));
    return ir::parse(f.text());
  }

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(n)));
  }
  bool coin() { return below(2) == 0; }

  ops::Value masked(ops::FusionBuilder& f, const ops::Value& s, std::int64_t m, std::int64_t n,
                    double fill, const auto& input, const std::vector<Shape>& shapes) {
    ops::Value seen = input(shapes[static_cast<std::size_t>(below(6))], DType::kBool);
    if (coin()) {
      const ops::Value rows =
          ops::unsqueeze(f.iota(m), 1) + f.constant(static_cast<double>(below(4)) - 1, DType::kI64);
      const ops::Value columns = f.iota(n);
      const ops::Value band = coin()   ? columns <= rows
                              : coin() ? ops::logical_not(columns > rows)
                                       : rows >= columns;
      seen = coin() ? band : ops::logical_and(band, seen);
    }
    return coin() ? ops::where(seen, s, fill) : ops::where(ops::logical_not(seen), fill, s);
  }

  ops::Value softmax(const ops::Value& s) {
    if (coin()) return ops::softmax(s, -1);
    ops::Value most = ops::max(s, ops::Axes{-1}, true);
    if (coin()) most = ops::where(ops::is_finite(most), most, 0.0);
    const ops::Value powers = ops::exp(s - most);
    const ops::Value sum = ops::sum(powers, ops::Axes{-1}, true);
    return coin() ? powers / sum : powers * ops::reciprocal(sum);
  }

  Rng rng_;
};

/// With the gradients of the scalar.
Fusion differentiated(Fusion f, bool find) {
  const std::vector<ValId> wrt{f.inputs()[0].val, f.inputs()[1].val, f.inputs()[2].val};
  ValId total = f.outputs()[1].val;
  if (find) {
    compiler::Replaced replaced;
    compiler::find_attention(f, std::vector<ValId>{total}, wrt, replaced);
    EXPECT_EQ(replaced.size(), 1U) << ir::print(f);
  }
  for (const ValId g : compiler::gradients(f, total, wrt)) f.add_output(g);
  return f;
}

bool has(const Fusion& f, Op op) {
  for (const ir::ExprId id : f.live_exprs())
    if (f.expr(id).op == op) return true;
  return false;
}

TEST(AttentionFound, RandomSpellingsMeanWhatTheyMeant) {
  ThreadPool pool(1);
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::vector<Tensor> inputs;
    const Fusion written = Written(seed).write(inputs);
    const Fusion plain = differentiated(written, false);
    Fusion found = differentiated(written, true);
    ASSERT_TRUE(has(found, Op::attention) && has(found, Op::attention_grad)) << ir::print(found);
    EXPECT_FALSE(has(found, Op::exp)) << ir::print(found);
    const auto expected = ir::interpret(plain, inputs);
    const std::string what = fmt::format("seed {}\n{}", seed, ir::print(plain));
    expect_close(Executable(found, pool, {.backend = "loops"}).run(inputs), expected, 1e-10, what);
    if (seed % 10 != 0) continue;
    EXPECT_TRUE(compiler::write_attention_out(found));
    ASSERT_FALSE(has(found, Op::attention) || has(found, Op::attention_grad));
    expect_close(ir::interpret(found, inputs), expected, 1e-10, what);
    if (::testing::Test::HasFailure()) return;
  }
}

/// A program that is not attention, by the text around `s` (2, 5, 5) and `v` (2, 5, 3).
void expect_not_found(const std::string& statements) {
  Fusion f = ir::parse("fusion { %q = input \"q\" : f32[2, 5, 4] %v = input \"v\" : f32[2, 5, 3] " +
                       statements + " }");
  EXPECT_FALSE(compiler::find_attention(f)) << ir::print(f);
}

constexpr const char* kProduct = "%s = matmul(%q, %q) {transpose_a=0, transpose_b=1} ";
constexpr const char* kSoftmax =
    "%l = logsumexp(%t) {axes=[2]} %b = broadcast(%l) {axes=[0, 1], shape=[2, 5, 5]} "
    "%d = sub(%t, %b) %p = exp(%d) ";
constexpr const char* kResult = "%o = matmul(%p, %v) {transpose_a=0, transpose_b=0} output %o ";

TEST(AttentionFound, WhatIsReadWithinOrMeansSomethingElseStays) {
  const std::string product = kProduct;
  const std::string softmax = kSoftmax;
  const std::string plain = "%t = neg(%s) ";
  const std::string scaled =
      "%c = constant {value=2, dtype=f32} %e = broadcast(%c) {axes=[], shape=[2, 5, 5]} "
      "%t = mul(%s, %e) ";
  Fusion f = ir::parse("fusion { %q = input \"q\" : f32[2, 5, 4] %v = input \"v\" : f32[2, 5, 3] " +
                       product + scaled + softmax + kResult + " }");
  EXPECT_TRUE(compiler::find_attention(f));
  expect_not_found(product + plain + softmax + kResult);                   // neg is no scale
  expect_not_found(product + scaled + softmax + kResult + " output %p ");  // the weights are read
  expect_not_found(product + scaled + softmax + kResult + " output %s ");  // the scores are read
  expect_not_found(product + scaled + softmax + kResult + " output %l ");
  for (const char* read : {"%p", "%t", "%s"})
    expect_not_found(product + scaled + softmax + kResult + "%x = neg(" + read + ") output %x ");
  std::string other_axis = softmax;
  other_axis.replace(other_axis.find("axes=[2]"), 8, "axes=[1]");
  other_axis.replace(other_axis.find("axes=[0, 1]"), 11, "axes=[0, 2]");
  expect_not_found(product + scaled + other_axis + kResult);
  // A row's sum that is stretched along the rows.
  std::string turned = softmax;
  turned.replace(turned.find("axes=[0, 1]"), 11, "axes=[0, 2]");
  expect_not_found(product + scaled + turned + kResult);
  // Two numbers are filled in; a bias is added to what is masked.
  const std::string masks =
      "%m = is_finite(%s) %f = constant {value=-inf, dtype=f32} "
      "%g = broadcast(%f) {axes=[], shape=[2, 5, 5]} %h = constant {value=-9, dtype=f32} "
      "%i = broadcast(%h) {axes=[], shape=[2, 5, 5]} ";
  expect_not_found(product + masks + "%w = where(%m, %s, %g) %t = where(%m, %w, %i) " + softmax +
                   kResult);
  expect_not_found(product + masks + "%w = where(%m, %s, %i) %t = add(%w, %w) " + softmax +
                   kResult);
}

TEST(AttentionFound, ABiasThatIsDifferentiatedWritesItOut) {
  Fusion f = ir::parse(
      "fusion { %q = input \"q\" : f64[2, 5, 4] %k = input \"k\" : f64[2, 6, 4] "
      "%v = input \"v\" : f64[2, 6, 3] %b = input \"b\" : f64[1, 5, 6] "
      "%o, %l = attention(%q, %k, %v, %b) {scale=0.5, fill=-inf, ahead=[2, 0]} "
      "%r = square(%o) %t = sum(%r) {axes=[0, 1, 2]} output %t }");
  const std::vector<ValId> wrt{f.inputs()[0].val, f.inputs()[3].val};
  for (const ValId g : compiler::gradients(f, f.outputs()[0].val, wrt)) f.add_output(g);
  EXPECT_FALSE(has(f, Op::attention) || has(f, Op::attention_grad));
  EXPECT_EQ(f.val(f.outputs()[2].val).shape, (Extents{1, 5, 6}));
}

}  // namespace
}  // namespace segfuse::engine
