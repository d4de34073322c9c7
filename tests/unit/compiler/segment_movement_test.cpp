// Programs that move what they compute: how many groups, of which kind, and with how many bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

using ir::Op;

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
  /// Bytes over the least there can be: what two kernels read that one could share.
  double forward_bytes = 1;
  double backward_bytes = 1;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

ValId cross_entropy(Model& m, bool ignore) {
  Builder& b = m.b;
  const Extent rows = m.size("N");
  const ValId x = m.parameter("x", {rows, 1000});
  ValId labels = m.input("labels", {rows}, DType::kI64);
  const ValId ignored = b.eq(labels, b.constant_like(-100, labels));
  if (ignore) labels = b.where(ignored, b.constant_like(0, labels), labels);
  const ValId log_p = b.sub(x, b.unsqueeze(b.logsumexp(x, {1}), 1));
  const ValId picked = b.squeeze(b.gather(log_p, b.unsqueeze(labels, 1), 1), {1});
  const ValId each = b.neg(picked);
  if (!ignore) return b.mean(each, {0});
  const ValId kept = b.where(ignored, b.constant_like(0, each), each);
  const ValId ones = b.where(ignored, b.constant_like(0, each), b.constant_like(1, each));
  return b.div(b.sum(kept, {0}), b.sum(ones, {0}));
}

/// cos and sin of the angle of each position and pair.
std::pair<ValId, ValId> angles(Model& m, const Extent& pairs) {
  Builder& b = m.b;
  auto spread = [&](const char* name) {
    return b.unsqueeze(b.unsqueeze(m.input(name, {m.size("T"), pairs}), 1), 0);
  };
  const ValId cos = spread("cos");
  return {cos, spread("sin")};
}

ValId rotated(Builder& b, ValId first, ValId second, std::pair<ValId, ValId> angle,
              std::int64_t axis) {
  const auto [cos, sin] = angle;
  return b.concat(
      {b.sub(b.mul(first, cos), b.mul(second, sin)), b.add(b.mul(second, cos), b.mul(first, sin))},
      axis);
}

Extents heads(Model& m) { return {m.size("B"), m.size("T"), m.size("H"), 128}; }

ValId rotary_halves(Model& m) {
  const ValId x = m.parameter("x", heads(m));
  return rotated(m.b, m.b.slice_axis(x, 3, 0, 64), m.b.slice_axis(x, 3, 64, 64), angles(m, 64), 3);
}

ValId rotary_interleaved(Model& m) {
  Builder& b = m.b;
  const ValId x = m.parameter("x", heads(m));
  const ValId pairs = b.reshape(x, {m.size("B"), m.size("T"), m.size("H"), 64, 2});
  auto [cos, sin] = angles(m, 64);
  const ValId y = rotated(b, b.slice_axis(pairs, 4, 0, 1), b.slice_axis(pairs, 4, 1, 1),
                          {b.unsqueeze(cos, 4), b.unsqueeze(sin, 4)}, 4);
  return b.reshape(y, heads(m));
}

ValId rotate_half(Model& m) {
  Builder& b = m.b;
  const ValId x = m.parameter("x", heads(m));
  const auto [cos, sin] = angles(m, 128);
  const ValId turned = b.concat({b.neg(b.slice_axis(x, 3, 64, 64)), b.slice_axis(x, 3, 0, 64)}, 3);
  return b.add(b.mul(x, cos), b.mul(turned, sin));
}

ValId packed_swiglu(Model& m) {
  Builder& b = m.b;
  const Extent width = m.size("C");
  const ValId x = m.parameter("x", {m.size("N"), width * Extent(2)});
  const ValId gate = b.slice_axis(x, 1, 0, width);
  return b.mul(b.mul(gate, b.sigmoid(gate)), b.slice_axis(x, 1, width, width));
}

/// Queries of a joint projection: cut out, turned, with the heads outside.
ValId projected_rotary(Model& m) {
  Builder& b = m.b;
  const ValId qkv = m.parameter("qkv", {m.size("B"), m.size("T"), 3 * 8 * 128});
  const ValId q = b.reshape(b.slice_axis(qkv, 2, 0, 1024), {m.size("B"), m.size("T"), 8, 128});
  const ValId y =
      rotated(b, b.slice_axis(q, 3, 0, 64), b.slice_axis(q, 3, 64, 64), angles(m, 64), 3);
  return b.permute(y, {0, 2, 1, 3});
}

/// 32 groups of 8 channels; scale and shift by channel.
ValId group_norm(Model& m) {
  Builder& b = m.b;
  const Extents shape{m.size("N"), 256, m.size("S")};
  const ValId x = m.input("x", shape);
  const ValId groups = b.reshape(x, {m.size("N"), 32, Extent(8) * m.size("S")});
  const ir::Builder::Moments moments = b.welford(groups, {2}, true);
  const ValId count = b.extent(Extent(8) * m.size("S"), DType::kF32);
  const ValId variance = b.add(b.div(moments.m2, count), b.constant(1e-5));
  const ValId normal = b.mul(b.sub(groups, moments.mean), b.rsqrt(variance));
  const ValId back = b.reshape(normal, shape);
  const ValId scale = b.unsqueeze(m.input("scale", {256}), 1);
  return b.relu(b.add(b.mul(back, scale), b.unsqueeze(m.input("shift", {256}), 1)));
}

TEST(GroupNorm, IsOneKernel) {
  Model m;
  m.output(group_norm(m));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(kinds(cut), std::vector{GroupKind::kRowNorm}) << describe(cut);
  EXPECT_EQ(report(cut).moved, report(cut).lower_bound);
}

std::vector<Case> cases() {
  using enum GroupKind;
  return {
      {"cross_entropy",
       [](Model& m) { return cross_entropy(m, false); },
       {kReduce, kReduce},
       {kRowNorm},
       1.01},
      {"cross_entropy_ignoring",
       [](Model& m) { return cross_entropy(m, true); },
       {kReduce, kReduce},
       {kReduce, kRowNorm},
       1.02,
       1.01},
      {"rotary_halves", rotary_halves, {kPointwise}, {kPointwise}},
      {"rotary_interleaved", rotary_interleaved, {kPointwise}, {kPointwise}},
      {"rotate_half", rotate_half, {kPointwise}, {kPointwise}},
      {"packed_swiglu", packed_swiglu, {kPointwise}, {kPointwise}},
      {"projected_rotary", projected_rotary, {kPointwise}, {kPointwise}},
  };
}

class Movement : public ::testing::TestWithParam<Case> {};

void expect(const SegmentedFusion& cut, const std::vector<GroupKind>& groups, double bytes) {
  EXPECT_EQ(kinds(cut), groups) << describe(cut);
  const SegmentReport found = report(cut);
  EXPECT_LE(static_cast<double>(found.moved), bytes * static_cast<double>(found.lower_bound))
      << describe(cut);
}

TEST_P(Movement, Forward) {
  Model m;
  m.output(GetParam().layer(m));
  expect(m.cut(), GetParam().forward, GetParam().forward_bytes);
}

TEST_P(Movement, Backward) {
  Model m;
  m.backward(GetParam().layer(m));
  expect(m.cut(), GetParam().backward, GetParam().backward_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, Movement, ::testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });

TEST(OtherShapes, AValueThatIsStoredInTwoShapesIsStoredOnce) {
  const ir::Extents flat{ir::Extent(24), 4};
  for (const bool output : {true, false}) {
    Model m;
    const ValId x = m.input("x", {4, 6, 4});
    const ValId y = m.b.tanh(x);
    m.output(m.b.matmul(m.b.reshape(y, flat), m.b.full(1, {4, 4})));
    if (output) {
      m.output(y);
    } else {  // two shapes, and neither is that in which it is computed
      m.output(m.b.matmul(m.b.reshape(y, {6, 16}), m.b.full(1, {16, 4})));
    }
    const SegmentedFusion cut = m.cut();
    const GroupId kernel = group_with(cut, Op::tanh);
    ASSERT_TRUE(kernel.valid()) << describe(cut);
    EXPECT_EQ(cut.groups()[kernel.index].boundary.outputs, std::vector<ValId>{y}) << describe(cut);
    EXPECT_EQ(cut.domain(group_with(cut, Op::reshape)).kind, GroupKind::kView) << describe(cut);
  }
}

TEST(OtherShapes, AnotherShapeOfWhatIsInMemoryIsAView) {
  const auto views = [](bool overwritten) {
    Model m;
    const ValId x = m.input("x", {4, 6, 4});
    const ValId flat = m.b.reshape(x, {24, 4});
    m.output(m.b.matmul(flat, m.b.full(1, {4, 4})));
    m.output(m.b.sum(flat, {0}));
    const ValId next = m.b.neg(x);
    m.output(next);
    if (overwritten) m.fusion.add_alias(next, x);
    const SegmentedFusion cut = m.cut();
    return cut.domain(group_with(cut, Op::reshape)).kind == GroupKind::kView;
  };
  EXPECT_TRUE(views(false));
  (void)views(true);  // has an order of its groups
}

TEST(OtherShapes, AShapeThatIsAnOutputIsStored) {
  Model m;
  const ValId x = m.input("x", {4, 6, 4});
  const ValId y = m.b.tanh(x);
  m.output(y);
  m.output(m.b.reshape(y, {24, 4}));
  const SegmentedFusion cut = m.cut();
  EXPECT_EQ(cut.size(), 1U) << describe(cut);
}

}  // namespace
}  // namespace segfuse::compiler
