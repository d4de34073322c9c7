// Norms and softmax, forward and backward: how many groups, and of which kind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

using ::testing::ElementsAre;

/// The kinds in run order; views are left out: nothing runs for them.
std::vector<GroupKind> kinds(const SegmentedFusion& segmented) {
  std::vector<GroupKind> all;
  for (std::uint32_t i = 0; i < segmented.size(); ++i)
    if (segmented.domain(GroupId{i}).kind != GroupKind::kView)
      all.push_back(segmented.domain(GroupId{i}).kind);
  return all;
}

struct Case {
  std::string name;
  Layer layer;
  std::vector<GroupKind> forward;
  std::vector<GroupKind> backward;  ///< gradients alone
  std::vector<GroupKind> both;      ///< the value and its gradients
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Extents image(Model& m, bool last) {
  const Extents first{m.size("N"), m.size("C"), m.size("H"), m.size("W")};
  return last ? Extents{first[0], first[2], first[3], first[1]} : first;
}

std::vector<Case> cases() {
  using enum GroupKind;
  auto softmax = [](std::int64_t axis) {
    return [axis](Model& m) { return softmax_layer(m, axis); };
  };
  auto batch_norm = [](bool last) {
    return [last](Model& m) { return batch_norm_layer(m, image(m, last), last ? 3 : 1); };
  };
  return {
      {"softmax_last", softmax(2), {kRowNorm}, {kRowNorm}, {kRowNorm}},
      {"softmax_middle", softmax(1), {kColNorm}, {kColNorm}, {kColNorm}},
      {"softmax_first", softmax(0), {kColNorm}, {kColNorm}, {kColNorm}},
      {"layer_norm", layer_norm_layer, {kRowNorm}, {kRowCol}, {kRowCol}},
      {"rms_norm", rms_norm_layer, {kRowNorm}, {kRowCol}, {kRowCol}},
      {"batch_norm_channels_first", batch_norm(false), {kRowNorm}, {kRowNorm}, {kRowNorm}},
      {"batch_norm_channels_last", batch_norm(true), {kColNorm}, {kColNorm}, {kColNorm}},
  };
}

class Norms : public ::testing::TestWithParam<Case> {};

TEST_P(Norms, OneGroupForward) {
  Model m;
  m.output(GetParam().layer(m));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), GetParam().forward) << describe(cut);
  EXPECT_EQ(report(cut).moved, report(cut).lower_bound);
}

TEST_P(Norms, OneGroupBackward) {
  Model m;
  m.backward(GetParam().layer(m));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), GetParam().backward) << describe(cut);
  EXPECT_EQ(report(cut).moved, report(cut).lower_bound);
}

TEST_P(Norms, ValueAndGradients) {
  Model m;
  const ValId y = GetParam().layer(m);
  m.output(y);
  m.backward(y);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), GetParam().both) << describe(cut);
}

INSTANTIATE_TEST_SUITE_P(All, Norms, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(SegmentNorms, BatchNormInTrainingUpdatesItsStatisticsInPlace) {
  Model m;
  Builder& b = m.b;
  Builder::Moments moments;
  const ValId y = batch_norm_layer(m, image(m, false), 1, &moments);
  const ValId running = m.input("running", {m.size("C")});
  const ValId updated =
      b.add(b.mul(running, b.constant(0.9)), b.mul(moments.mean, b.constant(0.1)));
  m.output(y);
  m.output(updated);
  m.fusion.add_alias(updated, running);
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), std::vector{GroupKind::kRowNorm}) << describe(cut);
  ASSERT_EQ(cut.in_place.size(), 1U);
  EXPECT_EQ(cut.in_place[0].input, running);
}

/// The mean is computed in the group, used by the normalising expressions and given out: it is an
/// output, and never an input.
TEST(SegmentNorms, InstanceNormWithTheMeanUsedAndGivenOut) {
  Model m;
  Builder& b = m.b;
  const Extents shape = image(m, false);
  const ValId x = m.parameter("x", shape);
  const Builder::Moments moments = b.welford(x, {2, 3}, true);
  const ValId variance = b.div(moments.m2, b.extent(shape[2] * shape[3]));
  const ValId y = b.mul(b.sub(x, moments.mean), b.rsqrt(b.add(variance, b.constant(1e-5))));
  m.output(y);
  m.output(b.squeeze(moments.mean, {2, 3}));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), std::vector{GroupKind::kRowNorm}) << describe(cut);
  const std::vector<SegmentedGroup> groups = cut.groups();
  EXPECT_THAT(groups[0].boundary.inputs, ElementsAre(x));
  EXPECT_EQ(groups[0].boundary.outputs.size(), 2U);
  EXPECT_TRUE(cut.edges().empty());
}

/// The same, with a third user of the mean that cannot be in the group.
TEST(SegmentNorms, AMeanThatALibraryCallReadsTooIsAnOutputOnce) {
  Model m;
  Builder& b = m.b;
  const Extent rows = m.size("R");
  const ValId x = m.parameter("x", {rows, rows, m.size("K")});
  const Builder::Moments moments = b.welford(x, {2});
  const ValId y = b.sub(x, b.unsqueeze(moments.mean, 2));
  m.output(b.mul(y, b.unsqueeze(moments.m2, 2)));
  m.output(b.matmul(moments.mean, moments.mean));
  const SegmentedFusion cut = m.cut();
  EXPECT_THAT(kinds(cut), ElementsAre(GroupKind::kRowNorm, GroupKind::kLibrary)) << describe(cut);
  EXPECT_EQ(cut.edges().size(), 1U);  // one, though the product reads it twice
}

TEST(SegmentNorms, TheClassificationIsKept) {
  Model m;
  m.output(layer_norm_layer(m));
  const SegmentedFusion cut = m.cut();
  const IterationDomain& domain = cut.domain(GroupId{0});
  EXPECT_EQ(cut.fusion().to_string(domain.axes), "[B, T, C]");
  EXPECT_THAT(domain.reduced, ElementsAre(false, false, true));
  EXPECT_THAT(domain.column_reduced, ElementsAre(false, false, false));
  EXPECT_EQ(domain.inner, 2);
  EXPECT_GE(domain.live, 1);
  bool found = false;
  for (const IterationDomain::ValueAxes& known : domain.value_axes) {
    ASSERT_EQ(known.axes.size(), cut.fusion().val(known.val).shape.size());
    found = found || known.axes == std::vector{2};  // scale and shift, along the rows
  }
  EXPECT_FALSE(found) << "a vector is read through its broadcast";
}

TEST(SegmentNorms, BackwardOfLayerNormSumsColumns) {
  Model m;
  m.backward(layer_norm_layer(m));
  const SegmentedFusion cut = m.cut();
  EXPECT_THAT(cut.domain(GroupId{0}).reduced, ElementsAre(false, false, true));
  EXPECT_THAT(cut.domain(GroupId{0}).column_reduced, ElementsAre(true, true, false));
}

}  // namespace
}  // namespace segfuse::compiler
