// The segmenter: derived inputs and outputs, legal merges, and the cases that segmenters get wrong.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/os/file.h"
#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/random/seasoned_fusion.h"
#include "support/slow_build.h"
#include "support/source_dir.h"
#include "support/tensors.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

using ir::ExprId;
using ir::Op;
using segfuse::testing::Numbers;
using segfuse::testing::RandomFusion;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::multiset<GroupKind> kinds(const SegmentedFusion& cut) {
  std::multiset<GroupKind> all;
  for (std::uint32_t i = 0; i < cut.size(); ++i) all.insert(cut.domain(GroupId{i}).kind);
  return all;
}

// --- random programs

/// inputs(S) and outputs(S) by their definition, for sets without library calls.
Boundary by_definition(const SegmentedFusion& cut, const SegmentContext& context,
                       const std::vector<ExprId>& exprs) {
  const ir::Fusion& f = cut.fusion();
  const std::set<ExprId> members(exprs.begin(), exprs.end());
  std::set<ValId> inputs;
  std::set<ValId> outputs;
  // A free value stands for the scalar inputs that it is made of.
  auto add = [&](auto& self, ExprId user, ValId v) -> void {
    if (!context.is_free(v) || runs_alone(f.expr(user).op)) {
      inputs.insert(v);
      return;
    }
    for (const ValId operand : f.expr(f.val(v).definition).operands) self(self, user, operand);
  };
  for (const ExprId id : exprs) {
    for (const ValId v : f.expr(id).operands)
      if (!members.contains(f.val(v).definition)) add(add, id, v);
    for (const ValId v : f.expr(id).results) {
      if (f.is_output(v)) outputs.insert(v);
      for (const ExprId use : f.val(v).uses)
        if (!members.contains(use) && (!context.is_free(v) || runs_alone(f.expr(use).op)))
          outputs.insert(v);
    }
  }
  return {{inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}};
}

/// What a segmentation does, without ids.
std::string shape_of(const SegmentedFusion& cut) {
  std::string text;
  const SegmentReport numbers = report(cut);
  for (const SegmentedGroup& group : cut.groups()) {
    std::multiset<std::string_view> ops;
    for (const ExprId id : group.exprs) ops.insert(ir::info(cut.fusion().expr(id).op).name);
    text += fmt::format("{} {} {} {} :", name_of(cut.domain(group.id).kind),
                        numbers.groups[group.id.index].read, numbers.groups[group.id.index].written,
                        group.exprs.size());
    for (const std::string_view op : ops) text += fmt::format(" {}", op);
    text += "\n";
  }
  return text + fmt::format("{} {}\n", numbers.peak, cut.edges().size());
}

RandomFusion random_program(std::uint64_t seed) {
  RandomFusion program =
      segfuse::testing::seasoned_fusion(seed, seed % 2 ? Numbers::kSmooth : Numbers::kExact);
  run_passes(program.fusion);
  return program;
}

TEST(Segments, AreWhatTheDefinitionsSayOnRandomPrograms) {
  std::size_t groups = 0;
  std::size_t exprs = 0;
  std::multiset<GroupKind> seen;
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(400) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomFusion program = random_program(seed);
    const SegmentedFusion cut = segment(program.fusion);
    cut.verify();
    ir::verify(cut.fusion());
    const SegmentContext context(cut.fusion(), cut.hints());
    std::set<SegmentedEdge> edges;
    std::map<ValId, GroupId> writer;
    for (const SegmentedGroup& group : cut.groups()) {
      EXPECT_EQ(group.boundary, by_definition(cut, context, group.exprs));
      for (const ValId v : group.boundary.inputs)
        if (writer.contains(v)) {
          edges.insert({writer[v], group.id, v});
        } else {
          EXPECT_TRUE(cut.fusion().is_input(v)) << "read before it is written";
        }
      for (const ValId v : group.boundary.outputs) writer[v] = group.id;
      seen.insert(cut.domain(group.id).kind);
      exprs += group.exprs.size();
    }
    const std::vector<SegmentedEdge> derived = cut.edges();
    EXPECT_EQ(edges, std::set<SegmentedEdge>(derived.begin(), derived.end()));
    EXPECT_EQ(edges.size(), derived.size()) << "one edge for each (from, to, value)";
    EXPECT_GE(report(cut).moved, 0);
    groups += cut.size();
    const std::vector<Tensor> inputs = segfuse::testing::random_inputs(program, seed, 2, 5);
    const auto before = interpret(program.fusion, inputs);
    const auto after = interpret(cut.fusion(), inputs);
    for (std::size_t o = 0; o < before.size(); ++o)
      EXPECT_TRUE(segfuse::testing::same_bits(before[o], after[o]));
  }
  EXPECT_LT(2 * groups, exprs);
  for (const GroupKind kind : {GroupKind::kPointwise, GroupKind::kTiledTranspose,
                               GroupKind::kReduce, GroupKind::kRowNorm, GroupKind::kLibrary})
    EXPECT_GE(seen.count(kind), ::segfuse::testing::cases(5)) << name_of(kind);
}

TEST(Segments, DoNotDependOnTheOrderOfInsertion) {
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(250) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ir::Fusion fusion = random_program(seed).fusion;
    const std::string expected = shape_of(segment(fusion));
    for (std::uint64_t i = 0; i < 3; ++i)
      EXPECT_EQ(shape_of(segment(segfuse::testing::shuffled(fusion, 10 * seed + i))), expected);
    EXPECT_EQ(describe(segment(fusion)), describe(segment(fusion)));
  }
}

/// Whether a path of values in memory leaves the set and enters it again.
bool leaves_and_returns(const SegmentContext& context, const std::set<ExprId>& set) {
  const ir::Fusion& f = context.fusion();
  std::set<ExprId> outside;
  std::vector<ExprId> stack;
  auto follow = [&](ExprId id) {
    for (const ValId v : f.expr(id).results)
      for (const ExprId use : f.val(v).uses) {
        if (!set.contains(use) && context.reads(use, v) && outside.insert(use).second)
          stack.push_back(use);
      }
  };
  for (const ExprId id : set) follow(id);
  while (!stack.empty()) {
    const ExprId id = stack.back();
    stack.pop_back();
    for (const ValId v : f.expr(id).results)
      for (const ExprId use : f.val(v).uses)
        if (set.contains(use) && context.reads(use, v)) return true;
    follow(id);
  }
  return false;
}

TEST(Segments, ThePlannerIsAskedAboutConvexSetsOnly) {
  int asked = 0;
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(150) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ir::Fusion fusion = random_program(seed).fusion;
    SegmentOptions options;
    Rng rng(seed, 95);
    options.classifier = [&](const GroupView& view) -> Verdict {
      const std::set<ExprId> set(view.exprs.begin(), view.exprs.end());
      EXPECT_FALSE(leaves_and_returns(view.context, set));
      ++asked;
      // A planner without taste: any merge may do.
      if (view.exprs.size() > 1 && rng.below(3) != 0) return {{}, "not this one"};
      return {IterationDomain{}, {}};
    };
    options.recompute = false;
    const SegmentedFusion cut = segment(fusion, options);
    cut.verify();
    for (const Rejection& rejection : cut.rejections) EXPECT_FALSE(rejection.reason.empty());
  }
  EXPECT_GE(asked, static_cast<int>(::segfuse::testing::cases(3000)));
}

TEST(Segments, EveryGoldenProgramCanBeCut) {
  int programs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SEGFUSE_SOURCE_DIR "/tests/golden/ir")) {
    SCOPED_TRACE(entry.path().string());
    ir::Fusion fusion = ir::parse(read_file(entry.path()), entry.path().string());
    run_passes(fusion, {.verify = true});
    const SegmentedFusion cut = segment(fusion);
    cut.verify();
    EXPECT_FALSE(describe(cut).empty());
    ++programs;
  }
  EXPECT_GE(programs, 8);
}

TEST(Segments, DeadCodeIsRefused) {
  Model m;
  const ValId x = m.input("x", {4});
  m.output(m.b.exp(x));
  m.b.log(x);
  EXPECT_THROW((void)segment(m.fusion), UsageError);
}

// --- cases

/// Accepts one expression, or exactly `size` of them.
Classifier only_sets_of(std::size_t size) {
  return [size](const GroupView& view) -> Verdict {
    if (view.exprs.size() != 1 && view.exprs.size() != size) return {{}, "another number"};
    return {IterationDomain{}, {}};
  };
}

TEST(Segments, ADiamondMergesAsAWhole) {
  Model m;
  const ValId x = m.input("x", {m.size("N")});
  const ValId top = m.b.exp(x);
  const ValId bottom = m.b.add(m.b.sin(top), m.b.cos(top));
  m.output(m.b.matmul(m.b.reshape(bottom, {m.size("N"), 1}), m.input("w", {1, 3})));
  SegmentOptions options;
  options.classifier = only_sets_of(4);
  options.recompute = false;
  const SegmentedFusion cut = segment(m.fusion, options);
  cut.verify();
  EXPECT_EQ(cut.size(), 3U) << describe(cut);  // the diamond, the reshape, the product
  EXPECT_EQ(cut.group_of(cut.fusion().val(top).definition),
            cut.group_of(cut.fusion().val(bottom).definition));
}

TEST(Segments, AProducerAndAConsumerDoNotMergeAroundALibraryCall) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), m.size("N")});
  const ValId top = m.b.exp(x);
  m.output(m.b.add(top, m.b.matmul(top, top)));
  SegmentOptions options;
  options.recompute = false;
  const SegmentedFusion cut = m.cut(options);
  EXPECT_EQ(cut.size(), 3U);
  ASSERT_EQ(cut.rejections.size(), 1U);
  EXPECT_THAT(cut.rejections[0].reason, HasSubstr("path"));
}

TEST(Segments, AValueWithAConsumerOutsideIsAnOutputOnce) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), m.size("N")});
  const ValId v = m.b.log(x);  // not cheap
  m.output(m.b.sin(v));
  m.output(m.b.cos(v));
  m.output(m.b.matmul(v, v));
  const SegmentedFusion cut = m.cut();
  EXPECT_THAT(kinds(cut), UnorderedElementsAre(GroupKind::kPointwise, GroupKind::kLibrary));
  EXPECT_THAT(cut.edges(), ElementsAre(SegmentedEdge{GroupId{0}, GroupId{1}, v}));
  const std::vector<SegmentedGroup> groups = cut.groups();
  EXPECT_EQ(groups[0].boundary.outputs.size(), 3U);
  EXPECT_THAT(groups[1].boundary.inputs, ElementsAre(v));
}

TEST(Segments, SiblingsThatReadOneInputAreOneKernel) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), m.size("C")});
  m.output(m.b.sum(x, {1}));
  m.output(m.b.max(x, {1}));
  m.output(m.b.exp(x));
  const SegmentedFusion cut = m.cut();
  EXPECT_THAT(kinds(cut), ElementsAre(GroupKind::kReduce)) << describe(cut);
  EXPECT_EQ(report(cut).moved, report(cut).lower_bound);
}

TEST(Segments, ACheapChainIsComputedAgainForIncompatibleReaders) {
  Model m;
  const Extents shape{m.size("A"), m.size("B"), m.size("C")};
  const ValId x = m.input("x", shape, DType::kF16);
  const ValId wide = m.b.cast(x, DType::kF32);
  m.output(m.b.sum(wide, {0, 1}));
  m.output(m.b.sum(wide, {1, 2}));
  const SegmentedFusion cut = m.cut();
  ASSERT_EQ(cut.size(), 2U) << describe(cut);
  for (const SegmentedGroup& group : cut.groups()) {
    EXPECT_THAT(group.boundary.inputs, ElementsAre(x));  // the narrow one
    EXPECT_EQ(group.exprs.size(), 2U);
  }
  EXPECT_EQ(cut.copies, 1U);
  EXPECT_THAT(cut.edges(), IsEmpty());
  ASSERT_EQ(cut.rejections.size(), 1U);
  EXPECT_THAT(cut.rejections[0].reason, HasSubstr("different axes"));

  SegmentOptions options;
  options.recompute = false;
  const SegmentedFusion kept = m.cut(options);
  EXPECT_EQ(kept.copies, 0U);
  EXPECT_GT(report(kept).moved, report(cut).moved);
}

TEST(Segments, ACheapChainFromAWiderValueIsWrittenAndRead) {
  Model m;
  const ValId x = m.input("x", {m.size("A"), m.size("B"), m.size("C")}, DType::kF64);
  const ValId narrow = m.b.cast(x, DType::kF16);
  m.output(m.b.sum(narrow, {0, 1}));
  m.output(m.b.sum(narrow, {1, 2}));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.copies, 0U) << describe(cut);
  EXPECT_EQ(cut.edges().size(), 1U);
}

TEST(Segments, AnExpensiveChainIsWrittenAndRead) {
  Model m;
  const ValId x = m.input("x", {m.size("A"), m.size("B"), m.size("C")});
  const ValId y = m.b.pow(x, x);
  m.output(m.b.sum(y, {0, 1}));
  m.output(m.b.sum(y, {1, 2}));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.copies, 0U);
  EXPECT_EQ(cut.edges().size(), 1U);
}

TEST(Segments, ScalarsAndExtentsAreNoBoundaries) {
  Model m;
  Builder& b = m.b;
  const Extent n = m.size("N");
  const ValId x = m.input("x", {n, n});
  const ValId rate = m.input("rate", {});
  const ValId scale = b.div(b.sqrt(rate), b.extent(n));
  const ValId y = b.matmul(b.mul(x, scale), x);
  m.output(b.add(b.mul(y, scale), b.cast(b.iota(n), DType::kF32)));
  const SegmentedFusion cut = m.cut();
  ASSERT_EQ(cut.size(), 3U) << describe(cut);
  EXPECT_EQ(cut.edges().size(), 2U);
  for (const SegmentedGroup& group : cut.groups())
    if (cut.domain(group.id).kind == GroupKind::kPointwise) {
      EXPECT_THAT(group.boundary.inputs, ::testing::Contains(rate));
    }
  for (const Op op : {Op::extent, Op::iota, Op::sqrt}) EXPECT_FALSE(group_with(cut, op).valid());
}

TEST(Segments, AConstantForALibraryCallIsWritten) {
  Model m;
  const ValId x = m.input("x", {m.size("N"), 4});
  const ValId ones = m.b.full(1, {4, 4});
  m.output(m.b.matmul(x, ones));
  m.output(m.b.mul(x, m.b.full(2, {m.size("N"), 4})));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.size(), 3U) << describe(cut);
  EXPECT_EQ(cut.edges().size(), 1U);
}

TEST(Segments, InPlaceOutputsComeAfterAllReaders) {
  Model m;
  Builder& b = m.b;
  const ValId state = m.input("state", {m.size("N"), m.size("N")});
  const ValId w = m.input("w", {m.size("N"), m.size("N")});
  const ValId next = b.add(state, w);
  m.output(next);
  m.output(b.matmul(b.permute(state, {1, 0}), w));
  m.fusion.add_alias(next, state);
  const SegmentedFusion cut = m.cut();
  ASSERT_EQ(cut.in_place.size(), 1U);
  EXPECT_LT(group_with(cut, Op::matmul), group_with(cut, Op::add)) << describe(cut);
}

TEST(Segments, AnOutputThatIsReadBeforeItsInputIsNotWrittenInPlace) {
  Model m;
  Builder& b = m.b;
  const ValId state = m.input("state", {m.size("N"), m.size("N")});
  const ValId next = b.matmul(state, state);
  m.output(next);
  m.output(b.matmul(next, state));  // needs the old and the new one
  m.fusion.add_alias(next, state);
  const SegmentedFusion cut = m.cut();
  EXPECT_THAT(cut.in_place, IsEmpty());
}

TEST(Segments, ATransposedReadOfWhatIsOverwrittenIsAnotherKernel) {
  Model m;
  Builder& b = m.b;
  const ValId state = m.input("state", {m.size("N"), m.size("N")});
  const ValId next = b.add(state, b.permute(state, {1, 0}));
  m.output(next);
  ASSERT_THAT(kinds(m.cut()), ElementsAre(GroupKind::kTiledTranspose));
  m.fusion.add_alias(next, state);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.size(), 2U) << describe(cut);
  EXPECT_EQ(cut.in_place.size(), 1U);
}

TEST(Segments, AnExpressionThatReadsElsewhereThanItWritesIsNotInPlace) {
  for (const bool library : {false, true}) {
    Model m;
    const ValId state = m.input("state", {m.size("N"), m.size("N")});
    const ValId next = library ? m.b.matmul(state, m.input("w", {m.size("N"), m.size("N")}))
                               : m.b.permute(state, {1, 0});
    m.output(next);
    m.fusion.add_alias(next, state);
    EXPECT_THAT(m.cut().in_place, IsEmpty());
  }
}

TEST(Segments, ReadersOfViewsComeBeforeTheInputIsOverwritten) {
  for (const Op op : {Op::reshape, Op::broadcast}) {
    Model m;
    Builder& b = m.b;
    const Extent n = m.size("N");
    const ValId state = m.input("state", {n, 4});
    const ValId next = b.add(state, m.input("w", {n, 4}));
    m.output(next);
    const ValId view = op == Op::reshape ? b.reshape(state, {n * 2, 2}) : b.unsqueeze(state, 0);
    m.output(b.matmul(view, m.input("v", {op == Op::reshape ? 2 : 4, 3})));
    m.fusion.add_alias(next, state);
    const SegmentedFusion cut = m.cut();
    ASSERT_EQ(cut.in_place.size(), 1U);
    EXPECT_TRUE(group_with(cut, op).valid()) << describe(cut);
    EXPECT_LT(group_with(cut, Op::matmul), group_with(cut, Op::add)) << describe(cut);
  }
}

/// relu(state) is cheap, but state is gone when its last reader runs.
TEST(Segments, WhatIsOverwrittenIsNotComputedFromAgain) {
  Model m;
  Builder& b = m.b;
  const Extent n = m.size("N");
  const ValId state = m.input("state", {n, n});
  const ValId kept = b.relu(state);
  const ValId next = b.add(state, m.input("w", {n, n}));
  m.output(next);
  m.output(b.add(b.matmul(next, next), kept));
  m.fusion.add_alias(next, state);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.copies, 0U) << describe(cut);
  EXPECT_EQ(cut.in_place.size(), 1U);
}

// --- what one kernel can hold

struct Kernel {
  std::string name;
  std::function<void(Model&)> build;
  std::multiset<GroupKind> expected;
  std::string reason;  ///< why it is more than one kernel
};

void PrintTo(const Kernel& k, std::ostream* out) { *out << k.name; }

ValId matrix(Model& m, const char* name = "x") { return m.input(name, {m.size("A"), m.size("B")}); }

ValId cube(Model& m) { return m.input("x", {m.size("A"), m.size("B"), m.size("C")}); }

std::vector<Kernel> permuted_kernels() {
  using enum GroupKind;
  return {
      {"transpose",
       [](Model& m) { m.output(m.b.permute(m.b.exp(matrix(m)), {1, 0})); },
       {kTiledTranspose},
       ""},
      {"permute_of_outer_axes",
       [](Model& m) { m.output(m.b.exp(m.b.permute(cube(m), {1, 0, 2}))); },
       {kPointwise},
       ""},
      {"outer_product",
       [](Model& m) {
         const ValId x = m.input("x", {m.size("A")});
         m.output(m.b.mul(m.b.unsqueeze(x, 0), m.b.unsqueeze(x, 1)));
       },
       {kPointwise},
       ""},
      {"reshape_of_memory",
       [](Model& m) { m.output(m.b.reshape(cube(m), {m.size("A"), m.size("B") * m.size("C")})); },
       {kView},
       ""},
      {"computed_and_reshaped",
       [](Model& m) {
         const ValId y = m.b.exp(cube(m));
         m.output(m.b.reshape(y, {m.size("A"), m.size("B") * m.size("C")}));
       },
       {kPointwise},
       ""},
  };
}

std::vector<Kernel> moved_kernels() {
  using enum GroupKind;
  return {
      {"windows_of_padded_memory",
       [](Model& m) {
         const ValId x = m.input("x", {m.size("A"), 16, 8});
         m.output(m.b.unfold(m.b.pad_axis(x, 1, 1, 1), 1, 3, 1, 1));
       },
       {kPointwise},
       ""},
      {"padding_of_computed",
       [](Model& m) { m.output(m.b.pad_axis(m.b.log(matrix(m)), 1, 1, 1)); },
       {kPointwise},
       ""},
      {"windows_of_computed",
       [](Model& m) {
         const ValId x = m.input("x", {m.size("A"), 16, 8});
         m.output(m.b.unfold(m.b.log(x), 1, 3, 1, 1));
       },
       {kPointwise, kPointwise},
       "would be computed more than once"},
      {"windows_of_what_is_cheap",
       [](Model& m) {
         const ValId x = m.input("x", {m.size("A"), 16, 8});
         m.output(m.b.unfold(m.b.relu(x), 1, 3, 1, 1));
       },
       {kPointwise},
       ""},
      {"concat_of_memory",
       [](Model& m) {
         m.output(m.b.exp(m.b.concat({matrix(m), m.input("y", {m.size("A"), 7})}, 1)));
       },
       {kPointwise},
       ""},
      {"embedding",
       [](Model& m) {
         const ValId table = m.input("table", {m.size("V"), m.size("C")});
         const ValId words = m.input("words", {m.size("B"), m.size("T")}, DType::kI64);
         m.output(m.b.mul(m.b.take(table, words, 0), m.b.constant(3)));
       },
       {kPointwise},
       ""},
      {"scatter",
       [](Model& m) {
         const ValId updates = m.input("u", {m.size("N"), m.size("C")});
         const ValId places = m.input("i", {m.size("N")}, DType::kI64);
         m.output(m.b.scatter_add(m.b.exp(updates), places, 0, m.size("V")));
       },
       {kLibrary, kPointwise},
       ""},
      {"dropout",
       [](Model& m) {
         const ValId seed = m.input("seed", {2}, DType::kI64);
         m.output(m.b.dropout(matrix(m), seed, 0.1));
       },
       {kPointwise},
       ""},
  };
}

std::vector<Kernel> reduced_kernels() {
  using enum GroupKind;
  return {
      {"sum_of_everything",
       [](Model& m) { m.output(m.b.sum(m.b.square(cube(m)), {0, 1, 2})); },
       {kReduce},
       ""},
      {"row_sum_and_column_sum",
       [](Model& m) {
         const ValId x = matrix(m);
         m.output(m.b.sum(x, {1}));
         m.output(m.b.sum(x, {0}));
       },
       {kRowCol},
       ""},
      {"reduction_of_a_reduction",
       [](Model& m) { m.output(m.b.sum(m.b.logsumexp(matrix(m), {1}), {0})); },
       {kReduce, kReduce},
       "a reduction of the result of a reduction"},
      {"overlapping_reductions",
       [](Model& m) {
         const ValId x = cube(m);
         m.output(m.b.sum(x, {0, 1}));
         m.output(m.b.sum(x, {1, 2}));
       },
       {kReduce, kReduce},
       "different axes"},
      {"columns_used_again",
       [](Model& m) {
         const ValId x = matrix(m);
         const ValId rows = m.b.sub(x, m.b.max(x, {1}, true));
         m.output(m.b.sub(rows, m.b.sum(rows, {0}, true)));
       },
       {kColNorm, kRowNorm},
       "used again where they are summed"},
      {"division_by_the_norm_of_all",
       [](Model& m) {
         const ValId x = cube(m);
         m.output(m.b.div(x, m.b.sum(m.b.square(x), {0, 1, 2})));
       },
       {kPointwise, kReduce},
       "one block would do all the work"},
      {"a_sum_stretched_over_another_tensor",
       [](Model& m) {
         const ValId s = m.b.sum(matrix(m), {1}, true);
         m.output(m.b.mul(matrix(m, "y"), s));
       },
       {kRowNorm},
       ""},
      {"unrelated",
       [](Model& m) {
         const ValId s = m.b.log(m.input("s", {m.size("A")}));
         m.output(m.b.add(m.b.unsqueeze(s, 1), m.input("x", {m.size("A"), m.size("B")})));
         m.output(m.b.add(m.b.unsqueeze(s, 1), m.input("y", {m.size("A"), m.size("C")})));
       },
       {kPointwise, kPointwise},
       "no value has all axes"},
      {"computed_twice_in_two_orders",
       [](Model& m) {
         const ValId y = m.b.log(m.input("x", {m.size("A"), m.size("A")}));
         m.output(m.b.add(y, m.b.permute(y, {1, 0})));
       },
       {kPointwise, kTiledTranspose},
       "two places"},
  };
}

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  for (const auto& some : {permuted_kernels(), moved_kernels(), reduced_kernels()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

class OneKernel : public ::testing::TestWithParam<Kernel> {};

TEST_P(OneKernel, HoldsWhatItCan) {
  Model m;
  GetParam().build(m);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), GetParam().expected) << describe(cut);
  if (GetParam().reason.empty()) {
    EXPECT_THAT(cut.rejections, IsEmpty()) << describe(cut);
  } else {
    ASSERT_FALSE(cut.rejections.empty()) << describe(cut);
    EXPECT_THAT(cut.rejections[0].reason, HasSubstr(GetParam().reason));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneKernel, ::testing::ValuesIn(kernels()),
                         [](const auto& param) { return param.param.name; });

TEST(Segments, TooManyValuesAliveAtOnceAreMoreThanOneKernel) {
  Model m;
  const ValId x = m.input("x", {m.size("N")});
  std::vector<ValId> alive;
  for (int i = 0; i < 100; ++i) alive.push_back(m.b.abs(m.b.add(x, m.b.constant(i))));
  ValId sum = alive[0];
  for (int i = 1; i < 100; ++i) sum = m.b.add(sum, alive[static_cast<std::size_t>(i)]);
  m.output(sum);
  EXPECT_EQ(m.cut().size(), 1U) << "one after the other needs two";
  for (int i = 0; i < 100; ++i) sum = m.b.sub(sum, alive[static_cast<std::size_t>(99 - i)]);
  m.output(sum);
  const SegmentedFusion cut = m.cut();
  EXPECT_GT(cut.size(), 1U);
  EXPECT_LT(cut.size(), 12U);
  for (std::uint32_t i = 0; i < cut.size(); ++i) EXPECT_LE(cut.domain(GroupId{i}).live, 64);
}

// --- large ones

TEST(Segments, AChainOfAThousandIsOneKernel) {
  Model m;
  ValId v = m.input("x", {m.size("N")});
  for (int i = 0; i < 500; ++i) v = m.b.abs(m.b.mul(v, m.b.constant(1.5 + i)));
  m.output(v);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.size(), 1U);
  EXPECT_EQ(cut.groups()[0].exprs.size(), 1000U);
  EXPECT_EQ(cut.domain(GroupId{0}).live, 2);  // an operand and what is made of it
}

TEST(Segments, WhatTakesLongToCompileIsMoreThanOneKernel) {
  Model m;
  ValId v = m.input("x", {m.size("N")});
  for (int i = 0; i < 200; ++i) v = m.b.sin(m.b.mul(v, m.b.constant(1.5 + i)));
  m.output(v);
  const SegmentedFusion cut = m.cut();
  EXPECT_GE(cut.size(), 7U);
  EXPECT_LE(cut.size(), 14U);
  EXPECT_THAT(cut.rejections.at(0).reason, HasSubstr("compilation would cost"));
}

/// Sums of one tensor by many: each is a state that a lane carries.
TEST(Segments, ManySumsAreMoreThanOneKernel) {
  for (const int count : {2, 12, 100, 600}) {
    Model m;
    const Extents shape{m.size("N"), m.size("C")};
    const ValId x = m.input("x", shape);
    for (int i = 0; i < count; ++i)
      m.output(m.b.sum(m.b.mul(x, m.input("a" + std::to_string(i), shape)), {1}));
    const SegmentedFusion cut = m.cut();
    for (const SegmentedGroup& group : cut.groups()) EXPECT_LE(group.boundary.outputs.size(), 21U);
    EXPECT_LE(cut.size(), 1 + static_cast<std::size_t>(count) / 8);
  }
}

/// Those that carry two numbers are half as many in a kernel.
TEST(Segments, StatesOfTwoNumbersAreCountedTwice) {
  for (const Op op : {Op::argmax, Op::welford}) {
    Model m;
    const Extents shape{m.size("N"), m.size("C")};
    const ValId x = m.input("x", shape);
    for (int i = 0; i < 40; ++i) {
      const ValId product = m.b.mul(x, m.input("a" + std::to_string(i), shape));
      m.output(op == Op::argmax ? m.b.argmax(product, 1) : m.b.welford(product, {1}).mean);
    }
    const SegmentedFusion cut = m.cut();
    for (const SegmentedGroup& group : cut.groups()) {
      EXPECT_LE(group.boundary.outputs.size(), 10U) << describe(cut);
    }
    EXPECT_LE(cut.size(), 6U);
  }
}

TEST(Segments, ManyInputsAreMoreThanOneKernel) {
  Model m;
  const Extents shape{m.size("N")};
  ValId sum = m.input("x", shape);
  for (int i = 0; i < 700; ++i) sum = m.b.add(sum, m.input("a" + std::to_string(i), shape));
  m.output(sum);
  const SegmentedFusion cut = m.cut();
  for (const SegmentedGroup& group : cut.groups())
    EXPECT_LE(group.boundary.inputs.size() + group.boundary.outputs.size(), 256U);
  EXPECT_LE(cut.size(), 8U);
}

/// 256^20, the elements that are assumed of it, is more than 64 bits can count.
TEST(Segments, ManyAxesHaveNoSizeThatOverflows) {
  Model m;
  Extents shape;
  Extent all = 1;
  for (int i = 0; i < 20; ++i) shape.push_back(m.fusion.symbol("N" + std::to_string(i)));
  for (const Extent& size : shape) all = all * size;
  m.output(m.b.exp(m.b.reshape(m.input("x", shape), {all})));
  EXPECT_EQ(m.cut().size(), 1U);
}

/// What kernels compute for themselves has an end, and takes no longer for meeting again.
TEST(Segments, LongChainsOfScalarsAreKernels) {
  Model m;
  ValId s = m.input("s", {});
  for (int i = 0; i < 600; ++i) s = m.b.mul(s, s);
  m.output(m.b.mul(m.input("x", {m.size("N")}), s));
  EXPECT_LE(m.cut().size(), 4U);
}

ValId mlp(Model& m, int layers) {
  const Extent width = m.size("C");
  ValId v = m.input("x", {m.size("N"), width});
  for (int i = 0; i < layers; ++i) {
    const std::string name = std::to_string(i);
    const ValId weight = m.parameter("w" + name, {width, width});
    v = m.b.relu(m.b.add(m.b.matmul(v, weight), m.parameter("b" + name, {width})));
  }
  return v;
}

TEST(Segments, AnMlpOf200LayersHasOneKernelALayer) {
  Model m;
  m.output(mlp(m, 200));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut).count(GroupKind::kLibrary), 200U);
  EXPECT_EQ(kinds(cut).count(GroupKind::kPointwise), 200U);
  EXPECT_EQ(cut.size(), 400U);
  // What one layer gives is gone when the next one has run.
  EXPECT_EQ(report(cut).peak, std::int64_t{2} * 256 * 256 * 4);
}

TEST(Segments, TheTrainingOfAnMlpOf200LayersHasTwoKernelsALayer) {
  Model m;
  m.backward(mlp(m, 200));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut).count(GroupKind::kLibrary), 200U + 399U);
  // Forward, and the gradient with the sum for the bias; both are one for the last layer, whose
  // value nobody asks for.
  EXPECT_EQ(cut.size() - 599U, 399U);
}

TEST(Segments, TwiceTheLayersAreTwiceTheTrials) {
  auto trials = [](int layers) {
    Model m;
    m.backward(mlp(m, layers));
    int count = 0;
    SegmentOptions options;
    options.classifier = [&](const GroupView& view) {
      ++count;
      return classify(view);
    };
    (void)m.cut(options);
    return count;
  };
  const int once = trials(40);
  EXPECT_GE(once, 400);
  EXPECT_LE(trials(80), 2.1 * once);
}

}  // namespace
}  // namespace segfuse::compiler
