// Kernels mean what their groups mean, whatever the schedule.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "support/random/group_runner.h"
#include "support/random/random_fusion.h"
#include "support/slow_build.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

struct Named {
  const char* name;
  Schedule schedule;
};

/// Sizes small enough that every tail, part and chunk is there.
std::vector<Named> schedules() {
  Schedule plain;
  Schedule small;
  small.tile = 3;
  small.cross = 2;
  small.rows = 2;
  Schedule held = small;
  held.hold = Hold::kScratch;
  held.row = 4096;
  Schedule loaded = held;
  loaded.target = Target::kCuda;
  Schedule split = small;
  split.split = 2;
  Schedule staged = small;
  staged.staged = true;
  Schedule both = split;
  both.staged = true;
  Schedule across = small;  // lanes along the first axis, where it is not the innermost
  across.lanes = 0;
  Schedule turned = held;
  turned.lanes = 0;
  Schedule beside = turned;
  beside.lanes = 1;
  Schedule down = both;
  down.lanes = 0;
  down.hold = Hold::kScratch;
  Schedule joined = split;  // in two steps; columns' states in memory
  joined.target = Target::kCuda;
  joined.joined = 2;
  Schedule shared = joined;  // they are shared
  shared.row = 4096;
  return {{"plain", plain},   {"small", small},   {"held", held},     {"loaded", loaded},
          {"split", split},   {"staged", staged}, {"both", both},     {"across", across},
          {"turned", turned}, {"beside", beside}, {"joined", joined}, {"shared", shared},
          {"down", down}};
}

bool near(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t o = 0; o < got.size(); ++o) {
    ASSERT_EQ(got[o].shape(), want[o].shape()) << what;
    for (std::int64_t i = 0; i < got[o].size(); ++i)
      ASSERT_TRUE(near(got[o].at(i), want[o].at(i)))
          << what << ": output " << o << " element " << i << ": " << got[o].at(i) << ", expected "
          << want[o].at(i);
  }
}

void check(const ir::Fusion& fusion, std::span<const Tensor> inputs, const std::string& what) {
  const std::vector<Tensor> want = interpret(fusion, inputs);
  ir::Fusion copy = fusion;
  run_passes(copy, {.verify = true});
  const SegmentedFusion cut = segment(std::move(copy));
  for (const Named& named : schedules()) {
    std::string kernels;
    const auto got = testing::run_groups(
        cut, inputs, [&](const Space&) { return named.schedule; },
        [&](const Space&, const LoweredGroup& group) {
          for (const GroupKernel& kernel : group.kernels) kernels += loop::print(kernel.kernel);
        });
    expect_same(got, want, what + " under " + named.name);
    if (::testing::Test::HasFatalFailure()) {
      std::printf("%s\n%s\n", ir::print(cut.fusion()).c_str(), kernels.c_str());
      return;
    }
  }
}

class Random : public ::testing::TestWithParam<testing::Numbers> {};

TEST_P(Random, ProgramsMeanTheSameAsKernels) {
  const int count = static_cast<int>(::segfuse::testing::cases(150));
  for (int seed = 1; seed <= count; ++seed) {
    const testing::RandomFusion program =
        testing::random_fusion(static_cast<std::uint64_t>(seed), GetParam());
    const auto inputs = testing::random_inputs(program, static_cast<std::uint64_t>(seed),
                                               1 + seed % 3, 4 + seed % 5);
    ASSERT_NO_THROW(check(program.fusion, inputs, "seed " + std::to_string(seed)))
        << "seed " << seed;
    if (HasFatalFailure()) return;
    if (seed % 3 != 0) continue;
    const auto none = testing::random_inputs(program, static_cast<std::uint64_t>(seed), 0, 5);
    check(program.fusion, none, "seed " + std::to_string(seed) + " of no rows");
    if (HasFatalFailure()) return;
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

class Norm : public ::testing::TestWithParam<NormCase> {};

TEST_P(Norm, ForwardAndBackward) {
  for (const bool gradients : {false, true}) {
    Model m;
    const ValId y = GetParam().layer(m);
    m.output(y);
    if (gradients) m.backward(y);
    for (const std::int64_t n : {0, 1, 2, 5}) {
      const std::map<std::string, std::int64_t> sizes{{"N", n},     {"C", n + 1}, {"H", 4},
                                                      {"W", n + 2}, {"B", n},     {"T", 3}};
      check(m.fusion, inputs_of(m.fusion, sizes),
            fmt::format("{} of {}{}", GetParam().name, n, gradients ? " with gradients" : ""));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lower, Norm,
    ::testing::Values(NormCase{"softmax_last", [](Model& m) { return softmax_layer(m, 2); }},
                      NormCase{"softmax_middle", [](Model& m) { return softmax_layer(m, 1); }},
                      NormCase{"softmax_first", [](Model& m) { return softmax_layer(m, 0); }},
                      NormCase{"layer_norm", layer_norm_layer},
                      NormCase{"rms_norm", rms_norm_layer},
                      // Plain sums that wait for each other, and a result between them.
                      NormCase{"sums",
                               [](Model& m) {
                                 Builder& b = m.b;
                                 const ValId x = m.parameter("x", {m.size("N"), m.size("C")});
                                 const ValId scale = m.parameter("scale", {m.size("C")});
                                 const ValId mean = b.mean(x, {1}, true);
                                 m.output(b.square(mean));
                                 const ValId off = b.sub(x, mean);
                                 const ValId spread = b.mean(b.square(off), {1}, true);
                                 return b.mul(b.mul(off, b.rsqrt(b.add(spread, b.constant(1)))),
                                              b.mul(scale, scale));
                               }},
                      NormCase{"batch_norm_first",
                               [](Model& m) {
                                 return batch_norm_layer(
                                     m, {m.size("N"), m.size("C"), m.size("H"), m.size("W")}, 1);
                               }},
                      NormCase{"batch_norm_last",
                               [](Model& m) {
                                 return batch_norm_layer(
                                     m, {m.size("N"), m.size("H"), m.size("W"), m.size("C")}, 3);
                               }}),
    [](const auto& instance) { return instance.param.name; });

TEST(LowerMovement, EveryOperationIsAWayToReadMemory) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"moves\" {\n  symbols N, C\n"
      "  %0 = input \"x\" : f32[N, C]\n  %1 = input \"row\" : f32[1, C]\n"
      "  %2 = input \"which\" : i64[3]\n  %3 = input \"each\" : i32[N, 2]\n"
      "  %4 = broadcast(%1) {axes=[0, 1], shape=[N, C]}\n  %5 = add(%0, %4)\n  output %5\n"
      "  %6 = unfold(%0) {axis=1, size=2, stride=2, dilation=3}\n  %7 = exp(%6)\n  output %7\n"
      "  %8 = pad(%0) {low=[1, 2], high=[0, 1], value=0.5}\n  %9 = neg(%8)\n  output %9\n"
      "  %10 = slice(%0) {starts=[0, 1], sizes=[N, C - 2]}\n  %11 = square(%10)\n  output %11\n"
      "  %12 = concat(%0, %4, %0) {axis=1}\n  %13 = abs(%12)\n  output %13\n"
      "  %14 = take(%0, %2) {axis=1}\n  %15 = neg(%14)\n  output %15\n"
      "  %16 = gather(%0, %3) {axis=1}\n  %17 = neg(%16)\n  output %17\n"
      "  %18 = reshape(%0) {shape=[N*C]}\n  %19 = sum(%18) {axes=[0]}\n  output %19\n}\n",
      "moves");
  for (const std::int64_t n : {0, 1, 4}) {
    std::vector<Tensor> inputs = inputs_of(fusion, {{"N", n}, {"C", 7}});
    for (std::int64_t i = 0; i < inputs[2].size(); ++i)
      inputs[2].set(i, static_cast<double>(6 - i));
    for (std::int64_t i = 0; i < inputs[3].size(); ++i)
      inputs[3].set(i, static_cast<double>(i % 7));
    check(fusion, inputs, fmt::format("movement of {} rows", n));
    if (HasFatalFailure()) return;
  }
}

/// No symbol of 2*N == 3*M can be written in the other, so these stay two texts for one size.
TEST(LowerMovement, SizesThatARequirementMakesEqualAreOneSize) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"equal\" {\n  symbols B, N, M\n  require 2*N == 3*M\n"
      "  %0 = input \"x\" : f32[B, 2*N]\n  %1 = input \"c\" : f32[3*M]\n"
      "  %2 = broadcast(%1) {axes=[1], shape=[B, 2*N]}\n  %3 = mul(%0, %2)\n  output %3\n"
      "  %4 = sum(%3) {axes=[1]}\n  output %4\n"
      "  %5 = exp(%1)\n  %6 = reshape(%5) {shape=[3*M]}\n"
      "  %7 = broadcast(%6) {axes=[1], shape=[B, 2*N]}\n  output %7\n"
      "  %8 = reshape(%3) {shape=[3*B*M]}\n  output %8\n}\n",
      "equal");
  for (const std::int64_t b : {0, 1, 4})
    check(fusion, inputs_of(fusion, {{"B", b}, {"N", 6}, {"M", 4}}), fmt::format("{} rows", b));
}

/// The same where a stored value is broadcast after a reshape has merged its axes.
TEST(LowerMovement, AMergedAxisIsFoundUnderAnotherTextOfItsSize) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"stored\" {\n  symbols B, N, M\n  require 2*N == 3*M\n"
      "  %0 = input \"x\" : f32[B, 2, N]\n  %1 = max(%0) {axes=[0]}\n  %2 = exp(%1)\n"
      "  %3 = reshape(%2) {shape=[2*N]}\n"
      "  %4 = broadcast(%3) {axes=[1], shape=[B, 3*M]}\n  output %4\n}\n",
      "stored");
  for (const std::int64_t b : {0, 1, 4})
    check(fusion, inputs_of(fusion, {{"B", b}, {"N", 6}, {"M", 4}}), fmt::format("{} rows", b));
}

/// An axis that is new after a reshape is no axis that the reshape has merged.
TEST(LowerMovement, ANewAxisIsNotTheOneThatWasMerged) {
  for (const char* to : {"axes=[0], shape=[8*S, S]", "axes=[0], shape=[8*S, 8]",
                         "axes=[1], shape=[S, 8*S]", "axes=[1], shape=[8, 8*S]"}) {
    const ir::Fusion fusion = ir::parse(
        fmt::format(
            "fusion \"diagonal\" {{\n  symbols S\n  %0 = input \"x\" : f32[8, S]\n"
            "  %1 = max(%0) {{axes=[0, 1]}}\n  %2 = broadcast(%1) {{axes=[], shape=[8, S]}}\n"
            "  %3 = sub(%0, %2)\n  %4 = reshape(%3) {{shape=[8*S]}}\n"
            "  %5 = broadcast(%4) {{{}}}\n  output %5\n}}\n",
            to),
        "diagonal");
    check(fusion, inputs_of(fusion, {{"S", 5}}), fmt::format("a broadcast to {}", to));
  }
}

/// Results beside a reduction over axes that they do not have: they are there when those are empty.
TEST(LowerReduce, ResultsWithoutAReducedAxisAreWrittenWhenItIsEmpty) {
  for (const bool uses_reduction : {false, true}) {
    Model m;
    const ValId x = m.input("x", {m.size("B"), m.size("T"), 3});
    const ValId y = m.input("y", {3});
    const ValId least = m.b.min(x, {0, 2});
    const ValId sum = m.b.sum(x, {0, 1, 2});
    ValId beside = m.b.abs(y);
    if (uses_reduction) beside = m.b.mul(beside, m.b.exp(sum));
    m.output(beside);
    if (!uses_reduction) m.output(m.b.is_nan(least));
    m.output(m.b.exp(m.b.mul(x, uses_reduction ? m.b.abs(sum) : m.b.constant(2))));
    for (const std::int64_t b : {0, 1, 4})
      check(m.fusion, inputs_of(m.fusion, {{"B", b}, {"T", 2}}),
            fmt::format("B = {}, {}", b, uses_reduction ? "after it" : "beside it"));
  }
}

/// What has all axes is stored by the kernel that reads the parts of rows: nothing is read again.
TEST(LowerReduce, PartsOfRowsStoreFullResultsOnTheirWay) {
  for (const bool columns : {true, false}) {
    Model m;
    const ValId x = m.input("x", {m.size("T"), 6});
    const ValId y = m.b.mul(x, x);
    m.output(y);
    m.output(m.b.sum(y, columns ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, 1}));
    const auto inputs = inputs_of(m.fusion, {{"T", 11}});
    Schedule split;
    split.split = 4;
    std::size_t kernels = 0;
    const auto got = testing::run_groups(
        m.cut(), inputs, [&](const Space&) { return split; },
        [&](const Space&, const LoweredGroup& group) { kernels += group.kernels.size(); });
    EXPECT_EQ(kernels, 2U);
    expect_same(got, interpret(m.fusion, inputs), columns ? "columns" : "all");
    check(m.fusion, inputs, columns ? "columns" : "all");
  }
}

TEST(LowerTranspose, EveryOrderOfAxesBesideAnother) {
  std::vector<std::int64_t> perm{0, 1, 2};
  int tiled = 0;
  do {
    Model m;
    const Extents shape{m.size("A"), m.size("B"), m.size("C")};
    Extents moved;
    for (const std::int64_t axis : perm) moved.push_back(shape[static_cast<std::size_t>(axis)]);
    const ValId x = m.input("x", shape);
    const ValId y = m.input("y", moved);
    m.output(m.b.add(m.b.mul(m.b.permute(x, perm), m.b.constant(2.0, DType::kF32)), y));
    const SegmentedFusion cut = m.cut();
    for (std::uint32_t i = 0; i < cut.size(); ++i)
      tiled += cut.domain(GroupId{i}).kind == GroupKind::kTiledTranspose;
    check(m.fusion, inputs_of(m.fusion, {{"A", 5}, {"B", 7}, {"C", 4}}), "a transposition");
    if (HasFatalFailure()) return;
  } while (std::next_permutation(perm.begin(), perm.end()));
  EXPECT_EQ(tiled, 4);  // the others leave the innermost axis where it is
}

/// Positions that are quotients and rests: what a trial found is found again where nothing has
/// been requested yet.
TEST(LowerMovement, ReshapedPartsAreReadUnderEverySchedule) {
  const char* const programs[] = {
      "%1 = slice(%0) {starts=[0, 0, 2], sizes=[S, 5, 4]}\n"
      "  %2 = reshape(%1) {shape=[S*5, 4]}\n  output %2\n",
      "%1 = slice(%0) {starts=[0, 1, 2], sizes=[S, 3, 4]}\n  %2 = exp(%1)\n"
      "  %3 = reshape(%2) {shape=[S*3, 4]}\n  %4 = sum(%3) {axes=[1]}\n  output %4\n",
      "%1 = slice(%0) {starts=[0, 1, 2], sizes=[S, 3, 4]}\n"
      "  %2 = reshape(%1) {shape=[S*3, 4]}\n  %3 = softmax_(%2)\n",
      "%1 = permute(%0) {perm=[1, 0, 2]}\n  %2 = reshape(%1) {shape=[5, S*9]}\n"
      "  %3 = permute(%2) {perm=[1, 0]}\n  %4 = exp(%3)\n  output %4\n",
      "%1 = slice(%0) {starts=[0, 1, 0], sizes=[S, 3, 9]}\n"
      "  %2 = reshape(%1) {shape=[S*3, 9]}\n  %3 = permute(%2) {perm=[1, 0]}\n"
      "  %4 = tanh(%3)\n  output %4\n",
  };
  for (std::string body : programs) {
    if (const auto at = body.find("%3 = softmax_(%2)\n"); at != std::string::npos)
      body.replace(at, std::string::npos,
                   "%3 = max(%2) {axes=[1]}\n"
                   "  %4 = broadcast(%3) {axes=[0], shape=[S*3, 4]}\n  %5 = sub(%2, %4)\n"
                   "  %6 = exp(%5)\n  %7 = sum(%6) {axes=[1]}\n"
                   "  %8 = broadcast(%7) {axes=[0], shape=[S*3, 4]}\n  %9 = div(%6, %8)\n"
                   "  output %9\n");
    for (const bool numbers : {false, true}) {
      std::string text = fmt::format(
          "fusion \"parts\" {{\n  symbols S\n  %0 = input \"x\" : f32[S, 5, 9]\n  {}}}\n", body);
      if (numbers) {
        for (const auto& [from, to] : std::map<std::string, std::string>{
                 {"S*5", "35"}, {"S*3", "21"}, {"S*9", "63"}, {"S,", "7,"}, {"  symbols S\n", ""}})
          for (auto at = text.find(from); at != std::string::npos; at = text.find(from))
            text.replace(at, from.size(), to);
      }
      const ir::Fusion fusion = ir::parse(text, "parts");
      check(fusion, inputs_of(fusion, {{"S", 7}}), text);
      if (HasFatalFailure()) return;
    }
  }
}

/// softmax(q @ k.T) @ v of sizes that are numbers: what a product needs turned.
TEST(LowerTranspose, BatchesOfMatrices) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"turned\" {\n  %0 = input \"k\" : f32[2, 3, 20, 7]\n"
      "  %1 = permute(%0) {perm=[0, 1, 3, 2]}\n  %2 = reshape(%1) {shape=[6, 7, 20]}\n"
      "  output %2\n  %3 = reshape(%0) {shape=[6, 20, 7]}\n"
      "  %4 = permute(%3) {perm=[2, 0, 1]}\n  %5 = reshape(%4) {shape=[7, 2, 60]}\n"
      "  %6 = neg(%5)\n  output %6\n}\n",
      "turned");
  check(fusion, inputs_of(fusion, {}), "batches");
}

/// Nothing goes down a program by calls: it may be deeper than a stack.
TEST(LowerPointwise, ProgramsOfAnyDepth) {
  Model m;
  const ValId x = m.parameter("x", {m.size("N")});
  ValId v = x;
  for (std::uint64_t i = 0; i < ::segfuse::testing::cases(12'000); ++i)
    v = i % 2 == 0 ? m.b.mul(v, m.b.constant(1 - 0.001 * static_cast<double>(i % 7)))
                   : m.b.add(v, x);
  m.output(v);
  m.backward(v);
  const std::vector<Tensor> inputs = inputs_of(m.fusion, {{"N", 3}});
  const std::vector<Tensor> want = interpret(m.fusion, inputs);
  ir::Fusion copy = ir::parse(ir::print(m.fusion), "deep");
  run_passes(copy);
  const SegmentedFusion cut = segment(std::move(copy));
  EXPECT_GT(cut.size(), ::segfuse::testing::cases(12));
  expect_same(testing::run_groups(cut, inputs, [](const Space&) { return Schedule(); }), want,
              "a deep program");
}

INSTANTIATE_TEST_SUITE_P(Lower, Random,
                         ::testing::Values(testing::Numbers::kSmooth, testing::Numbers::kExact),
                         [](const auto& instance) {
                           return instance.param == testing::Numbers::kSmooth ? "Smooth" : "Exact";
                         });

}  // namespace
}  // namespace segfuse::compiler
