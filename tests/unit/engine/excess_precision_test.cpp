// With excess precision a program of 16-bit values gives the bits of the same program in f32 whose
// inputs are widened and whose outputs are rounded; without, each operation rounds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/executable.h"
#include "ir/builder.h"
#include "segfuse/program.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Builder;
using ir::ValId;
using segfuse::testing::same_bits;

struct Case {
  std::string name;
  std::function<ValId(Builder&, ValId x, ValId row)> build;  ///< from [N, C] and [C]
};

std::vector<Case> cases() {
  return {
      {"chain",
       [](Builder& b, ValId x, ValId row) {
         const ValId y = b.mul(b.add(x, row), b.constant_like(0.75, x));
         return b.sub(b.exp(b.mul(y, b.constant_like(0.125, x))), b.tanh(y));
       }},
      {"norm_by_hand",
       [](Builder& b, ValId x, ValId row) {
         const ValId mean = b.mean(b.square(x), {1}, true);
         return b.mul(b.mul(x, b.rsqrt(b.add(mean, b.constant_like(0.5, x)))), row);
       }},
      {"moments",
       [](Builder& b, ValId x, ValId) {
         const Builder::Moments m = b.welford(b.mul(x, x), {1}, true);
         return b.div(b.sub(x, m.mean), b.add(m.m2, b.constant_like(1, x)));
       }},
      {"softmax_by_hand",
       [](Builder& b, ValId x, ValId row) {
         const ValId y = b.mul(x, row);
         return b.sub(y, b.logsumexp(y, {1}, true));
       }},
      {"columns", [](Builder& b, ValId x, ValId row) { return b.sum(b.mul(x, row), {0}); }},
      {"padded", [](Builder& b, ValId x,
                    ValId row) { return b.pad_axis(b.mul(b.square(x), row), 1, 1, 2, 0.25); }},
      {"joined",
       [](Builder& b, ValId x, ValId row) {
         // What is computed before a concatenation is stored, so it is rounded.
         return b.mul(b.square(b.concat({x, x}, 0)), row);
       }},
      {"chosen",
       [](Builder& b, ValId x, ValId row) {
         const ValId y = b.mul(x, row);
         return b.where(b.gt(y, x), b.square(y), x);
       }},
      {"turned",
       [](Builder& b, ValId x, ValId row) {
         return b.mul(b.permute(b.mul(x, row), {1, 0}), b.constant_like(1.5, x));
       }},
  };
}

struct Kind {
  Case of;
  DType dtype;
};
class ExcessPrecision : public ::testing::TestWithParam<Kind> {};
std::vector<Kind> all_numbers() {
  std::vector<Kind> all;
  for (const Case& c : cases())
    for (const DType dtype : {DType::kBF16, DType::kF16}) all.push_back({c, dtype});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Of, ExcessPrecision, ::testing::ValuesIn(all_numbers()),
                         [](const auto& suite) {
                           return suite.param.of.name + "_" +
                                  std::string(name_of(suite.param.dtype));
                         });

/// `wide`: in f32 from the inputs to the output.
ir::Fusion program(const Kind& n, bool wide) {
  ir::Fusion f(n.of.name);
  Builder b(f);
  const ir::Extent rows = f.symbol("N"), columns = f.symbol("C");
  ValId x = f.add_input("x", n.dtype, {rows, columns});
  ValId row = f.add_input("row", n.dtype, {columns});
  if (wide) {
    x = b.cast(x, DType::kF32);
    row = b.cast(row, DType::kF32);
  }
  f.add_output(b.cast(n.of.build(b, x, row), n.dtype), "y");
  return f;
}

TEST_P(ExcessPrecision, GivesTheBitsOfTheProgramInF32) {
  ThreadPool pool(2);
  Rng rng(4);
  int rounded_otherwise = 0;
  for (const std::int64_t columns : {1, 3, 16, 39, 257}) {
    const std::vector<Tensor> inputs{
        segfuse::testing::uniform(rng, GetParam().dtype, {37, columns}),
        segfuse::testing::uniform(rng, GetParam().dtype, {columns})};
    const auto run = [&](bool wide, bool excess) {
      Executable executable(program(GetParam(), wide), pool, {.excess_precision = excess});
      return executable.run(inputs)[0];
    };
    const Tensor in_f32 = run(true, false);
    EXPECT_TRUE(same_bits(run(false, true), in_f32)) << columns << " columns";
    rounded_otherwise += !same_bits(run(false, false), in_f32);
  }
  EXPECT_GT(rounded_otherwise, 0);
}

/// A cast that the program asks for rounds all the same.
TEST(ExcessPrecisionOf, CastsIsNone) {
  const Program rounded = Program::from_text(R"(fusion "casts" {
  symbols N
  %0 = input "x" : f32[N]
  %1 = cast(%0) {dtype=bf16} : bf16[N]
  %2 = cast(%1) {dtype=f32} : f32[N]
  output %2
})");
  const Tensor x = segfuse::testing::row({1.001, 2.0078125, -3.1}, DType::kF32);
  const std::vector<Tensor> found = rounded.run(std::vector{x}, {.excess_precision = true});
  EXPECT_EQ(segfuse::testing::values(found[0]), (std::vector<double>{1, 2.0, -3.09375}));
}

TEST(ExcessPrecisionOf, AProgramThatHasRunIsThatOfTheNextRun) {
  if (std::string reason; cpu_compiler_name(&reason).empty()) GTEST_SKIP() << reason;
  const auto fresh = [] {
    return Program::from_text(R"(fusion "m" {
  symbols N
  %0 = input "x" : bf16[N]
  %1 = square(%0) : bf16[N]
  %2 = square(%1) : bf16[N]
  output %2
})");
  };
  Rng rng(6);
  const std::vector inputs{segfuse::testing::uniform(rng, DType::kBF16, {100})};
  const auto run = [&](const Program& program, bool excess) {
    return program.run(inputs, {.excess_precision = excess, .backend = "compiled"})[0];
  };
  const Tensor rounded = run(fresh(), false);
  const Tensor unrounded = run(fresh(), true);
  ASSERT_FALSE(same_bits(rounded, unrounded));
  const Program program = fresh();
  for (const bool excess : {false, true, false})
    EXPECT_TRUE(same_bits(run(program, excess), excess ? unrounded : rounded)) << excess;
}

TEST(ExcessPrecisionOf, WhatIsEmittedIsWhatRuns) {
  const Program program = Program::from_text(R"(fusion "m" {
  symbols N
  %0 = input "x" : bf16[N]
  %1 = square(%0) : bf16[N]
  %2 = tanh(%1) : bf16[N]
  output %2
})");
  const auto roundings = [&](bool excess) {
    const std::string text = program.emit("cuda", {.excess_precision = excess});
    int count = 0;
    for (std::size_t at = text.find("= round_bf16("); at != std::string::npos;
         at = text.find("= round_bf16(", at + 1))
      ++count;
    return count;
  };
  EXPECT_GT(roundings(true), 0);
  EXPECT_EQ(roundings(false), 2 * roundings(true));  // of the square, too
}

}  // namespace
}  // namespace segfuse::engine
