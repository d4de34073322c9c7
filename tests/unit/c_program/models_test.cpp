// Programs in C mean what the interpreter says, whatever they are made of.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "engine/compiled/emit.h"
#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "support/c/c_program.h"
#include "support/error_bounds.h"
#include "support/random/random_fusion.h"
#include "support/slow_build.h"
#include "support/tensors.h"
#include "unit/compiler/segment_models.h"

namespace segfuse {
namespace {

using compiler::Model;
using ir::Extent;
using ir::ValId;
using testing::Numbers;
using Sizes = std::map<std::string, std::int64_t>;

void expect_equal(const ir::Fusion& fusion, const std::vector<Tensor>& found,
                  std::span<const Tensor> inputs, double tolerance) {
  const std::vector<Tensor> expected = ir::interpret(fusion, inputs);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t o = 0; o < found.size(); ++o) {
    ASSERT_EQ(to_string(found[o].shape()), to_string(expected[o].shape()));
    for (std::int64_t i = 0; i < found[o].size(); ++i)
      ASSERT_PRED3(testing::near, found[o].at(i), expected[o].at(i), tolerance)
          << "output " << o << " element " << i << "\n"
          << ir::print(fusion);
  }
}

/// Of f64, where the interpreter rounds as much.
void expect_within_bounds(const ir::Fusion& fusion, const std::vector<Tensor>& found,
                          std::span<const Tensor> inputs) {
  const std::vector<testing::Bounded> expected = testing::bounded_outputs(fusion, inputs);
  for (std::size_t o = 0; o < expected.size(); ++o)
    for (std::int64_t i = 0; i < found[o].size(); ++i)
      ASSERT_TRUE(found[o].at(i) == expected[o].value.at(i) ||
                  (std::isnan(found[o].at(i)) && std::isnan(expected[o].value.at(i))) ||
                  std::abs(found[o].at(i) - expected[o].value.at(i)) <= 2 * expected[o].bound.at(i))
          << "output " << o << " element " << i << ": " << found[o].at(i) << ", expected "
          << expected[o].value.at(i) << " within " << 2 * expected[o].bound.at(i) << "\n"
          << ir::print(fusion);
}

std::vector<Tensor> inputs_for(const ir::Fusion& fusion, const Sizes& sizes, std::uint64_t seed) {
  Rng rng(seed, 5);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    const ir::Val& val = fusion.val(input.val);
    Shape shape;
    for (const Extent& extent : val.shape)
      shape.push_back(extent.evaluate(
          [&](ir::SymbolId id) { return sizes.at(fusion.storage().symbols[id.index].name); }));
    Tensor tensor = testing::uniform(rng, val.dtype, shape);
    for (std::int64_t i = 0; i < tensor.size() && !is_float(val.dtype); ++i)
      tensor.set(i, static_cast<double>(rng.below(2)));
    inputs.push_back(tensor);
  }
  return inputs;
}

void check(const ir::Fusion& fusion, const std::vector<Sizes>& all, double tolerance) {
  const auto program = engine::print_program(fusion, {});
  for (const char* flags : {"-O2 -pedantic -Wall -Wextra -Wshadow -Werror", "-O1 -DSF_SCALAR"}) {
    const test::CProgramLibrary library(program, flags);
    for (const Sizes& sizes : all) {
      const std::vector<Tensor> inputs = inputs_for(fusion, sizes, 3);
      expect_equal(fusion, test::run_c_program(library, fusion, sizes, inputs), inputs, tolerance);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

/// SEGFUSE_RANDOM_PROGRAMS: how many of each kind.
std::uint64_t random_count() {
  const char* count = std::getenv("SEGFUSE_RANDOM_PROGRAMS");
  return count != nullptr ? std::strtoull(count, nullptr, 10) : ::segfuse::testing::cases(12);
}

TEST(CPrograms, RandomOnesAgreeWithTheInterpreter) {
  for (std::uint64_t i = 0; i < 2 * random_count(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(9000 + i));
    const bool exact = i % 2 == 0;
    const testing::RandomFusion random =
        testing::random_fusion(9000 + i, exact ? Numbers::kExact : Numbers::kSmooth);
    const test::CProgramLibrary library(engine::print_program(random.fusion, {}), "-O0");
    for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {0, 4}, {3, 37}}) {
      const std::vector<Tensor> inputs = testing::random_inputs(random, i, b, t);
      const auto found =
          test::run_c_program(library, random.fusion,
                              {{"B", b}, {"T", t}, {"TLess", t - 1}, {"TTwice", 2 * t}}, inputs);
      if (exact) {
        expect_equal(random.fusion, found, inputs, 0);
      } else {
        expect_within_bounds(random.fusion, found, inputs);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CPrograms, NormsWithGradients) {
  Model m;
  const ValId y = compiler::layer_norm_layer(m);
  m.output(y, "y");
  m.backward(y);
  check(m.fusion,
        {{{"B", 3}, {"T", 7}, {"C", 65}},
         {{"B", 1}, {"T", 1}, {"C", 1}},
         {{"B", 0}, {"T", 4}, {"C", 8}}},
        2e-4);
}

TEST(CPrograms, BatchNormOfHalves) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), m.size("C")}, DType::kBF16);
  const ValId wide = m.b.cast(x, DType::kF32);
  const auto moments = m.b.welford(wide, {0});
  const ValId centred = m.b.sub(wide, m.b.broadcast(moments.mean, {1}, {m.size("N"), m.size("C")}));
  m.output(m.b.cast(m.b.tanh(centred), DType::kF16), "y");
  m.output(moments.m2, "spread");
  check(m.fusion, {{{"N", 40}, {"C", 19}}, {{"N", 1}, {"C", 3}}}, 2e-3);
}

TEST(CPrograms, AttentionByPlainProducts) {
  Model m;
  const auto shape = ir::Extents{m.size("B"), m.size("T"), 24};
  const ValId q = m.parameter("q", shape);
  const ValId k = m.parameter("k", shape);
  const ValId v = m.parameter("v", shape);
  const ValId y = m.b.matmul(m.b.softmax(m.b.matmul(q, k, false, true), -1), v);
  m.output(y, "y");
  m.backward(y);
  check(m.fusion, {{{"B", 2}, {"T", 9}}, {{"B", 1}, {"T", 1}}, {{"B", 2}, {"T", 0}}}, 1e-4);
}

TEST(CPrograms, ProductsOfHalvesWithOneMatrix) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Model m;
    const ValId x = m.input("x", {m.size("B"), 5, m.size("T")}, dtype);
    m.output(m.b.matmul(x, m.input("w", {m.size("T"), 3}, dtype), false, false));
    check(m.fusion, {{{"B", 2}, {"T", 33}}}, dtype == DType::kF16 ? 2e-2 : 1e-1);
  }
}

TEST(CPrograms, EmbeddingsAndConvolutionsWithGradients) {
  Model m;
  const ValId table = m.parameter("table", {11, 6});
  const ValId tokens = m.input("tokens", {m.size("B"), m.size("T")}, DType::kI32);
  const ValId x = m.b.take(table, tokens, 0);
  const ValId windows = m.b.unfold(m.b.pad_axis(x, 1, Extent(1), Extent(1)), 1, 3, 1, 1);
  const ValId y = m.b.tanh(m.b.sum(windows, {2}));
  m.output(y, "y");
  m.backward(y);
  check(m.fusion, {{{"B", 2}, {"T", 9}}, {{"B", 1}, {"T", 3}}}, 1e-5);
}

/// Outputs over inputs, twice, as inputs, and as other shapes of them.
TEST(CPrograms, OutputsOfEveryKind) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), 4});
  const ValId state = m.input("state", {m.size("N"), 4});
  const ValId other = m.input("other", {m.size("N"), 4});
  const ValId next = m.b.add(m.b.mul(state, m.b.constant(0.5)), x);
  const ValId turned = m.b.reshape(x, {m.size("N") * Extent(4)});
  m.output(next, "next");
  m.output(x, "same");
  m.output(turned, "flat");
  m.output(m.b.reshape(state, {4, m.size("N")}), "former");
  const ValId wave = m.b.sin(other);
  m.output(wave, "wave");
  m.output(wave, "again");
  m.output(m.b.reshape(wave, {m.size("N") * Extent(4)}), "flat wave");
  m.output(m.b.sum(m.b.reshape(wave, {m.size("N") * Extent(4)}), {0}), "");
  const ValId last = m.b.cos(next);
  m.output(last, "last");
  m.fusion.add_alias(next, state);
  m.fusion.add_alias(last, other);
  check(m.fusion, {{{"N", 10}}, {{"N", 0}}}, 1e-6);
}

TEST(CPrograms, ConstantsIotaRandomNumbersAndWholeOnes) {
  Model m;
  const ValId seed = m.input("seed", {2}, DType::kI64);
  const ValId drawn = m.b.random_uniform(seed, {m.size("N"), 3});
  m.output(m.b.neg(m.input("x", {m.size("N")})), "negative");
  m.output(drawn, "drawn");
  m.output(m.b.iota(m.size("N"), DType::kI32), "counting");
  m.output(m.b.broadcast_to(m.b.constant(2.5), {m.size("N")}), "constant");
  m.output(m.b.extent(m.size("N") * Extent(3)), "size");
  m.output(m.b.argmax(drawn, 1), "best");
  m.output(m.b.lt(drawn, m.b.constant_like(0.5, drawn)), "low");
  check(m.fusion, {{{"N", 21}}, {{"N", 1}}}, 0);
}

TEST(CPrograms, NamesThatCHasForItself) {
  Model m;
  m.fusion.set_name("main");
  const ValId x = m.input("int", {m.size("double")});
  const ValId y = m.input("n", {m.size("double")});
  m.output(m.b.add(x, y), "status");
  m.output(m.b.mul(x, m.input("a b\n*/", {m.size("double")})), "int");
  check(m.fusion, {{{"double_2", 5}, {"double", 5}}}, 1e-6);
}

}  // namespace
}  // namespace segfuse
