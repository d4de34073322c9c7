// Every operation of ops.def on every type and on sizes 0, 1, odd, prime and above the block sizes:
// executor against interpreter within bounds derived from the operation.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/half.h"
#include "engine/exec/semicrf_ops.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "segfuse/error.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Attrs;
using ir::Extents;
using ir::Op;
using ir::ValId;
using segfuse::testing::same_bits;
using segfuse::testing::uniform;
using Ints = std::vector<std::int64_t>;

constexpr double kInf = std::numeric_limits<double>::infinity();

Extents sizes(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// Half the distance between neighbours of 1.
double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    case DType::kF32: return 0x1p-24;
    case DType::kF64: return 0x1p-53;
    default: return 0;
  }
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 65504;
    case DType::kF64: return std::numeric_limits<double>::max();
    default: return std::numeric_limits<float>::max();
  }
}

/// Below this, numbers lose places.
double smallest(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-14;
    case DType::kF64: return 0x1p-1022;
    default: return 0x1p-126;
  }
}

class ExecutorOps : public ::testing::TestWithParam<std::string> {
 protected:
  /// Runs one operation on both; |executor - interpreter| must be within
  /// `factor` * epsilon * (|interpreter| + what the operation gives on absolute values).
  void check(Op op, const std::vector<Tensor>& operands, const Attrs& attrs, double factor) {
    SCOPED_TRACE(std::string(ir::info(op).name) + " of " +
                 (operands.empty() ? ""
                                   : std::string(name_of(operands[0].dtype())) +
                                         to_string(operands[0].shape())));
    const ir::Fusion fusion = program(op, operands, attrs);
    const auto expected = ir::interpret(fusion, operands);
    std::vector<Tensor> magnitudes;
    for (const Tensor& operand : operands) {
      Tensor magnitude = operand.clone();
      if (is_float(operand.dtype()))
        for (std::int64_t i = 0; i < operand.size(); ++i) magnitude.set(i, std::abs(operand.at(i)));
      magnitudes.push_back(magnitude);
    }
    const auto bound = ir::interpret(fusion, magnitudes);
    const auto found = run_everywhere(fusion, operands);
    for (std::size_t o = 0; o < found.size(); ++o) {
      ASSERT_EQ(found[o].shape(), expected[o].shape());
      for (std::int64_t i = 0; i < found[o].size(); ++i) {
        const double x = found[o].at(i);
        const double y = expected[o].at(i);
        if (x == y || (std::isnan(x) && std::isnan(y))) continue;
        if (std::isinf(x) && std::abs(y) > 0.99 * largest(found[o].dtype())) continue;
        const double allowed =
            factor * epsilon(found[o].dtype()) *
            (std::abs(y) + std::abs(bound[o].at(i)) + smallest(found[o].dtype()));
        ASSERT_LE(std::abs(x - y), allowed)
            << "output " << o << " element " << i << ": " << x << ", expected " << y;
      }
    }
  }

  static ir::Fusion program(Op op, const std::vector<Tensor>& operands, const Attrs& attrs) {
    ir::Fusion fusion;
    std::vector<ValId> ids;
    for (const Tensor& operand : operands)
      ids.push_back(fusion.add_input("x" + std::to_string(ids.size()), operand.dtype(),
                                     sizes(operand.shape())));
    const ir::ExprId id = fusion.add_expr(op, ids, attrs);
    const std::vector<ValId> results = fusion.expr(id).results;
    for (const ValId result : results) fusion.add_output(result);
    return fusion;
  }

  /// The same bits on 1, 2 and 4 threads, on poisoned memory.
  std::vector<Tensor> run_everywhere(const ir::Fusion& fusion, const std::vector<Tensor>& inputs) {
    const auto found =
        Executable(fusion, one_, {.backend = GetParam(), .poison = true}).run(inputs);
    for (ThreadPool* pool : {&two_, &four_}) {
      const auto again =
          Executable(fusion, *pool, {.backend = GetParam(), .poison = true}).run(inputs);
      for (std::size_t o = 0; o < found.size(); ++o)
        EXPECT_TRUE(same_bits(found[o], again[o])) << pool->size() << " threads";
    }
    return found;
  }

  Tensor draw(ir::Domain domain, DType dtype, const Shape& shape) {
    Tensor tensor(dtype, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      double value = -2 + 4 * rng_.uniform();
      if (domain == ir::Domain::kPositive) value = 0.2 + 2.8 * rng_.uniform();
      if (domain == ir::Domain::kNonZero)
        value = (0.3 + 1.7 * rng_.uniform()) * (rng_.below(2) ? 1 : -1);
      if (dtype == DType::kBool) value = static_cast<double>(rng_.below(2));
      if (is_integer(dtype)) value = std::floor(value * 50);
      tensor.set(i, value);
    }
    return tensor;
  }

  static std::vector<DType> types(ir::DTypeRule rule) {
    using enum DType;
    switch (rule) {
      case ir::DTypeRule::kFloat:
      case ir::DTypeRule::kTest: return {kF16, kBF16, kF32, kF64};
      case ir::DTypeRule::kNumeric: return {kF16, kBF16, kF32, kF64, kI32, kI64};
      case ir::DTypeRule::kCompare: return {kF16, kBF16, kF32, kF64, kI32, kI64, kBool};
      case ir::DTypeRule::kInteger: return {kI32, kI64};
      default: return {kBool};
    }
  }

  Rng rng_{2024};
  ThreadPool one_{1};
  ThreadPool two_{2};
  ThreadPool four_{4};
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{}, {1}, {0}, {7}, {3, 0, 2}, {5, 1, 31}, {2, 1031}};
  return all;
}

TEST_P(ExecutorOps, Elementwise) {
  for (const ir::OpInfo& op : ir::all_ops()) {
    if (op.op_class != ir::OpClass::kElementwise || op.rule == ir::DTypeRule::kNone) continue;
    for (const DType dtype : types(op.rule))
      for (const Shape& shape : shapes()) {
        std::vector<Tensor> operands;
        for (std::uint32_t i = 0; i < op.max_operands; ++i)
          operands.push_back(draw(op.domain, dtype, shape));
        check(op.op, operands, {}, op.op == Op::pow ? 16 : 8);
      }
  }
}

TEST_P(ExecutorOps, ElementwiseOnSpecialValues) {
  const std::vector<double> special = {0, -0.0, 1, -1, kInf, -kInf, std::nan(""), 1e-30, 3e38};
  for (const ir::OpInfo& op : ir::all_ops()) {
    if (op.op_class != ir::OpClass::kElementwise || op.rule == ir::DTypeRule::kNone ||
        op.rule == ir::DTypeRule::kLogical || op.rule == ir::DTypeRule::kInteger)
      continue;
    if (op.op == Op::sin || op.op == Op::cos) continue;  // 3e38 has no sine worth comparing
    std::vector<double> a;
    std::vector<double> b;
    for (const double x : special)
      for (const double y : special) {
        a.push_back(x);
        b.push_back(y);
      }
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      std::vector<Tensor> operands{segfuse::testing::row(a, dtype)};
      if (op.max_operands == 2) operands.push_back(segfuse::testing::row(b, dtype));
      const auto found = run_everywhere(program(op.op, operands, {}), operands);
      const auto expected =
          ir::interpret(program(op.op, operands, {}), operands, {}, {.outputs_as_f64 = false});
      for (std::int64_t i = 0; i < found[0].size(); ++i) {
        const double tolerance = 16 * epsilon(dtype) * std::abs(expected[0].at(i)) + 1e-44;
        EXPECT_PRED3(segfuse::testing::near, found[0].at(i), expected[0].at(i), tolerance)
            << op.name << " of " << a[static_cast<std::size_t>(i)] << ", "
            << b[static_cast<std::size_t>(i)] << " in " << name_of(dtype);
      }
    }
  }
}

TEST_P(ExecutorOps, IntegersWrap) {
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    Tensor a(dtype, {3});
    Tensor b(dtype, {3});
    const std::int64_t low = dtype == DType::kI32 ? std::numeric_limits<std::int32_t>::min()
                                                  : std::numeric_limits<std::int64_t>::min();
    for (std::int64_t i = 0; i < 3; ++i) {
      if (dtype == DType::kI32)
        a.span<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(low + i);
      if (dtype == DType::kI64) a.span<std::int64_t>()[static_cast<std::size_t>(i)] = low + i;
      b.set(i, 3 + 2 * static_cast<double>(i));
    }
    for (const Op op : {Op::add, Op::sub, Op::mul}) check(op, {a, b}, {}, 0);
    for (const Op op : {Op::neg, Op::abs, Op::square}) check(op, {a}, {}, 0);
    for (const Op op : {Op::sum, Op::prod, Op::max, Op::min}) check(op, {a}, {Ints{0}}, 0);
  }
}

TEST_P(ExecutorOps, WhereAndCast) {
  using enum DType;
  const std::vector<DType> all = {kBool, kI32, kI64, kF16, kBF16, kF32, kF64};
  for (const Shape& shape : shapes())
    for (const DType from : all) {
      check(Op::where,
            {draw(ir::Domain::kAny, kBool, shape), draw(ir::Domain::kAny, from, shape),
             draw(ir::Domain::kAny, from, shape)},
            {}, 0);
      for (const DType to : all) {
        Tensor x = draw(ir::Domain::kAny, from, shape);
        check(Op::cast, {x}, {to}, 1);
      }
    }
  const Tensor wild = segfuse::testing::row({1e20, -1e20, std::nan(""), kInf, -2.9, 0.5}, kF32);
  for (const DType to : all) check(Op::cast, {wild}, {to}, 1);
}

// --- reductions

TEST_P(ExecutorOps, ReductionsOverEverySubsetOfAxes) {
  const std::vector<Shape> operands = {{},        {1},      {0},         {37},        {3, 0, 2},
                                       {5, 1, 9}, {300, 8}, {7, 33, 11}, {2, 3, 5, 3}};
  for (const Op op : {Op::sum, Op::prod, Op::max, Op::min, Op::welford, Op::logsumexp})
    for (const DType dtype :
         types(op == Op::welford || op == Op::logsumexp ? ir::DTypeRule::kFloat
                                                        : ir::DTypeRule::kNumeric))
      for (const Shape& shape : operands) {
        for (unsigned subset = 0; subset < 1U << shape.size(); ++subset) {
          Ints axes;
          for (std::size_t a = 0; a < shape.size(); ++a)
            if (subset >> a & 1) axes.push_back(static_cast<std::int64_t>(a));
          Tensor x = draw(ir::Domain::kNonZero, dtype, shape);
          const double n = static_cast<double>(std::max<std::int64_t>(x.size(), 1));
          if (op == Op::welford) x = draw(ir::Domain::kPositive, dtype, shape);
          check(op, {x}, {axes}, op == Op::prod ? 4 * n : 16 + n / 32);
        }
      }
}

TEST_P(ExecutorOps, Argmax) {
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64, DType::kI32, DType::kI64})
    for (const Shape& shape : {Shape{1}, Shape{37}, Shape{3, 5}, Shape{4, 1, 9001}})
      for (std::size_t a = 0; a < shape.size(); ++a)
        check(Op::argmax, {draw(ir::Domain::kAny, dtype, shape)},
              {Ints{static_cast<std::int64_t>(a)}}, 0);
}

TEST_P(ExecutorOps, ArgmaxOfLongColumns) {
  Tensor x = draw(ir::Domain::kAny, DType::kF32, {9001, 3});
  for (const std::int64_t row : {2, 5000, 9000}) x.set(3 * row + row % 3, 7);
  check(Op::argmax, {x}, {Ints{0}}, 0);
}

TEST_P(ExecutorOps, LongAndColumnReductions) {
  for (const Op op : {Op::sum, Op::max, Op::welford, Op::logsumexp})
    for (const DType dtype : {DType::kF32, DType::kF64})
      for (const Shape& shape :
           {Shape{40003}, Shape{2, 5001}, Shape{1021, 19}, Shape{2, 270, 530}}) {
        Ints last{static_cast<std::int64_t>(shape.size()) - 1};
        check(op, {draw(ir::Domain::kPositive, dtype, shape)}, {last}, 24);
        check(op, {draw(ir::Domain::kPositive, dtype, shape)}, {Ints{0}}, 24);
        Ints all;
        for (std::size_t a = 0; a < shape.size(); ++a) all.push_back(static_cast<std::int64_t>(a));
        check(op, {draw(ir::Domain::kPositive, dtype, shape)}, {all}, 24);
      }
}

TEST_P(ExecutorOps, ReductionsOfSpecialValues) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const std::int64_t n : {2, 70, 5000}) {
      std::vector<std::vector<double>> rows(5, std::vector<double>(static_cast<std::size_t>(n), 1));
      rows[0].assign(rows[0].size(), -kInf);
      rows[1].back() = kInf;
      rows[2].back() = std::nan("");
      rows[3].front() = std::nan("");
      rows[4].front() = -kInf;
      for (const Op op : {Op::sum, Op::prod, Op::max, Op::min, Op::logsumexp})
        for (const auto& row : rows) {
          const Tensor x = segfuse::testing::row(row, dtype);
          check(op, {x}, {Ints{0}}, 8);
          check(op, {x.reshaped({n, 1})}, {Ints{0}}, 8);
        }
    }
}

// --- movement

TEST_P(ExecutorOps, Movement) {
  using enum DType;
  const std::int64_t zero = 0;
  const std::int64_t one = 1;
  for (const DType dtype : {kBool, kI32, kI64, kF16, kBF16, kF32, kF64}) {
    const Tensor x = draw(ir::Domain::kAny, dtype, {3, 5, 7});
    Ints perm{0, 1, 2};
    do check(Op::permute, {x}, {perm}, 0);
    while (std::next_permutation(perm.begin(), perm.end()));
    check(Op::broadcast, {x}, {Ints{0, 2, 3}, sizes({3, 4, 5, 7})}, 0);
    check(Op::squeeze, {draw(ir::Domain::kAny, dtype, {1, 3, 1})}, {Ints{0, 2}}, 0);
    check(Op::reshape, {x}, {sizes({5, 21})}, 0);
    check(Op::slice, {x}, {sizes({1, 0, 2}), sizes({2, 5, 3})}, 0);
    check(Op::slice, {x}, {sizes({1, 5, 2}), sizes({2, 0, 3})}, 0);
    check(Op::pad, {x}, {sizes({1, 0, 2}), sizes({0, 3, 1}), 1.0}, 0);
    check(Op::concat, {x, draw(ir::Domain::kAny, dtype, {3, 0, 7}), x}, {one}, 0);
    for (const DType index : {kI32, kI64}) {
      Tensor indices(index, {2, 3});
      for (std::int64_t i = 0; i < 6; ++i) indices.set(i, static_cast<double>(rng_.below(3)));
      for (std::int64_t axis = 0; axis < 3; ++axis) check(Op::take, {x, indices}, {axis}, 0);
      Tensor each(index, {3, 4, 7});
      for (std::int64_t i = 0; i < each.size(); ++i)
        each.set(i, static_cast<double>(rng_.below(5)));
      check(Op::gather, {x, each}, {one}, 0);
      if (dtype != kBool)
        check(Op::scatter_add, {draw(ir::Domain::kAny, dtype, {4, 2, 3, 3}), indices},
              {one, sizes({5})}, 16);
    }
    check(Op::unfold, {x}, {one, std::int64_t{2}, one, std::int64_t{3}}, 0);
    if (dtype != kBool)
      check(Op::fold, {draw(ir::Domain::kAny, dtype, {2, 3, 2, 4})},
            {one, std::int64_t{2}, one, sizes({7})}, 8);
    check(Op::permute, {draw(ir::Domain::kAny, dtype, {70, 0})}, {Ints{1, 0}}, 0);
    check(Op::permute, {draw(ir::Domain::kAny, dtype, {131, 3, 67})}, {Ints{2, 1, 0}}, 0);
    check(Op::permute, {draw(ir::Domain::kAny, dtype, {67, 300})}, {Ints{1, 0}}, 0);
    if (dtype != kBool) check(Op::iota, {}, {sizes({300}), dtype}, 1);
    check(Op::constant, {}, {1.0, dtype}, 0);
  }
  check(Op::take, {draw(ir::Domain::kAny, kF32, {5}), Tensor(kI64, {0})}, {zero}, 0);
}

TEST_P(ExecutorOps, LargeScatterAndFold) {
  Tensor indices(DType::kI32, {500});
  for (std::int64_t i = 0; i < 500; ++i) indices.set(i, static_cast<double>(rng_.below(40)));
  check(Op::scatter_add, {draw(ir::Domain::kAny, DType::kF32, {500, 150}), indices},
        {std::int64_t{0}, sizes({40})}, 64);
  check(Op::fold, {draw(ir::Domain::kAny, DType::kF32, {2, 400, 5, 48})},
        {std::int64_t{1}, std::int64_t{1}, std::int64_t{3}, sizes({412})}, 16);
}

TEST_P(ExecutorOps, IndicesOutOfRangeAreRefused) {
  const Tensor x = draw(ir::Domain::kAny, DType::kF32, {3, 2});
  const Tensor indices = segfuse::testing::row({0, 3}, DType::kI64);
  const std::int64_t axis = 0;
  const auto taking = program(Op::take, {x, indices}, {axis});
  EXPECT_THROW(Executable(taking, one_, {.backend = GetParam()}).run(std::vector{x, indices}),
               UsageError);
  const Tensor y = draw(ir::Domain::kAny, DType::kF32, {2, 2});
  const auto adding = program(Op::scatter_add, {y, indices}, {axis, sizes({3})});
  EXPECT_THROW(Executable(adding, one_, {.backend = GetParam()}).run(std::vector{y, indices}),
               UsageError);
  const Tensor negative = segfuse::testing::row({0, -1}, DType::kI64);
  EXPECT_THROW(Executable(taking, one_, {.backend = GetParam()}).run(std::vector{x, negative}),
               UsageError);
}

TEST_P(ExecutorOps, RandomNumbersAreThoseOfTheInterpreter) {
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{7, 13}, Shape{5, 4001}}) {
    Tensor seed(DType::kI64, {2});
    seed.span<std::int64_t>()[0] = (std::int64_t{1} << 60) + 17;
    seed.span<std::int64_t>()[1] = 5;
    check(Op::random_uniform, {seed}, {sizes(shape), std::int64_t{3}}, 0);
  }
}

// --- library calls

TEST_P(ExecutorOps, Matmul) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64})
    for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {3, 5, 7}, {0, 3, 2}, {4, 0, 3}, {33, 1, 31}, {129, 65, 17}, {1, 40, 9}})
      for (const std::int64_t ta : {0, 1})
        for (const std::int64_t tb : {0, 1}) {
          const Shape a = ta ? Shape{k, m} : Shape{m, k};
          const Shape b = tb ? Shape{n, k} : Shape{k, n};
          auto batched = [](Shape shape) {
            shape.insert(shape.begin(), {2, 3});
            return shape;
          };
          const double factor = 4 + static_cast<double>(k);
          check(Op::matmul, {draw(ir::Domain::kAny, dtype, a), draw(ir::Domain::kAny, dtype, b)},
                {ta, tb}, factor);
          check(Op::matmul,
                {draw(ir::Domain::kAny, dtype, batched(a)), draw(ir::Domain::kAny, dtype, b)},
                {ta, tb}, factor);
          check(Op::matmul,
                {draw(ir::Domain::kAny, dtype, batched(a)),
                 draw(ir::Domain::kAny, dtype, batched(b))},
                {ta, tb}, factor);
        }
}

// --- along a line

TEST_P(ExecutorOps, RunningResults) {
  for (const Op op :
       {Op::cumsum, Op::cumprod, Op::cummax, Op::cummin, Op::cumlogsumexp, Op::linear_scan})
    for (const DType dtype :
         types(op == Op::cumlogsumexp || op == Op::linear_scan ? ir::DTypeRule::kFloat
                                                               : ir::DTypeRule::kNumeric))
      for (const Shape& shape : {Shape{1}, Shape{0}, Shape{2000}, Shape{3, 7, 5}, Shape{4, 0, 3}})
        for (std::size_t axis = 0; axis < shape.size(); ++axis)
          for (const std::int64_t reverse : {0, 1}) {
            std::vector<Tensor> operands{draw(ir::Domain::kAny, dtype, shape)};
            if (op == Op::linear_scan) operands.push_back(draw(ir::Domain::kAny, dtype, shape));
            check(op, operands, {static_cast<std::int64_t>(axis), reverse},
                  8 + static_cast<double>(shape[axis]));
          }
}

TEST_P(ExecutorOps, RunningResultsKeepNaNAndInfinities) {
  const Tensor x = segfuse::testing::row({1, kInf, 2, -kInf, std::nan(""), 3}, DType::kF32);
  const Tensor low = segfuse::testing::row({-kInf, -kInf, 1, 2, -kInf}, DType::kF64);
  const std::int64_t along = 0;
  for (const Op op : {Op::cumsum, Op::cumprod, Op::cummax, Op::cummin, Op::cumlogsumexp})
    for (const std::int64_t reverse : {0, 1}) {
      check(op, {x}, {along, reverse}, 8);
      check(op, {low}, {along, reverse}, 8);
    }
}

/// Wide and narrow numbers, many that are equal, 0 and -0, extremes, and NaN.
Tensor to_sort(Tensor x, std::int64_t variant) {
  const bool of_floats = is_float(x.dtype());
  const bool narrow = x.dtype() == DType::kI32 || x.dtype() == DType::kF16;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double wide = of_floats ? 1 : (narrow ? 0x1p29 : 0x1p51);
    x.set(i, variant == 0 ? std::trunc(4 * x.at(i)) : std::trunc(wide * x.at(i)));
    if (of_floats && variant == 1) x.set(i, x.at(i) * (i % 2 == 0 ? 1e-4 : 1e4));
    if (i % 11 == 5 && of_floats) x.set(i, i % 2 == 0 ? kInf : -kInf);
    if (i % 7 == 3 && of_floats) x.set(i, std::nan(""));
  }
  return x;
}

TEST_P(ExecutorOps, SortIsStableWithNaNLast) {
  for (const DType dtype : types(ir::DTypeRule::kNumeric))
    for (const Shape& shape :
         {Shape{1}, Shape{0}, Shape{2}, Shape{64}, Shape{65}, Shape{70000}, Shape{3, 17, 5},
          Shape{4, 0, 3}, Shape{5, 90, 37}, Shape{3, 20, 16}, Shape{300, 3}})
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        for (const std::int64_t descending : {0, 1})
          for (const std::int64_t variant : {0, 1})
            check(Op::sort, {to_sort(draw(ir::Domain::kAny, dtype, shape), variant)},
                  {static_cast<std::int64_t>(axis), descending}, 0);
}

INSTANTIATE_TEST_SUITE_P(On, ExecutorOps, ::testing::Values("loops", "compiled"),
                         [](const auto& instance) {
                           return instance.param == "loops" ? "Loops" : "Compiled";
                         });

/// Numbers at, just below and just above the middle between two neighbouring halves.
TEST(Casts, ToHalvesRoundOnce) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    std::vector<double> numbers;
    std::vector<double> expected;
    const std::uint16_t infinity = half == DType::kF16 ? 0x7C00 : 0x7F80;
    const auto value = [&](int bits) {
      const auto b = static_cast<std::uint16_t>(bits);
      return static_cast<double>(half == DType::kF16 ? half_to_float(b) : bfloat16_to_float(b));
    };
    for (int bits = 0; bits + 1 < infinity; bits += half == DType::kF16 ? 1 : 7) {
      const double low = value(bits);
      const double high = value(bits + 1);
      const double middle = low + (high - low) / 2;  // exact
      numbers.insert(numbers.end(),
                     {middle, std::nextafter(middle, 0), std::nextafter(middle, kInf)});
      expected.insert(expected.end(), {bits % 2 == 0 ? low : high, low, high});
      numbers.push_back(-numbers.back());
      expected.push_back(-expected.back());
    }
    for (const double one : {1e300, -1e300, kInf, 1e-300, 0.0}) {
      numbers.push_back(one);
      expected.push_back(std::fabs(one) > 1 ? std::copysign(kInf, one) : std::copysign(0.0, one));
    }
    ir::Fusion fusion;
    ir::Builder b(fusion);
    const auto count = static_cast<std::int64_t>(numbers.size());
    const ValId x = fusion.add_input("x", DType::kF64, {count});
    const ValId one = fusion.add_input("one", DType::kF64, {});
    const ValId i = fusion.add_input("i", DType::kI64, {2});
    fusion.add_output(b.cast(x, half));
    fusion.add_output(b.cast(one, half));
    fusion.add_output(b.cast(i, half));
    // Just above the middle of two bf16, which f32 cannot tell from the middle; a middle of two
    // f16.
    const std::int64_t big = half == DType::kF16 ? 2049 : (std::int64_t{1} << 33) + (1 << 25) + 1;
    const double above = half == DType::kF16 ? 2048 : 0x1p33 + 0x1p26;
    const std::vector<Tensor> inputs{Tensor::from(std::span<const double>(numbers), {count}),
                                     Tensor::full(DType::kF64, {}, 2049 + 1e-12),
                                     Tensor::from(std::vector<std::int64_t>{big, -big}, {2})};
    for (const char* const backend : {"compiled", "loops", "reference"}) {
      ThreadPool pool(2);
      const auto found = Executable(fusion, pool, {.backend = backend}).run(inputs);
      for (std::int64_t at = 0; at < count; ++at)
        ASSERT_EQ(found[0].at(at), expected[static_cast<std::size_t>(at)])
            << numbers[static_cast<std::size_t>(at)] << " on " << backend;
      EXPECT_EQ(found[1].at(0), half == DType::kF16 ? 2050 : 2048) << backend;
      EXPECT_EQ(found[2].at(0), above) << backend;
      EXPECT_EQ(found[2].at(1), -above) << backend;
    }
    EXPECT_TRUE(std::isnan(Tensor::full(half, {1}, std::nan("")).at(0)));
  }
}

}  // namespace
}  // namespace segfuse::engine
