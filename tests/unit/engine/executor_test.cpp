// Whole programs: views, fusion over broadcasts, aliases, memory, checks of numbers, library calls.

#include "engine/executable.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "engine/exec/semicrf_ops.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/bad_indices.h"
#include "support/message_of.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Builder;
using ir::Extent;
using ir::Extents;
using ir::Fusion;
using ir::ValId;
using segfuse::testing::counting;
using segfuse::testing::expect_values;
using segfuse::testing::row;
using segfuse::testing::same_bits;
using segfuse::testing::scalar;
using segfuse::testing::uniform;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Executor against interpreter, each element within tolerance * max(1, |expected|).
void compare(const Fusion& fusion, const std::vector<Tensor>& inputs, double tolerance) {
  ThreadPool one(1);
  ThreadPool three(3);
  const auto expected = ir::interpret(fusion, inputs, reference_opaque_ops());
  const auto separate =
      Executable(fusion, one, {.backend = "loops", .check_numerics = true}).run(inputs);
  for (const std::string backend : {"loops", "compiled"}) {
    const auto found = Executable(fusion, one, {.backend = backend, .poison = true}).run(inputs);
    const auto threaded = Executable(fusion, three, {.backend = backend}).run(inputs);
    for (std::size_t o = 0; o < found.size(); ++o) {
      ASSERT_EQ(found[o].shape(), expected[o].shape());
      EXPECT_TRUE(same_bits(found[o], threaded[o])) << "threads change output " << o;
      if (backend == "loops") {
        EXPECT_TRUE(same_bits(found[o], separate[o])) << "fusing changes output " << o;
      }
      for (std::int64_t i = 0; i < found[o].size(); ++i)
        ASSERT_PRED3(segfuse::testing::near, found[o].at(i), expected[o].at(i), tolerance)
            << "output " << o << " element " << i;
    }
  }
}

TEST(Views, OfNothingAreOneRun) {
  const std::pair<Shape, Shape> sizes[] = {{{300, 0}, {0}}, {{0, 7}, {0}}, {{4, 0, 3}, {3, 0, 2}}};
  for (const auto& [from, to] : sizes) {
    Fusion fusion;
    Builder b(fusion);
    Extents shape(from.begin(), from.end());
    Extents after(to.begin(), to.end());
    std::vector<std::int64_t> turned(shape.size());
    for (std::size_t i = 0; i < turned.size(); ++i)
      turned[i] = static_cast<std::int64_t>(turned.size() - 1 - i);
    const ValId x = fusion.add_input("x", DType::kF32, shape);
    fusion.add_output(b.sin(b.reshape(b.permute(x, turned), after)));
    compare(fusion, {Tensor(DType::kF32, from)}, 0);
    // The same sizes by name.
    Fusion named;
    Builder c(named);
    shape.back() = Extent(named.symbol("B"));
    const ValId y = named.add_input("x", DType::kF32, shape);
    Extent all = 1;
    for (const Extent& extent : shape) all = all * extent;
    named.add_output(c.sin(c.reshape(c.permute(y, turned), {all})));
    compare(named, {Tensor(DType::kF32, from)}, 0);
  }
}

// --- pointwise groups over every kind of operand

class Broadcasts : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Broadcasts, OneGroupWithRowsColumnsScalarsAndTransposes) {
  const std::int64_t width = GetParam();
  Rng rng(3);
  Fusion fusion;
  Builder b(fusion);
  const ValId full = fusion.add_input("full", DType::kF32, {3, 5, width});
  const ValId last = fusion.add_input("last", DType::kF32, {width});
  const ValId middle = fusion.add_input("middle", DType::kF32, {3, 5, 1});
  const ValId first = fusion.add_input("first", DType::kF32, {3, 1, 1});
  const ValId turned = fusion.add_input("turned", DType::kF32, {width, 5, 3});
  const ValId mask = fusion.add_input("mask", DType::kBool, {3, 5, 1});
  ValId x = b.add(b.mul(full, last), middle);
  x = b.sub(b.tanh(x), first);
  x = b.where(mask, x, b.permute(turned, {2, 1, 0}));
  fusion.add_output(b.sigmoid(x));
  fusion.add_output(b.gt(x, b.constant(0.1)));
  fusion.add_output(b.add(b.slice_axis(full, 1, 2, 3), b.slice_axis(full, 1, 0, 3)));
  std::vector<Tensor> inputs;
  for (const Shape& shape :
       {Shape{3, 5, width}, Shape{width}, Shape{3, 5, 1}, Shape{3, 1, 1}, Shape{width, 5, 3}})
    inputs.push_back(uniform(rng, DType::kF32, shape));
  inputs.push_back(Tensor::zeros(DType::kBool, {3, 5, 1}));
  for (std::int64_t i = 0; i < 15; ++i) inputs.back().set(i, static_cast<double>(rng.below(2)));
  compare(fusion, inputs, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Widths, Broadcasts,
                         ::testing::Values(0, 1, 7, 127, 128, 129, 255, 1024, 1025, 3001));

TEST(Executor, ViewsOfViews) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {4, 6, 5});
  ValId v = b.permute(x, {2, 0, 1});                                     // 5 4 6
  v = b.slice(v, {1, 0, 2}, {3, 4, 3});                                  // 3 4 3
  v = b.broadcast(v, {0, 2, 3}, {3, 2, 4, 3});                           // 3 2 4 3
  v = b.unfold(v, 2, 2, 1, 2);                                           // 3 2 2 2 3
  const ValId merged = b.reshape(v, {3, 2, 4, 3});                       // needs a copy
  const ValId split = b.reshape(b.permute(x, {1, 0, 2}), {2, 3, 4, 5});  // needs none
  fusion.add_output(v);
  fusion.add_output(merged);
  fusion.add_output(b.exp(split));
  fusion.add_output(b.sum(split, {0, 2}));
  fusion.add_output(b.matmul(b.permute(x, {0, 2, 1}), x));
  fusion.add_output(b.matmul(b.permute(x, {1, 0, 2}), b.full(0.5, {5, 3})));
  fusion.add_output(
      b.matmul(b.broadcast(b.slice_axis(x, 0, 1, 1), {0, 1, 2}, {1, 6, 5}), b.full(0.5, {5, 3})));
  Rng rng(4);
  compare(fusion, {uniform(rng, DType::kF32, {4, 6, 5})}, 1e-5);
}

TEST(Executor, GroupsDoNotCrossTheirOwnReduction) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {9, 33});
  const ValId e = b.exp(x);
  const ValId normal = b.div(e, b.sum(e, {-1}, true));  // diamond around the sum
  fusion.add_output(b.mul(normal, b.add(e, x)));
  fusion.add_output(e);
  Rng rng(5);
  compare(fusion, {uniform(rng, DType::kF32, {9, 33})}, 1e-5);
}

TEST(Executor, DropoutKeepsItsShareAndItsBits) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {50, 301});
  const ValId seed = fusion.add_input("seed", DType::kI64, {2});
  fusion.add_output(b.dropout(x, seed, 0.25));
  const std::vector<Tensor> inputs{Tensor::full(DType::kF32, {50, 301}, 3),
                                   row({11, 12}, DType::kI64)};
  compare(fusion, inputs, 1e-6);
  ThreadPool pool(1);
  const Tensor out = Executable(fusion, pool).run(inputs)[0];
  double kept = 0;
  for (const double value : segfuse::testing::values(out)) kept += value != 0;
  EXPECT_NEAR(kept / static_cast<double>(out.size()), 0.75, 0.02);
}

TEST(Executor, HalvesAreRoundedAtEachValue) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Fusion fusion;
    Builder b(fusion);
    const ValId x = fusion.add_input("x", dtype, {3, 40});
    const ValId y = b.mul(b.add(x, b.constant(0.1, dtype)), x);
    fusion.add_output(y);
    fusion.add_output(x);
    fusion.add_output(b.cast(b.sum(y, {1}), DType::kF32));
    Rng rng(6);
    const std::vector<Tensor> inputs{uniform(rng, dtype, {3, 40})};
    ThreadPool pool(1);
    const auto found = Executable(fusion, pool, {.poison = true}).run(inputs);
    const auto expected =
        ir::interpret(fusion, inputs, {}, {.outputs_as_f64 = false, .round_to_dtype = true});
    for (std::size_t o = 0; o < 2; ++o) EXPECT_TRUE(same_bits(found[o], expected[o])) << o;
    expect_values(found[2], segfuse::testing::values(expected[2]), 0.02);
  }
}

// --- inputs, outputs, memory

TEST(Executor, AliasesAreWrittenAfterAllReads) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {3});
  const ValId y = fusion.add_input("y", DType::kF32, {3});
  const ValId sum = b.add(x, y);
  fusion.add_output(sum);  // x becomes x + y
  fusion.add_output(x);    // y becomes the old x
  fusion.add_output(b.mul(x, x));
  fusion.add_alias(sum, x);
  fusion.add_alias(x, y);
  ThreadPool pool(1);
  Executable executable(fusion, pool);
  const std::vector<Tensor> inputs{row({1, 2, 3}, DType::kF32), row({10, 20, 30}, DType::kF32)};
  const auto out = executable.run(inputs);
  expect_values(inputs[0], {11, 22, 33});
  expect_values(inputs[1], {1, 2, 3});
  expect_values(out[1], {1, 2, 3});
  expect_values(out[2], {1, 4, 9});
  EXPECT_FALSE(out[0].shares_storage_with(inputs[0]));
  EXPECT_FALSE(out[1].shares_storage_with(inputs[0]));
}

struct Overwriting {
  const char* name;
  std::function<void(Builder&, ValId z, ValId x, ValId row)> outputs;
  Shape shape = {9, 70};
};

std::vector<Overwriting> overwriting_programs() {
  const auto give = [](Builder& b, ValId output, ValId over = {}) {
    b.fusion().add_output(output);
    if (over.valid()) b.fusion().add_alias(output, over);
  };
  return {
      {"in the same pass",
       [&](Builder& b, ValId z, ValId x, ValId) {
         give(b, b.sin(z), x);
         give(b, b.add(z, x));
       }},
      {"exchanged",
       [&](Builder& b, ValId z, ValId x, ValId) {
         const ValId sum = b.add(z, x);
         give(b, b.sin(z), x);
         give(b, b.cos(x), z);
         give(b, sum);
       }},
      {"in a later pass",
       [&](Builder& b, ValId z, ValId x, ValId) {
         give(b, b.sin(z), x);
         give(b, b.add(z, x));
         give(b, b.div(x, b.sum(x, {1}, true)));
       }},
      {"of a row, in the pass after its sum",
       [&](Builder& b, ValId z, ValId, ValId row) {
         const ValId sum = b.sum(z, {1});
         give(b, b.sin(sum), row);
         give(b, b.mul(z, b.unsqueeze(b.mul(sum, row), 1)));
       }},
      {"one after another",
       [&](Builder& b, ValId z, ValId x, ValId) {
         const ValId y = b.fusion().add_input("y", DType::kF32, b.val(x).shape);
         give(b, b.sin(z), x);
         give(b, b.add(x, z), y);
         give(b, b.mul(y, b.sum(z, {1}, true)));
       }},
      {"of rows in parts",
       [&](Builder& b, ValId z, ValId x, ValId) {
         give(b, b.mul(z, b.sum(z, {1}, true)), x);
         give(b, b.add(z, x));
       },
       {2, 1 << 17}},
      {"shifted by a row",
       [&](Builder& b, ValId z, ValId x, ValId) {
         give(b,
              b.concat({b.slice_axis(z, 0, 0, 1), b.slice_axis(x, 0, 0, b.val(x).shape[0] - 1)}, 0),
              x);
       }},
      {"beside its neighbours",
       [&](Builder& b, ValId z, ValId x, ValId) {
         const ValId left = b.concat({b.slice_axis(z, 1, 0, 1), b.slice_axis(x, 1, 0, 69)}, 1);
         give(b, b.add(x, left), x);
         give(b, b.mul(z, left));
       }},
      {"rolled",
       [&](Builder& b, ValId, ValId x, ValId) {
         give(b,
              b.concat({b.slice_axis(x, 0, b.val(x).shape[0] - 1, 1),
                        b.slice_axis(x, 0, 0, b.val(x).shape[0] - 1)},
                       0),
              x);
       }},
      {"in halves, exchanged",
       [&](Builder& b, ValId, ValId x, ValId) {
         give(b, b.concat({b.slice_axis(x, 1, 35, 35), b.slice_axis(x, 1, 0, 35)}, 1), x);
       }},
      {"of computed and shifted rows",
       [&](Builder& b, ValId z, ValId x, ValId) {
         const ValId first = b.exp(b.slice_axis(z, 0, 0, 1));
         give(b, b.concat({first, b.slice_axis(x, 0, 0, b.val(x).shape[0] - 1)}, 0), x);
       }},
      {"of a row, beside it",
       [&](Builder& b, ValId z, ValId, ValId row) {
         const ValId sum = b.sum(z, {1});
         give(b, b.sin(sum), row);
         give(b, b.mul(sum, row));
       }},
  };
}

/// What another output of the same kernel still reads, in the same pass over a row or in a later
/// one, is not overwritten before.
TEST(Executor, NoOutputOfAKernelReadsWhatAnotherHasOverwritten) {
  for (const Overwriting& what : overwriting_programs()) {
    for (const char* const backend : {"compiled", "loops", "reference"}) {
      Fusion fusion;
      Builder b(fusion);
      const Extent rows(fusion.symbol("T"));
      const Extent columns(what.shape[1]);
      const ValId z = fusion.add_input("z", DType::kF32, {rows, columns});
      const ValId x = fusion.add_input("x", DType::kF32, {rows, columns});
      const ValId row = fusion.add_input("row", DType::kF32, {rows});
      what.outputs(b, z, x, row);
      ThreadPool pool(2);
      Rng rng(11);
      std::vector<Tensor> inputs;
      for (const ir::Input& input : fusion.inputs())
        inputs.push_back(
            uniform(rng, DType::kF32, input.val == row ? Shape{what.shape[0]} : what.shape));
      const std::vector<Tensor> expected = ir::interpret(fusion, inputs);
      std::vector<Tensor> given;
      for (const Tensor& input : inputs) given.push_back(input.clone());
      const auto found = Executable(fusion, pool, {.backend = backend}).run(given);
      for (std::size_t i = 0; i < found.size(); ++i)
        for (std::int64_t at = 0; at < found[i].size(); ++at)
          ASSERT_NEAR(found[i].at(at), expected[i].at(at),
                      1e-4 * (1 + std::abs(expected[i].at(at))))
              << what.name << " on " << backend << ", output " << i;
    }
  }
}

/// Library calls read halves as f32; whole numbers, so that all results are exact.
TEST(Executor, AHalfThatALibraryCallReadsTwiceStaysAHalf) {
  const auto two = [](Builder& b, ValId x, int call) {
    switch (call) {
      case 0: return b.matmul(x, x);
      case 1: return b.matmul(x, x, true, false);
      case 2: return b.matmul(x, b.reshape(x, {2, 5, 5}));
      default: return b.make(ir::Op::linear_scan, {x, x}, {std::int64_t{1}, std::int64_t{0}});
    }
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32})
    for (const char* const backend : {"compiled", "loops", "reference"})
      for (int call = 0; call < 4; ++call) {
        Fusion fusion;
        Builder b(fusion);
        const ValId x = fusion.add_input("x", dtype, {2, 5, 5});
        fusion.add_output(b.add(x, two(b, x, call)));
        const ValId made = b.sub(x, b.constant_like(1, x));
        fusion.add_output(b.mul(made, two(b, made, call)));
        Tensor numbers(dtype, {2, 5, 5});
        Rng rng(3);
        for (std::int64_t i = 0; i < numbers.size(); ++i)
          numbers.set(i, static_cast<double>(rng.below(3)));
        const std::vector<Tensor> expected = ir::interpret(fusion, {&numbers, 1});
        ThreadPool pool(2);
        const auto found = Executable(fusion, pool, {.backend = backend}).run({&numbers, 1});
        for (std::size_t o = 0; o < 2; ++o)
          for (std::int64_t i = 0; i < numbers.size(); ++i)
            ASSERT_EQ(found[o].at(i), expected[o].at(i))
                << call << " on " << backend << ", " << name_of(dtype) << ", output " << o;
      }
}

TEST(Executor, OutputsAreFreshAlsoWhenTheyAreInputsViewsOrGivenTwice) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {2, 2});
  const ValId y = b.neg(x);
  for (const ValId v : {x, y, y, b.permute(y, {1, 0}), b.reshape(x, {4})}) fusion.add_output(v);
  fusion.add_output(b.constant(2.5));
  ThreadPool pool(1);
  Executable executable(fusion, pool);
  const std::vector<Tensor> inputs{counting({2, 2}, DType::kF32)};
  const auto first = executable.run(inputs);
  const auto second = executable.run(std::vector{Tensor::zeros(DType::kF32, {2, 2})});
  expect_values(first[0], {0, 1, 2, 3});  // not touched by the second run
  expect_values(first[1], {0, -1, -2, -3});
  expect_values(first[2], {0, -1, -2, -3});
  expect_values(first[3], {0, -2, -1, -3});
  expect_values(first[4], {0, 1, 2, 3});
  expect_values(first[5], {2.5});
  EXPECT_FALSE(first[1].shares_storage_with(first[2]));
  expect_values(second[1], {0, 0, 0, 0});
}

TEST(Executor, InputsAreChecked) {
  Fusion fusion;
  const Extent n(fusion.symbol("N"));
  const ValId x = fusion.add_input("x", DType::kF32, {n});
  const ValId y = fusion.add_input("y", DType::kF32, {n});
  Builder b(fusion);
  fusion.add_output(b.add(x, y));
  ThreadPool pool(1);
  Executable executable(fusion, pool);
  const Tensor two = row({1, 2}, DType::kF32);
  expect_values(executable.run(std::vector{two, two})[0], {2, 4});
  EXPECT_THROW(executable.run(std::vector{two}), UsageError);
  EXPECT_THROW(executable.run(std::vector{two, row({1, 2, 3}, DType::kF32)}), UsageError);
  EXPECT_THROW(executable.run(std::vector{two, row({1, 2})}), UsageError);  // known shapes, f64
}

TEST(Executor, MemoryIsReusedAndDoesNotGrow) {
  Fusion fusion;
  Builder b(fusion);
  const Extent n(fusion.symbol("N"));
  ValId x = fusion.add_input("x", DType::kF32, {n, 64});
  const ValId w = fusion.add_input("w", DType::kF32, {64, 64});
  for (int layer = 0; layer < 50; ++layer) x = b.tanh(b.matmul(x, w));
  fusion.add_output(x);
  Rng rng(7);
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.poison = true});
  auto run = [&](std::int64_t rows) {
    (void)executable.run(
        std::vector{uniform(rng, DType::kF32, {rows, 64}), uniform(rng, DType::kF32, {64, 64})});
    return executable.workspace_bytes();
  };
  const std::size_t large = run(1000);
  EXPECT_LE(large, 3U * 1000 * 64 * 4);  // not fifty layers
  EXPECT_EQ(run(10), large);
  EXPECT_EQ(run(1000), large);
}

// --- numbers

TEST(Executor, CheckNumericsNamesTheFirstBadElement) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {2, 3});
  fusion.add_output(b.exp(b.log(b.square(b.add(x, b.constant(1.0))))));
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.check_numerics = true});
  const Tensor good = counting({2, 3}, DType::kF32);
  EXPECT_NO_THROW(executable.run(std::vector{good}));
  Tensor zero = good.clone();
  zero.set(4, -1);
  try {
    executable.run(std::vector{zero});
    FAIL() << "log(0) was not found";
  } catch (const DataError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr("log gave -inf at element [1, 1]"), HasSubstr("f32[2, 3]"),
              HasSubstr("operands were finite (0 there)"), HasSubstr("the logarithm of zero")));
  }
  Tensor bad = good.clone();
  bad.set(2, std::nan(""));
  try {
    executable.run(std::vector{bad});
    FAIL() << "NaN was not found";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("add gave nan at element [0, 2]"),
                                    HasSubstr("operands were not all finite (nan, 1 there)")));
  }
}

/// Looking changes no bit, and aliased inputs are overwritten once.
TEST(Executor, CheckNumericsChangesNothing) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {64, 65});
  const ValId state = fusion.add_input("state", DType::kF32, {64});
  const ValId next = b.add(state, b.logsumexp(b.tanh(x), {1}));
  fusion.add_output(next);
  fusion.add_alias(next, state);
  ThreadPool pool(2);
  Rng rng(3);
  const Tensor input = uniform(rng, DType::kF32, {64, 65});
  for (const char* const backend : {"compiled", "loops", "reference"}) {
    Tensor plain = Tensor::full(DType::kF32, {64}, 0.5);
    Tensor checked = plain.clone();
    Executable without(fusion, pool, {.backend = backend});
    Executable with(fusion, pool, {.backend = backend, .check_numerics = true});
    for (int step = 0; step < 3; ++step) {
      (void)without.run(std::vector{input, plain});
      (void)with.run(std::vector{input, checked});
      EXPECT_TRUE(same_bits(plain, checked)) << backend << " step " << step;
    }
    EXPECT_GT(plain.at(0), 3 * 4);
  }
}

TEST(Executor, CheckNumericsLetsInfinitiesOfInputsPass) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {2});
  fusion.add_output(b.logsumexp(b.add(x, b.constant(1.0)), {0}));
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.check_numerics = true});
  expect_values(executable.run(std::vector{row({-kInf, 1}, DType::kF32)})[0], {2}, 1e-6);
}

TEST(Executor, SoftmaxOverEveryAxisAndManySizes) {
  Rng rng(8);
  for (const std::int64_t n : {1, 31, 32, 33, 1000, 50257, 152064})
    for (std::int64_t axis = 0; axis < 3; ++axis) {
      Shape shape{2, 3, 2};
      shape[static_cast<std::size_t>(axis)] = n;
      Fusion fusion;
      Builder b(fusion);
      const ValId x = fusion.add_input("x", DType::kF32, Extents(shape.begin(), shape.end()));
      fusion.add_output(b.log_softmax(x, axis));
      fusion.add_output(b.sum(b.softmax(x, axis), {axis}));
      compare(fusion, {uniform(rng, DType::kF32, shape, -30, 30)}, 1e-5);
    }
}

TEST(Executor, SoftmaxOfSpecialRows) {
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {4, 3});
  fusion.add_output(b.softmax(x, -1));
  Tensor rows(DType::kF32, {4, 3});
  const double values[] = {-kInf, -kInf, -kInf, 5, 5, 5, -kInf, 0, 0, 1, std::nan(""), 1};
  for (std::int64_t i = 0; i < 12; ++i) rows.set(i, values[i]);
  ThreadPool pool(1);
  const double nan = std::nan("");
  expect_values(Executable(fusion, pool).run(std::vector{rows})[0],
                {nan, nan, nan, 1 / 3.0, 1 / 3.0, 1 / 3.0, 0, 0.5, 0.5, nan, nan, nan}, 1e-6);
}

TEST(Executor, LayerNormOfLargeMeanAndSmallDeviation) {
  constexpr std::int64_t kColumns = 512;
  Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF32, {8, kColumns});
  const Builder::Moments moments = b.welford(x, {-1});
  fusion.add_output(moments.mean);
  fusion.add_output(moments.m2);
  fusion.add_output(b.layer_norm(x, b.full(1, {kColumns}), b.full(0, {kColumns})));
  Rng rng(9);
  Tensor input(DType::kF32, {8, kColumns});
  for (std::int64_t i = 0; i < input.size(); ++i) input.set(i, 1e4 + 1e-2 * rng.normal());
  ThreadPool pool(2);
  const auto found = Executable(fusion, pool).run(std::vector{input});
  const auto expected = ir::interpret(fusion, std::vector{input});
  // The mean is right to the last bit of 1e4, the variance to single precision; so what is left of
  // the normed value's error is that of the mean's rounding over the deviation.
  for (std::int64_t r = 0; r < 8; ++r) {
    EXPECT_NEAR(found[0].at(r), expected[0].at(r), 0x1p-11);
    EXPECT_NEAR(found[1].at(r), expected[1].at(r), 1e-5 * expected[1].at(r));
  }
  for (std::int64_t i = 0; i < input.size(); ++i)
    ASSERT_NEAR(found[2].at(i), expected[2].at(i), 0x1p-11 / 1e-2 + 1e-3);
}

TEST(Executor, VarianceOfNoneAndOne) {
  for (const std::int64_t n : {0, 1}) {
    Fusion fusion;
    Builder b(fusion);
    const ValId x = fusion.add_input("x", DType::kF32, {2, n});
    const Builder::Moments moments = b.welford(x, {1});
    fusion.add_output(moments.mean);
    fusion.add_output(moments.m2);
    compare(fusion, {Tensor::full(DType::kF32, {2, n}, 7)}, 0);
  }
}

// --- semi-Markov CRF

struct Crf {
  Fusion fusion;
  std::vector<Tensor> inputs;
};

Crf crf(DType dtype, bool boundaries) {
  constexpr std::int64_t kB = 3, kT = 12, kC = 4, kK = 5;
  Crf result;
  Rng rng(10);
  Builder b(result.fusion);
  std::vector<ValId> ids;
  auto add = [&](Tensor tensor) {
    ids.push_back(result.fusion.add_input("x" + std::to_string(ids.size()), tensor.dtype(),
                                          Extents(tensor.shape().begin(), tensor.shape().end())));
    result.inputs.push_back(std::move(tensor));
  };
  for (const Shape& shape :
       {Shape{kB, kT, kC}, Shape{1, kC, kC}, Shape{kK, kC}, Shape{kC}, Shape{kC}})
    add(uniform(rng, dtype, shape));
  for (int i = 0; i < (boundaries ? 2 : 0); ++i) add(uniform(rng, dtype, {kB, kT, kC}));
  add(row({12, 0, 7}, DType::kI64));
  Tensor labels = Tensor::zeros(DType::kI32, {kB, kT});
  Tensor starts = Tensor::zeros(DType::kBool, {kB, kT});
  for (std::int64_t i = 0; i < kB * kT; ++i) {
    labels.set(i, static_cast<double>(i / 3 % kC));
    starts.set(i, i % 3 == 0);
  }
  add(labels);
  add(starts);
  result.fusion.add_output(b.make(ir::Op::semicrf_loss, ids));
  ids.push_back(b.full(0.7, {kB}, dtype));
  const auto gradients = b.make_all(ir::Op::semicrf_loss_grad, ids);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (i != 2) result.fusion.add_output(gradients[i]);  // one is not wanted
  return result;
}

TEST(Executor, SemicrfAgreesWithTheReference) {
  for (const bool boundaries : {false, true}) {
    Crf single = crf(DType::kF32, boundaries);
    compare(single.fusion, single.inputs, 1e-5);
    Crf twice = crf(DType::kF64, boundaries);
    compare(twice.fusion, twice.inputs, 1e-10);
  }
}

TEST(Executor, NamesTheFirstIndexOutOfRange) {
  ThreadPool pool(2);
  for (const std::string backend : {"loops", "compiled"})
    for (const auto& [name, text, inputs, message] : segfuse::testing::bad_indices()) {
      SCOPED_TRACE(backend + ": " + name);
      Executable executable(ir::parse(text), pool, {.backend = backend});
      EXPECT_THAT(segfuse::test::message_of([&] { executable.run(inputs); }), HasSubstr(message));
    }
}

/// What was read is not what the input holds after the run.
TEST(Executor, NamesNoIndexOfAnInputThatIsOverwritten) {
  Fusion fusion = ir::parse(R"(fusion "f" {
  symbols N, M
  %0 = input "x" : f32[N]
  %1 = input "i" : i64[M]
  %2 = take(%0, %1) {axis=0}
  %3 = add(%1, %1)
  output %2
  output %3
})");
  fusion.add_alias(fusion.outputs()[1].val, fusion.inputs()[1].val);
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.backend = "compiled"});
  const std::vector<Tensor> inputs = {Tensor::full(DType::kF32, {3}, 1), row({7}, DType::kI64)};
  EXPECT_EQ(segfuse::test::message_of([&] { executable.run(inputs); }),
            "take: index along axis 0 is out of range");
}

TEST(Executor, SemicrfRefusesALabelChangeWithoutAStart) {
  Crf program = crf(DType::kF32, false);
  program.inputs[6].set(4, 3);
  ThreadPool pool(1);
  Executable executable(program.fusion, pool);
  EXPECT_THROW(executable.run(program.inputs), DataError);
}

}  // namespace
}  // namespace segfuse::engine
