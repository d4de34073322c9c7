// Schedules keep a device busy whatever the form of a reduction.

#include <gtest/gtest.h>

#include "compiler/schedule/choose.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

/// The kernels of the group of this kind, by the schedule for its own lengths on a GPU.
LoweredGroup lowered_for_cuda(const Model& model, PlanKind kind) {
  const SegmentedFusion cut = model.cut();
  ir::Fusion fusion = cut.fusion();
  for (const SegmentedGroup& group : cut.groups()) {
    if (cut.plan(group.id).kind != kind) continue;
    const GroupLowering lowering(fusion, group, cut.plan(group.id), cut.in_place, cut.hints(), "k");
    std::vector<std::int64_t> lengths;
    for (const SpaceAxis& axis : lowering.space().axes) lengths.push_back(axis.hint);
    return lowering.lower(choose_cuda(lowering.space(), lengths));
  }
  return {};
}

std::int64_t outer_iterations(const GroupKernel& kernel) {
  return kernel.kernel.outer_count.evaluate([](ir::SymbolId) { return std::int64_t{0}; });
}

/// All to one number, beside a broadcast operand that keeps two axes apart, and with the summed
/// values stored too.
TEST(ScheduleCuda, ASumToOneNumberIsCutAlongTheFirstOfItsAxes) {
  for (const bool stored : {false, true}) {
    Model m;
    const ValId x = m.input("x", {6400, 256});
    const ValId y = m.b.add(x, m.input("bias", {256}));
    m.output(m.b.sum(m.b.square(y), {0, 1}));
    if (stored) m.output(y);
    const LoweredGroup group = lowered_for_cuda(m, PlanKind::kReduce);
    ASSERT_GE(group.kernels.size(), 2U);
    const std::int64_t parts = outer_iterations(group.kernels[0]);
    EXPECT_GE(parts, 128) << "stored: " << stored;
    EXPECT_LE(parts, 2048);
    EXPECT_EQ(outer_iterations(group.kernels[1]), 1);  // joins them
  }
}

TEST(ScheduleCuda, ChunksOfRowsAreFewEnoughToBeJoined) {
  for (const std::int64_t rows : {1000, 4096, 51'200, 1'000'000}) {
    Model m;
    const ValId x = m.parameter("x", {rows, 512});
    const ValId scale = m.parameter("scale", {512});
    m.backward(m.b.layer_norm(x, scale, m.parameter("shift", {512})));
    const LoweredGroup group = lowered_for_cuda(m, PlanKind::kRowCol);
    ASSERT_EQ(group.kernels.size(), 2U);
    EXPECT_LE(outer_iterations(group.kernels[0]), 1000) << rows;
    EXPECT_GE(outer_iterations(group.kernels[0]), std::min<std::int64_t>(rows / 4, 128)) << rows;
    EXPECT_GE(outer_iterations(group.kernels[1]), 8);  // blocks that share the columns
  }
}

/// exp(x - max) over its sum has the exponential in two walks; softmax by logsumexp another one in
/// each.
TEST(ScheduleCuda, ExponentialsThatTwoWalksNeedAreHeld) {
  for (const bool twice : {true, false}) {
    Model m;
    const ValId x = m.input("x", {4096, 4096});
    const ir::Extents shape{4096, 4096};
    if (twice) {
      const ValId e = m.b.exp(m.b.sub(x, m.b.broadcast(m.b.max(x, {1}), {0}, shape)));
      m.output(m.b.div(e, m.b.broadcast(m.b.sum(e, {1}), {0}, shape)));
    } else {
      m.output(m.b.softmax(x, 1));
    }
    const SegmentedFusion cut = m.cut();
    ir::Fusion fusion = cut.fusion();
    const SegmentedGroup group = cut.groups().at(0);
    const GroupLowering lowering(fusion, group, cut.plan(group.id), cut.in_place, cut.hints(), "k");
    EXPECT_EQ(lowering.space().expensive, twice);
    const LoweredGroup lowered = lowered_for_cuda(m, PlanKind::kRowNorm);
    int exponentials = 0;
    loop::walk(lowered.kernels.at(0).kernel.body, [&](const loop::Statement& statement, int) {
      const auto* compute = std::get_if<loop::Compute>(&statement.node);
      exponentials += compute != nullptr && compute->op == ir::Op::exp ? 1 : 0;
    });
    EXPECT_EQ(exponentials, twice ? 1 : 2);
  }
}

TEST(ScheduleCuda, RegistersAreKeptForAsManyBlocksAsFit) {
  for (const auto& [columns, blocks] : {std::pair<std::int64_t, int>{4096, 4}, {8192, 2}}) {
    Model m;
    const ValId x = m.input("x", {32768, columns});
    m.output(m.b.softmax(x, 1));
    const Schedule s = lowered_for_cuda(m, PlanKind::kRowNorm).kernels.at(0).kernel.schedule;
    EXPECT_GE(s.resident, blocks) << to_string(s);
    EXPECT_LE(s.resident * s.threads * s.rows_at_once, 1024) << to_string(s);
  }
}

}  // namespace
}  // namespace segfuse::compiler
