// C kernels mean what loop IR means.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "compiler/codegen/cpu/print_c.h"
#include "support/c/c_kernels.h"
#include "support/random/group_runner.h"
#include "support/random/random_fusion.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

struct Named {
  const char* name;
  Schedule schedule;
};

std::vector<Named> schedules() {
  Schedule plain;
  Schedule small;
  small.tile = 40;
  small.cross = 3;
  small.rows = 2;
  small.unroll = 2;
  Schedule held = plain;
  held.hold = Hold::kScratch;
  held.row = 4096;
  Schedule split = small;
  split.split = 33;
  Schedule staged = small;
  staged.staged = true;
  Schedule across = small;
  across.lanes = 0;
  Schedule turned = across;
  turned.hold = Hold::kScratch;
  Schedule down = staged;
  down.lanes = 0;
  down.hold = Hold::kScratch;
  down.split = 33;
  return {{"plain", plain},   {"small", small},   {"held", held},     {"split", split},
          {"staged", staged}, {"across", across}, {"turned", turned}, {"down", down}};
}

void check(const ir::Fusion& fusion, std::span<const Tensor> inputs, const std::string& what,
           test::CKernels& kernels, const std::vector<Named>& under) {
  ir::Fusion copy = fusion;
  run_passes(copy, {.verify = true});
  const SegmentedFusion cut = segment(std::move(copy));
  for (const Named& named : under) {
    SCOPED_TRACE(what + " under " + named.name);
    testing::run_groups(
        cut, inputs, [&](const Space&) { return named.schedule; }, {},
        [&](const loop::Kernel& kernel, std::span<Tensor> globals,
            const test::CKernels::Size& size) { return kernels.compare(kernel, globals, size); });
    if (::testing::Test::HasFailure()) return;
  }
}

std::vector<Tensor> inputs_of(const ir::Fusion& fusion,
                              const std::map<std::string, std::int64_t>& sizes) {
  Rng rng(7);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    Shape shape;
    for (const Extent& extent : fusion.val(input.val).shape)
      shape.push_back(fusion.canonical(extent).evaluate(
          [&](ir::SymbolId symbol) { return sizes.at(fusion.to_string(Extent(symbol))); }));
    Tensor tensor(fusion.val(input.val).dtype, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, rng.normal());
    inputs.push_back(tensor);
  }
  return inputs;
}

struct NormCase {
  std::string name;
  Layer layer;
};
void PrintTo(const NormCase& c, std::ostream* out) { *out << c.name; }

std::vector<NormCase> norms() {
  return {{"softmax_last", [](Model& m) { return softmax_layer(m, 2); }},
          {"softmax_middle", [](Model& m) { return softmax_layer(m, 1); }},
          {"softmax_first", [](Model& m) { return softmax_layer(m, 0); }},
          {"layer_norm", layer_norm_layer},
          {"rms_norm", rms_norm_layer},
          {"batch_norm_first",
           [](Model& m) {
             return batch_norm_layer(m, {m.size("N"), m.size("C"), m.size("H"), m.size("W")}, 1);
           }},
          {"batch_norm_last", [](Model& m) {
             return batch_norm_layer(m, {m.size("N"), m.size("H"), m.size("W"), m.size("C")}, 3);
           }}};
}

class Norm : public ::testing::TestWithParam<NormCase> {};

TEST_P(Norm, KernelsInCAreWithinRounding) {
  test::CKernels kernels;
  for (const bool gradients : {false, true}) {
    Model m;
    const ValId y = GetParam().layer(m);
    m.output(y);
    if (gradients) m.backward(y);
    for (const std::int64_t n : {1, 5, 33, 100}) {
      const std::map<std::string, std::int64_t> sizes{{"N", 3},     {"C", n}, {"H", 2},
                                                      {"W", n + 2}, {"B", 2}, {"T", n}};
      check(m.fusion, inputs_of(m.fusion, sizes),
            fmt::format("{} of {}{}", GetParam().name, n, gradients ? " with gradients" : ""),
            kernels, schedules());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(kernels.compiled(), 2);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Norm, ::testing::ValuesIn(norms()),
                         [](const auto& one) { return one.param.name; });

class Random : public ::testing::TestWithParam<testing::Numbers> {};

TEST_P(Random, KernelsInCAreWithinRounding) {
  test::CKernels kernels;
  for (int seed = 1; seed <= 40; ++seed) {
    const testing::RandomFusion program =
        testing::random_fusion(static_cast<std::uint64_t>(seed), GetParam());
    const auto inputs = testing::random_inputs(program, static_cast<std::uint64_t>(seed),
                                               1 + seed % 5, 4 + seed % 37);
    const std::vector<Named> all = schedules();
    check(program.fusion, inputs, "seed " + std::to_string(seed), kernels,
          {all[static_cast<std::size_t>(seed) % all.size()]});
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Random,
                         ::testing::Values(testing::Numbers::kSmooth, testing::Numbers::kExact),
                         [](const auto& one) {
                           return one.param == testing::Numbers::kSmooth ? "Smooth" : "Exact";
                         });

}  // namespace
}  // namespace segfuse::compiler
