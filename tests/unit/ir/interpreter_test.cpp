// The interpreter against values worked out by hand.

#include "ir/interpret/interpreter.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "ir/builder.h"
#include "ir/interpret/evaluate.h"
#include "segfuse/error.h"
#include "support/tensors.h"

namespace segfuse::ir {
namespace {

using segfuse::testing::counting;
using segfuse::testing::expect_values;
using segfuse::testing::row;
using segfuse::testing::scalar;
using segfuse::testing::tensor;
using segfuse::testing::uniform;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<std::int64_t>;

Extents constant_shape(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// All results of one operation.
std::vector<Tensor> run(Op op, const std::vector<Tensor>& operands, Attrs attrs = {}) {
  Fusion fusion;
  std::vector<ValId> ids;
  for (std::size_t i = 0; i < operands.size(); ++i)
    ids.push_back(fusion.add_input("x" + std::to_string(i), operands[i].dtype(),
                                   constant_shape(operands[i].shape())));
  const ExprId id = fusion.add_expr(op, ids, std::move(attrs));
  for (const ValId result : std::vector<ValId>(fusion.expr(id).results)) fusion.add_output(result);
  return interpret(fusion, operands);
}

struct Case {
  Op op;
  std::vector<double> a;
  std::vector<double> expected;
  std::vector<double> b = {};
  DType dtype = DType::kF64;
};

const std::vector<Case>& elementwise_cases() {
  static const double e = std::numbers::e;
  static const std::vector<Case> cases = {
      {Op::neg, {1, -2, 0, kInf, kNan}, {-1, 2, 0, -kInf, kNan}},
      {Op::neg, {5, -2147483648.0}, {-5, -2147483648.0}, {}, DType::kI32},
      {Op::abs, {-3, 3, -kInf, kNan}, {3, 3, kInf, kNan}},
      {Op::sign, {-3, 0, 2, -kInf, kNan}, {-1, 0, 1, -1, kNan}},
      {Op::square, {-3, 0.5, kNan}, {9, 0.25, kNan}},
      {Op::square, {65536, 65537}, {0, 131073}, {}, DType::kI32},
      {Op::exp, {0, 1, -kInf, kInf, kNan}, {1, e, 0, kInf, kNan}},
      {Op::exp2, {0, 10, -1074, -kInf, kInf, kNan}, {1, 1024, 0x1p-1074, 0, kInf, kNan}},
      {Op::expm1, {0, 1, -kInf, 1e-15}, {0, e - 1, -1, 1e-15}},
      {Op::log, {1, e, 0, -1, kInf}, {0, 1, -kInf, kNan, kInf}},
      {Op::log1p, {0, e - 1, -1, 1e-15}, {0, 1, -kInf, 1e-15}},
      {Op::sqrt, {4, 0, -1}, {2, 0, kNan}},
      {Op::rsqrt, {4, 0, kInf}, {0.5, kInf, 0}},
      {Op::reciprocal, {4, -0.5, 0}, {0.25, -2, kInf}},
      {Op::sin, {0, std::numbers::pi / 2}, {0, 1}},
      {Op::cos, {0, std::numbers::pi}, {1, -1}},
      {Op::tanh, {0, kInf, -kInf, std::log(3.0) / 2}, {0, 1, -1, 0.5}},
      {Op::sigmoid, {0, kInf, -kInf, std::log(3.0)}, {0.5, 1, 0, 0.75}},
      {Op::softplus, {0, 1000, -1000, kNan}, {std::log(2.0), 1000, 0, kNan}},
      {Op::erf, {0, kInf, -kInf, 1}, {0, 1, -1, 0.8427007929497149}},
      {Op::relu, {-1, 2, kNan, -kInf}, {0, 2, kNan, 0}},
      {Op::floor, {1.5, -1.5}, {1, -2}},
      {Op::ceil, {1.5, -1.5}, {2, -1}},
      {Op::round, {0.5, 1.5, -2.5, 2.4}, {0, 2, -2, 2}},
      {Op::is_nan, {1, kInf, kNan}, {0, 0, 1}},
      {Op::is_finite, {1, kInf, -kInf, kNan}, {1, 0, 0, 0}},
      {Op::logical_not, {0, 1}, {1, 0}, {}, DType::kBool},
      {Op::add, {1, kInf, kNan}, {3, kNan, kNan}, {2, -kInf, 1}},
      {Op::add, {2147483647, 1}, {-2147483648.0, 3}, {1, 2}, DType::kI32},
      {Op::sub, {1, -2147483648.0}, {-1, 2147483647}, {2, 1}, DType::kI32},
      {Op::mul, {3, 0, kNan}, {6, kNan, kNan}, {2, kInf, 0}},
      {Op::div, {3, 1, 0}, {1.5, kInf, kNan}, {2, 0, 0}},
      {Op::pow, {2, 9, 2, 0}, {8, 3, 0.25, 1}, {3, 0.5, -2, 0}},
      {Op::fmod,
       {7, -7, 7, 1, 1e20, kInf, 1, 1, -0.0},
       {1, -1, 1, 0.09999999999999995, 1, kNan, kNan, 1, 0},
       {3, 3, -3, 0.1, 3, 1, 0, kInf, 2}},
      {Op::maximum, {1, 2, kNan, 1}, {2, 2, kNan, kNan}, {2, 1, 1, kNan}},
      {Op::minimum, {1, 2, kNan, 1}, {1, 1, kNan, kNan}, {2, 1, 1, kNan}},
      {Op::eq, {1, 2, kNan}, {1, 0, 0}, {1, 1, kNan}},
      {Op::ne, {1, 2, kNan}, {0, 1, 1}, {1, 1, kNan}},
      {Op::lt, {1, 1, 2, kNan}, {1, 0, 0, 0}, {2, 1, 1, 1}},
      {Op::le, {1, 1, 2, kNan}, {1, 1, 0, 0}, {2, 1, 1, 1}},
      {Op::gt, {1, 1, 2}, {0, 0, 1}, {2, 1, 1}, DType::kI64},
      {Op::ge, {1, 1, 2}, {0, 1, 1}, {2, 1, 1}, DType::kI64},
      {Op::logical_and, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}, DType::kBool},
      {Op::logical_or, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, DType::kBool},
      {Op::logical_xor, {0, 0, 1, 1}, {0, 1, 1, 0}, {0, 1, 0, 1}, DType::kBool},
  };
  return cases;
}

TEST(Interpreter, ElementwiseByHand) {
  for (const Case& c : elementwise_cases()) {
    SCOPED_TRACE(info(c.op).name);
    std::vector<Tensor> operands{row(c.a, c.dtype)};
    if (!c.b.empty()) operands.push_back(row(c.b, c.dtype));
    expect_values(run(c.op, operands)[0], c.expected);
  }
}

TEST(Interpreter, WhereAndCast) {
  expect_values(run(Op::where, {row({1, 0}, DType::kBool), row({1, 2}), row({3, kNan})})[0],
                {1, kNan});
  const Tensor reals = row({-2.7, 3.9, 1e20, kNan, 0});
  expect_values(run(Op::cast, {reals}, {DType::kI32})[0], {-2, 3, 2147483647, 0, 0});
  expect_values(run(Op::cast, {reals}, {DType::kBool})[0], {1, 1, 1, 1, 0});
  expect_values(run(Op::cast, {row({4294967297.0, -1}, DType::kI64)}, {DType::kI32})[0], {1, -1});
  expect_values(run(Op::cast, {row({0, 1}, DType::kBool)}, {DType::kF32})[0], {0, 1});
}

TEST(Interpreter, KeepsAll64BitsOfIntegers) {
  Tensor a(DType::kI64, {1});
  a.span<std::int64_t>()[0] = (std::int64_t{1} << 62) + 1;
  const Tensor doubled = run(Op::add, {a, a})[0];
  EXPECT_EQ(doubled.span<std::int64_t>()[0],
            static_cast<std::int64_t>((std::uint64_t{1} << 63) + 2));  // wraps
}

TEST(Interpreter, FloatsAreRoundedOnlyOnRequest) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {});
  fusion.add_output(b.sub(b.add(x, b.constant(1.0)), b.constant(1.0)));
  const std::vector<Tensor> inputs{scalar(1e-9, DType::kF32)};
  EXPECT_NEAR(interpret(fusion, inputs)[0].at(0), 1e-9, 1e-15);
  EXPECT_EQ(interpret(fusion, inputs, {}, {.round_to_dtype = true})[0].at(0), 0);
  EXPECT_EQ(interpret(fusion, inputs)[0].dtype(), DType::kF64);
  EXPECT_EQ(interpret(fusion, inputs, {}, {.outputs_as_f64 = false})[0].dtype(), DType::kF32);
}

// --- reductions

TEST(Interpreter, ReductionsByHand) {
  const Tensor x = tensor(DType::kF64, {2, 3}, {1, 5, 3, -2, 0.5, 4});
  expect_values(run(Op::sum, {x}, {Ints{1}})[0], {9, 2.5});
  expect_values(run(Op::sum, {x}, {Ints{0}})[0], {-1, 5.5, 7});
  expect_values(run(Op::sum, {x}, {Ints{0, 1}})[0], {11.5});
  expect_values(run(Op::sum, {x}, {Ints{}})[0], {1, 5, 3, -2, 0.5, 4});
  expect_values(run(Op::prod, {x}, {Ints{1}})[0], {15, -4});
  expect_values(run(Op::max, {x}, {Ints{1}})[0], {5, 4});
  expect_values(run(Op::min, {x}, {Ints{0}})[0], {-2, 0.5, 3});
  expect_values(run(Op::argmax, {x}, {Ints{1}})[0], {1, 2});
  expect_values(run(Op::argmax, {row({2, 7, 7, 1})}, {Ints{0}})[0], {1});  // the first
  const std::vector<Tensor> moments = run(Op::welford, {x}, {Ints{1}});
  expect_values(moments[0], {3, 2.5 / 3});
  expect_values(moments[1], {8, 4 + 0.25 + 16 - 2.5 * 2.5 / 3});
  expect_values(run(Op::logsumexp, {row({0, std::log(3.0)})}, {Ints{0}})[0], {std::log(4.0)});
}

TEST(Interpreter, ReductionsOfNothingAreTheIdentity) {
  const Tensor none(DType::kF64, {2, 0});
  expect_values(run(Op::sum, {none}, {Ints{1}})[0], {0, 0});
  expect_values(run(Op::prod, {none}, {Ints{1}})[0], {1, 1});
  expect_values(run(Op::max, {none}, {Ints{1}})[0], {-kInf, -kInf});
  expect_values(run(Op::min, {none}, {Ints{1}})[0], {kInf, kInf});
  expect_values(run(Op::logsumexp, {none}, {Ints{1}})[0], {-kInf, -kInf});
  expect_values(run(Op::welford, {none}, {Ints{1}})[0], {0, 0});
  expect_values(run(Op::welford, {none}, {Ints{1}})[1], {0, 0});
  expect_values(run(Op::welford, {row({7})}, {Ints{0}})[1], {0});  // one value deviates by nothing
  EXPECT_EQ(run(Op::sum, {none}, {Ints{0}})[0].size(), 0);
  expect_values(run(Op::max, {Tensor(DType::kI32, {0})}, {Ints{0}})[0], {-2147483648.0});
  EXPECT_THROW(run(Op::argmax, {none}, {Ints{1}}), UsageError);
}

TEST(Interpreter, ReductionsOfSpecialValues) {
  const Tensor low = row({-kInf, -kInf});
  expect_values(run(Op::logsumexp, {low}, {Ints{0}})[0], {-kInf});
  expect_values(run(Op::logsumexp, {row({1, kInf})}, {Ints{0}})[0], {kInf});
  expect_values(run(Op::logsumexp, {row({-kInf, 2})}, {Ints{0}})[0], {2});
  expect_values(run(Op::logsumexp, {row({1000, 1000})}, {Ints{0}})[0], {1000 + std::log(2.0)});
  for (const Op op : {Op::sum, Op::prod, Op::max, Op::min, Op::logsumexp, Op::welford})
    EXPECT_TRUE(std::isnan(run(op, {row({1, kNan, 3})}, {Ints{0}})[0].at(0))) << info(op).name;
  expect_values(run(Op::argmax, {row({1, kNan, 9, kNan})}, {Ints{0}})[0], {1});
}

TEST(Interpreter, IntegerSumsWrap) {
  expect_values(run(Op::sum, {row({2147483647, 1}, DType::kI32)}, {Ints{0}})[0], {-2147483648.0});
  expect_values(run(Op::prod, {row({65536, 65537}, DType::kI32)}, {Ints{0}})[0], {65536});
}

// --- movement

TEST(Interpreter, MovementByHand) {
  const Tensor x = counting({2, 3});
  expect_values(run(Op::permute, {x}, {Ints{1, 0}})[0], {0, 3, 1, 4, 2, 5});
  expect_values(run(Op::broadcast, {row({1, 2})}, {Ints{0}, constant_shape({2, 3})})[0],
                {1, 1, 1, 2, 2, 2});
  expect_values(run(Op::broadcast, {scalar(4)}, {Ints{}, constant_shape({2})})[0], {4, 4});
  expect_values(run(Op::squeeze, {counting({2, 1, 3})}, {Ints{1}})[0], {0, 1, 2, 3, 4, 5});
  expect_values(run(Op::reshape, {x}, {constant_shape({3, 2})})[0], {0, 1, 2, 3, 4, 5});
  expect_values(run(Op::slice, {x}, {constant_shape({1, 1}), constant_shape({1, 2})})[0], {4, 5});
  expect_values(run(Op::pad, {row({1, 2})}, {constant_shape({1}), constant_shape({2}), -kInf})[0],
                {-kInf, 1, 2, -kInf, -kInf});
  expect_values(run(Op::concat, {x, counting({2, 1})}, {std::int64_t{1}})[0],
                {0, 1, 2, 0, 3, 4, 5, 1});
  expect_values(run(Op::take, {x, row({2, 0}, DType::kI64)}, {std::int64_t{1}})[0], {2, 0, 5, 3});
  expect_values(run(Op::take, {x, tensor(DType::kI32, {2, 1}, {1, 1})}, {std::int64_t{0}})[0],
                {3, 4, 5, 3, 4, 5});
  expect_values(
      run(Op::gather, {x, tensor(DType::kI64, {2, 2}, {2, 2, 0, 1})}, {std::int64_t{1}})[0],
      {2, 2, 3, 4});
  expect_values(run(Op::scatter_add, {row({1, 2, 4}), row({2, 0, 2}, DType::kI64)},
                    {std::int64_t{0}, constant_shape({4})})[0],
                {2, 0, 5, 0});
  expect_values(run(Op::unfold, {counting({5})},
                    {std::int64_t{0}, std::int64_t{2}, std::int64_t{2}, std::int64_t{2}})[0],
                {0, 2, 2, 4});
  expect_values(run(Op::fold, {counting({2, 2})},
                    {std::int64_t{0}, std::int64_t{2}, std::int64_t{2}, constant_shape({5})})[0],
                {0, 0, 3, 0, 3});
}

TEST(Interpreter, AllPermutationsOfOddSizes) {
  const Tensor x = counting({2, 3, 1, 5});
  Ints perm{0, 1, 2, 3};
  do {
    const Tensor moved = run(Op::permute, {x}, {perm})[0];
    Ints inverse(4);
    for (std::size_t i = 0; i < 4; ++i)
      inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    EXPECT_EQ(moved.shape()[0], x.shape()[static_cast<std::size_t>(perm[0])]);
    expect_values(run(Op::permute, {moved}, {inverse})[0], segfuse::testing::values(x));
  } while (std::next_permutation(perm.begin(), perm.end()));
}

TEST(Interpreter, IndicesOutOfRangeAreNamed) {
  const Tensor x = counting({3});
  for (const double bad : {-1.0, 3.0}) {
    const Tensor indices = row({0, bad}, DType::kI64);
    for (const Op op : {Op::take, Op::gather, Op::scatter_add}) {
      Attrs attrs{std::int64_t{0}};
      if (op == Op::scatter_add) attrs.push_back(constant_shape({3}));
      try {
        run(op, {op == Op::scatter_add ? counting({2}) : x, indices}, attrs);
        FAIL() << "index " << bad << " was accepted";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr(info(op).name),
                                                   ::testing::HasSubstr(bad < 0 ? "-1" : "3"),
                                                   ::testing::HasSubstr("3 elements")));
      }
    }
  }
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

TEST(Interpreter, FoldIsTheAdjointOfUnfold) {
  Rng rng(11);
  for (int trial = 0; trial < 60; ++trial) {
    const auto size = static_cast<std::int64_t>(1 + rng.below(4));
    const auto stride = static_cast<std::int64_t>(1 + rng.below(3));
    const auto dilation = static_cast<std::int64_t>(1 + rng.below(3));
    const auto axis = static_cast<std::int64_t>(rng.below(2));
    const std::int64_t extent = (size - 1) * dilation + 1 + static_cast<std::int64_t>(rng.below(5));
    Shape shape{3, 2, 3};
    shape[static_cast<std::size_t>(axis)] = extent;
    const Tensor x = uniform(rng, DType::kF64, shape);
    const Tensor unfolded = run(Op::unfold, {x}, {axis, size, stride, dilation})[0];
    const Tensor y = uniform(rng, DType::kF64, unfolded.shape());
    const Tensor folded = run(Op::fold, {y}, {axis, stride, dilation, constant_shape({extent})})[0];
    EXPECT_NEAR(dot(unfolded, y), dot(x, folded), 1e-12);
  }
}

TEST(Interpreter, ScatterAddIsTheAdjointOfTake) {
  Rng rng(12);
  for (int trial = 0; trial < 40; ++trial) {
    const auto axis = static_cast<std::int64_t>(rng.below(3));
    const Tensor x = uniform(rng, DType::kF64, {3, 4, 2});
    const std::int64_t size = x.shape()[static_cast<std::size_t>(axis)];
    Tensor indices(DType::kI64, {2, 3});
    for (std::int64_t i = 0; i < indices.size(); ++i)
      indices.set(i, static_cast<double>(rng.below(static_cast<std::uint64_t>(size))));
    const Tensor taken = run(Op::take, {x, indices}, {axis})[0];
    const Tensor y = uniform(rng, DType::kF64, taken.shape());
    const Tensor added = run(Op::scatter_add, {y, indices}, {axis, constant_shape({size})})[0];
    EXPECT_NEAR(dot(taken, y), dot(x, added), 1e-12);
  }
}

// --- creation, matmul, programs

TEST(Interpreter, Creation) {
  expect_values(run(Op::constant, {}, {2.5, DType::kF64})[0], {2.5});
  expect_values(run(Op::constant, {}, {1.0, DType::kBool})[0], {1});
  expect_values(run(Op::iota, {}, {constant_shape({4}), DType::kI32})[0], {0, 1, 2, 3});
  Fusion fusion;
  Builder b(fusion);
  const Extent size(fusion.symbol("T"));
  (void)fusion.add_input("x", DType::kF32, {size});
  fusion.add_output(b.extent(size * size + 1, DType::kI64));
  expect_values(interpret(fusion, std::vector{Tensor::zeros(DType::kF32, {5})})[0], {26});
}

TEST(Interpreter, RandomNumbersDependOnSeedStreamAndPosition) {
  auto draw = [](std::int64_t key, std::int64_t sequence, std::int64_t stream) {
    Tensor seed(DType::kI64, {2});
    seed.span<std::int64_t>()[0] = key;
    seed.span<std::int64_t>()[1] = sequence;
    return run(Op::random_uniform, {seed}, {constant_shape({40, 50}), stream})[0];
  };
  const Tensor first = draw(7, 1, 0);
  double mean = 0;
  for (const double value : segfuse::testing::values(first)) {
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 1);
    mean += value / 2000;
  }
  EXPECT_NEAR(mean, 0.5, 0.03);
  EXPECT_TRUE(segfuse::testing::same_bits(first, draw(7, 1, 0)));
  EXPECT_FALSE(segfuse::testing::same_bits(first, draw(8, 1, 0)));
  EXPECT_FALSE(segfuse::testing::same_bits(first, draw(7, 2, 0)));
  EXPECT_FALSE(segfuse::testing::same_bits(first, draw(7, 1, 1)));
  EXPECT_FALSE(segfuse::testing::same_bits(first, draw((std::int64_t{1} << 62) + 7, 1, 0)));
}

TEST(Interpreter, MatmulByHandAndTransposed) {
  const Tensor a = tensor(DType::kF64, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = tensor(DType::kF64, {3, 2}, {1, 0, 0, 1, 1, 1});
  const std::int64_t no = 0;
  const std::int64_t yes = 1;
  expect_values(run(Op::matmul, {a, b}, {no, no})[0], {4, 5, 10, 11});
  const Tensor at = run(Op::permute, {a}, {Ints{1, 0}})[0];
  const Tensor bt = run(Op::permute, {b}, {Ints{1, 0}})[0];
  expect_values(run(Op::matmul, {at, bt}, {yes, yes})[0], {4, 5, 10, 11});
  const Tensor batch = tensor(DType::kF64, {2, 1, 2}, {1, 2, 3, 4});
  expect_values(run(Op::matmul, {batch, tensor(DType::kF64, {2, 2, 1}, {1, 1, 2, 0})}, {no, no})[0],
                {3, 6});
  expect_values(run(Op::matmul, {batch, tensor(DType::kF64, {2, 1}, {1, 1})}, {no, no})[0], {3, 7});
  expect_values(
      run(Op::matmul, {Tensor(DType::kF64, {2, 0}), Tensor(DType::kF64, {0, 1})}, {no, no})[0],
      {0, 0});
}

TEST(Interpreter, RunningResultsAndSortByHand) {
  const std::int64_t no = 0;
  const std::int64_t yes = 1;
  const double nan = std::nan("");
  const Tensor x = tensor(DType::kF64, {2, 3}, {1, 3, 2, -1, 0, 4});
  expect_values(run(Op::cumsum, {x}, {yes, no})[0], {1, 4, 6, -1, -1, 3});
  expect_values(run(Op::cumsum, {x}, {yes, yes})[0], {6, 5, 2, 3, 4, 4});
  expect_values(run(Op::cumprod, {x}, {no, no})[0], {1, 3, 2, -1, 0, 8});
  expect_values(run(Op::cummax, {x}, {yes, no})[0], {1, 3, 3, -1, 0, 4});
  expect_values(run(Op::cummin, {x}, {yes, yes})[0], {1, 2, 2, -1, 0, 4});
  const Tensor a = tensor(DType::kF64, {3}, {9, 2, 3});
  expect_values(run(Op::linear_scan, {a, tensor(DType::kF64, {3}, {1, 1, 1})}, {no, no})[0],
                {1, 3, 10});
  const Tensor half = tensor(DType::kF64, {2}, {std::log(2.0), std::log(2.0)});
  expect_values(run(Op::cumlogsumexp, {half}, {no, no})[0], {std::log(2.0), std::log(4.0)});
  const auto sorted = run(Op::sort, {tensor(DType::kF64, {5}, {2, nan, 1, 2, -1})}, {no, no});
  expect_values(sorted[1], {4, 2, 0, 3, 1});
  const auto down = run(Op::sort, {tensor(DType::kI64, {4}, {2, 1, 2, 5})}, {no, yes});
  expect_values(down[0], {5, 2, 2, 1});
  expect_values(down[1], {3, 0, 2, 1});
}

TEST(Interpreter, IntegerQuotientsAndBitsByHand) {
  const Tensor a = tensor(DType::kI32, {6}, {7, -7, 7, -7, 5, -2147483648.0});
  const Tensor b = tensor(DType::kI32, {6}, {2, 2, -2, -2, 0, -1});
  expect_values(run(Op::floor_div, {a, b}, {})[0], {3, -4, -4, 3, 0, -2147483648.0});
  expect_values(run(Op::floor_mod, {a, b}, {})[0], {1, 1, -1, -1, 0, 0});
  expect_values(run(Op::bit_and, {a, b}, {})[0], {2, 0, 6, -8, 0, -2147483648.0});
  const Tensor n = tensor(DType::kI32, {6}, {1, 1, 31, 32, -1, 31});
  expect_values(run(Op::shift_left, {a, n}, {})[0], {14, -14, -2147483648.0, 0, 0, 0});
  expect_values(run(Op::shift_right, {a, n}, {})[0], {3, -4, 0, -1, 0, -1});
}

TEST(Interpreter, SoftmaxAndLayerNorm) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {2, 3});
  fusion.add_output(b.softmax(x, -1));
  fusion.add_output(b.layer_norm(x, b.full(1, {3}), b.full(0, {3}), 0));
  const auto out = interpret(fusion, std::vector{tensor(DType::kF32, {2, 3}, {0, 0, 0, 1, 2, 3})});
  expect_values(out[0], {1 / 3.0, 1 / 3.0, 1 / 3.0, 0.09003057317038046, 0.24472847105479764,
                         0.6652409557748218});
  const double d = std::sqrt(1.5);
  expect_values(out[1], {kNan, kNan, kNan, -d, 0, d});  // 0 * 1/sqrt(0)
}

TEST(Interpreter, InputsAreChecked) {
  Fusion fusion("f");
  fusion.add_output(fusion.add_input("x", DType::kF32, {2}));
  EXPECT_THROW(interpret(fusion, {}), UsageError);
  EXPECT_THROW(interpret(fusion, std::vector{row({1, 2})}), UsageError);  // f64
  EXPECT_THROW(interpret(fusion, std::vector{row({1}, DType::kF32)}), UsageError);
  const Tensor x = row({1, 2}, DType::kF32);
  expect_values(interpret(fusion, std::vector{x}, {}, {.outputs_as_f64 = false})[0], {1, 2});
  EXPECT_FALSE(
      interpret(fusion, std::vector{x}, {}, {.outputs_as_f64 = false})[0].shares_storage_with(x));
}

TEST(Interpreter, OpaqueFunctionsGetWideOperands) {
  Fusion fusion;
  Builder b(fusion);
  std::vector<ValId> ids;
  const std::vector<Tensor> inputs{
      counting({1, 2, 3}, DType::kF32), counting({1, 3, 3}, DType::kF32),
      counting({2, 3}, DType::kF32),    counting({3}, DType::kF32),
      counting({3}, DType::kF32),       row({2}, DType::kI64),
      counting({1, 2}, DType::kI32),    counting({1, 2}, DType::kBool)};
  for (const Tensor& input : inputs)
    ids.push_back(fusion.add_input("x" + std::to_string(ids.size()), input.dtype(),
                                   constant_shape(input.shape())));
  fusion.add_output(b.make(Op::semicrf_loss, ids));
  EXPECT_THROW(interpret(fusion, inputs), UsageError);
  OpaqueOps opaque;
  opaque.semicrf_loss = [](std::span<const Tensor> operands) {
    EXPECT_EQ(operands.size(), 8U);
    EXPECT_EQ(operands[0].dtype(), DType::kF64);
    EXPECT_EQ(operands[7].dtype(), DType::kI64);
    return std::vector{row({operands[0].at(5) + operands[7].at(1)})};
  };
  expect_values(interpret(fusion, inputs, opaque)[0], {6});
}

// --- what the rows of ops.def say of the formulas

/// Whether a result inside an interval around `x` is farther from that of `x` than those of all its
/// corners.
bool farther_within(Op op, std::span<const double> x, std::span<const double> d, Rng& rng) {
  const auto at = [&](const std::function<double(std::size_t)>& offset) {
    std::vector<Scalar> operands;
    for (std::size_t i = 0; i < x.size(); ++i) operands.push_back({x[i] + d[i] * offset(i), 0});
    return evaluate_scalar(op, DType::kF64, DType::kF64, operands).real;
  };
  const double middle = at([](std::size_t) { return 0.0; });
  double corners = 0;
  for (std::size_t corner = 0; corner < (std::size_t{1} << x.size()); ++corner)
    corners = std::max(
        corners,
        std::abs(at([&](std::size_t i) { return (corner >> i & 1) != 0 ? 1.0 : -1.0; }) - middle));
  for (int inside = 0; inside < 16; ++inside)
    if (std::abs(at([&](std::size_t) { return 2 * rng.uniform() - 1; }) - middle) >
        corners * (1 + 1e-12) + 1e-14)
      return true;
  return false;
}

TEST(OpRows, ExtremesAreWhereTheySay) {
  for (const OpInfo& op : all_ops()) {
    if (op.rule != DTypeRule::kFloat && op.rule != DTypeRule::kNumeric) continue;
    Rng rng(9, static_cast<std::uint64_t>(op.op));
    bool within = false;
    for (int draw = 0; draw < 500 && !within; ++draw) {
      std::vector<double> x;
      std::vector<double> d;
      for (std::uint32_t i = 0; i < op.max_operands; ++i) {
        const bool any = op.domain == Domain::kAny;
        const bool negative = op.domain == Domain::kNonZero && rng.uniform() < 0.5;
        x.push_back(any ? 4 * rng.uniform() - 2 : (negative ? -1 : 1) * (0.3 + rng.uniform()));
        d.push_back(any ? 8 * rng.uniform() : std::abs(x.back()) * 0.5 * rng.uniform());
      }
      within = farther_within(op.op, x, d, rng);
    }
    EXPECT_EQ(within, op.extremes == Extremes::kWithin) << op.name;
  }
}

}  // namespace
}  // namespace segfuse::ir
