// Random programs: executor against interpreter, on poisoned memory, with several numbers of
// threads, with sizes that change between runs of one Executable.

#include "support/random/random_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/executable.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "support/error_bounds.h"
#include "support/random/random_runs.h"
#include "support/slow_build.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using segfuse::testing::Bounded;
using segfuse::testing::difference;
using segfuse::testing::Evaluator;
using segfuse::testing::fault_of;
using segfuse::testing::Numbers;
using segfuse::testing::RandomFusion;
using segfuse::testing::shrunk;

/// Runs a program by itself, on the CPU.
Evaluator alone(const std::string& backend) {
  return [backend](const ir::Fusion& fusion, const std::vector<Tensor>& inputs) {
    ThreadPool pool(1);
    return Executable(fusion, pool, {.backend = backend, .poison = true}).run(inputs);
  };
}

/// For a program whose runs of several sizes have to be right one after the other.
void run_seed(std::uint64_t seed, Numbers numbers, const std::string& backend) {
  const RandomFusion program = segfuse::testing::random_fusion(seed, numbers);
  ir::verify(program.fusion);
  ThreadPool one(1);
  ThreadPool two(2);
  Executable executable(program.fusion, one, {.backend = backend, .poison = true});
  Executable threaded(program.fusion, two, {.backend = backend});
  for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {1, 7}, {0, 4}, {2, 5}}) {
    const std::vector<Tensor> inputs = segfuse::testing::random_inputs(program, seed, b, t);
    const std::string fault = fault_of(program.fusion, numbers, inputs, alone(backend));
    ASSERT_EQ(fault, "") << "B = " << b << ", T = " << t << ": "
                         << shrunk(program.fusion, numbers, inputs, alone(backend));
    const std::vector<Tensor> found = executable.run(inputs);
    ASSERT_EQ(difference(program.fusion, numbers, inputs, found), "") << ir::print(program.fusion);
    const std::vector<Tensor> again = threaded.run(inputs);
    for (std::size_t o = 0; o < found.size(); ++o)
      EXPECT_TRUE(segfuse::testing::same_bits(found[o], again[o])) << "output " << o;
  }
}

void check(std::uint64_t seed, Numbers numbers, const std::string& backend) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  ASSERT_NO_THROW(run_seed(seed, numbers, backend));
}

/// SEGFUSE_RANDOM_FUSIONS: how many of each kind (thousands in the long test).
std::uint64_t compiled_count() {
  const char* count = std::getenv("SEGFUSE_RANDOM_FUSIONS");
  return count != nullptr ? std::strtoull(count, nullptr, 10) : ::segfuse::testing::cases(60);
}

TEST(RandomFusions, CompiledOnesAgreeWithTheInterpreter) {
  for (std::uint64_t i = 0; i < compiled_count() && !HasFatalFailure(); ++i) {
    check(5000 + i, Numbers::kSmooth, "compiled");
    check(5000 + i, Numbers::kSmooth32, "compiled");
    check(5000 + i, Numbers::kExact, "compiled");
  }
}

/// Outputs are what they are without aliases, and the inputs that they overwrite hold them.
void run_overwriting(std::uint64_t seed, Numbers numbers, const std::string& backend) {
  const RandomFusion program = segfuse::testing::with_overwritten_inputs(
      segfuse::testing::random_fusion(seed, numbers), seed);
  ir::verify(program.fusion);
  ThreadPool pool(2);
  Executable executable(program.fusion, pool, {.backend = backend, .poison = true});
  for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {1, 7}, {0, 4}}) {
    const std::vector<Tensor> inputs = segfuse::testing::random_inputs(program, seed, b, t);
    std::vector<Tensor> given;
    for (const Tensor& input : inputs) given.push_back(input.clone());
    const std::vector<Tensor> found = executable.run(given);
    ASSERT_EQ(difference(program.fusion, numbers, inputs, found), "") << ir::print(program.fusion);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensor expected = inputs[i];
      for (const ir::Alias& alias : program.fusion.aliases())
        for (std::size_t o = 0; o < found.size(); ++o)
          if (alias.input == program.fusion.inputs()[i].val &&
              alias.output == program.fusion.outputs()[o].val)
            expected = found[o];
      ASSERT_TRUE(segfuse::testing::same_bits(given[i], expected))
          << "input " << i << " of " << ir::print(program.fusion);
    }
  }
}

TEST(RandomFusions, OutputsMayOverwriteInputs) {
  for (std::uint64_t i = 0; i < compiled_count() && !HasFatalFailure(); ++i)
    for (const Numbers numbers : {Numbers::kSmooth, Numbers::kSmooth32, Numbers::kExact})
      for (const char* backend : {"compiled", "loops", "reference"}) {
        SCOPED_TRACE(fmt::format("seed {} on {}", 7000 + i, backend));
        ASSERT_NO_THROW(run_overwriting(7000 + i, numbers, backend));
      }
}

/// A program with one wrong operation is cut down to that operation.
TEST(RandomFusions, FaultsAreShrunk) {
  const RandomFusion program = segfuse::testing::random_fusion(5000, Numbers::kSmooth32);
  ir::Fusion wrong = program.fusion;
  const ir::ValId huge = wrong.constant(1e30, DType::kF32);
  // Not an error of the compiler, but beyond any bound: f32 has no 1e60.
  const ir::ExprId square = wrong.add_expr(ir::Op::square, {huge});
  const ir::ExprId after = wrong.add_expr(ir::Op::tanh, {wrong.result(square)});
  wrong.add_output(wrong.result(after));
  const std::vector<Tensor> inputs = segfuse::testing::random_inputs(program, 5000, 2, 5);
  ir::Fusion twice = wrong;
  twice.add_output(twice.result(square));
  EXPECT_NE(fault_of(twice, Numbers::kSmooth32, inputs, alone("compiled")), "");
  const std::string found = shrunk(twice, Numbers::kSmooth32, inputs, alone("compiled"));
  EXPECT_THAT(found, ::testing::HasSubstr("inf is not 1.0"));
  EXPECT_THAT(found, ::testing::HasSubstr("square("));
  EXPECT_THAT(found, ::testing::Not(::testing::HasSubstr("tanh(")));
}

/// Bounds that hold because they are infinite would find nothing.
TEST(RandomFusions, BoundsAreNarrow) {
  std::int64_t all = 0;
  std::int64_t narrow = 0;
  for (std::uint64_t seed = 5000; seed < 5060; ++seed) {
    const RandomFusion program = segfuse::testing::random_fusion(seed, Numbers::kSmooth32);
    const std::vector<Tensor> inputs = segfuse::testing::random_inputs(program, seed, 2, 5);
    for (const Bounded& output : segfuse::testing::bounded_outputs(program.fusion, inputs))
      for (std::int64_t i = 0; i < output.value.size(); ++i, ++all)
        narrow += output.bound.at(i) <= 1e-4 * std::max(1.0, std::abs(output.value.at(i)));
  }
  EXPECT_GT(all, 1000);
  EXPECT_GT(static_cast<double>(narrow), 0.9 * static_cast<double>(all));
}

TEST(RandomFusions, SmoothOnesAgreeWithTheInterpreter) {
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(250) && !HasFatalFailure(); ++seed)
    check(seed, Numbers::kSmooth, "loops");
}

TEST(RandomFusions, ExactOnesAgreeBitForBit) {
  for (std::uint64_t seed = 1000;
       seed < 1000 + ::segfuse::testing::cases(250) && !HasFatalFailure(); ++seed)
    check(seed, Numbers::kExact, "loops");
}

/// What random programs have found. With B = 0 the axes that a result lacks are empty.
void check_text(const char* text) {
  const ir::Fusion fusion = ir::parse(text, "text");
  for (const char* const backend : {"compiled", "loops"}) {
    for (const std::int64_t b : {0, 3}) {
      ThreadPool pool(2);
      Executable executable(fusion, pool, {.backend = backend, .poison = true});
      std::vector<Tensor> inputs;
      for (const ir::Input& input : fusion.inputs()) {
        Shape shape;
        for (const ir::Extent& size : fusion.val(input.val).shape)
          shape.push_back(size.evaluate([&](ir::SymbolId) { return b; }));
        inputs.push_back(segfuse::testing::counting(shape, DType::kF32));
      }
      const std::vector<Tensor> expected = ir::interpret(fusion, inputs);
      const std::vector<Tensor> found = executable.run(inputs);
      for (std::size_t o = 0; o < found.size(); ++o)
        segfuse::testing::expect_values(found[o], segfuse::testing::values(expected[o]), 0);
    }
  }
}

TEST(EmptyAxes, ResultsThatLackThemAreComputed) {
  check_text(R"(fusion "beside a sum" {
    symbols B
    %0 = input "x" : f32[B, 5, 3]
    %1 = input "row" : f32[3]
    %2 = square(%1)
    %3 = sum(%0) {axes=[0, 1, 2]}
    output %2
    output %3
  })");
  check_text(R"(fusion "and needs it" {
    symbols B
    %0 = input "x" : f32[B, 5, 3]
    %1 = input "row" : f32[3]
    %2 = sum(%0) {axes=[0, 1, 2]}
    %3 = broadcast(%2) {axes=[], shape=[3]}
    %4 = add(%1, %3)
    output %4
    output %2
  })");
  check_text(R"(fusion "beside rows and columns" {
    symbols B
    %0 = input "x" : f32[B, 5, 3]
    %1 = input "row" : f32[3]
    %2 = min(%1) {axes=[0]}
    %3 = sum(%0) {axes=[2]}
    %4 = sum(%0) {axes=[1]}
    %5 = abs(%1)
    output %2
    output %3
    output %4
    output %5
  })");
}

TEST(EmptyAxes, AreMultiplied) {
  check_text(R"(fusion "turned" {
    symbols B
    %0 = input "x" : f32[B, 5, 3]
    %1 = permute(%0) {perm=[2, 0, 1]}
    %2 = matmul(%1, %1) {transpose_a=1, transpose_b=0}
    output %2
  })");
}

TEST(Aliases, AnOutputThatIsAViewOfAnOverwrittenInputHasItsFormerContent) {
  check_text(R"(fusion "former" {
    symbols B
    %0 = input "state" : f32[B, 4]
    %1 = reshape(%0) {shape=[4, B]}
    %2 = square(%0)
    output %2 "next"
    output %1 "former"
    alias %2 -> %0
  })");
}

}  // namespace
}  // namespace segfuse::engine
