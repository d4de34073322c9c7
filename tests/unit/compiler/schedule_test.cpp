// Schedules keep a device busy whatever the form of a reduction.

#include <gtest/gtest.h>

#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/schedule/choose.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

/// The kernels of the group of this kind, by the schedule for its own lengths on a GPU.
LoweredGroup lowered_for_cuda(const Model& model, GroupKind kind) {
  const SegmentedFusion cut = model.cut();
  ir::Fusion fusion = cut.fusion();
  for (const SegmentedGroup& group : cut.groups()) {
    if (cut.domain(group.id).kind != kind) continue;
    const GroupLowering lowering(fusion, group, cut.domain(group.id), cut.in_place, cut.hints(),
                                 "k");
    std::vector<std::int64_t> lengths;
    for (const SpaceAxis& axis : lowering.space().axes) lengths.push_back(axis.hint);
    return lowering.lower(choose_cuda(lowering.space(), lengths));
  }
  return {};
}

std::int64_t outer_iterations(const GroupKernel& kernel) {
  return kernel.kernel.outer_count.evaluate([](ir::SymbolId) { return std::int64_t{0}; });
}

/// Matrices that are turned in batches, of sizes that are numbers: positions are quotients and
/// rests of what the axes that became one count.
TEST(ScheduleCuda, AttentionOfNumbersHasKernels) {
  const std::vector<std::vector<std::int64_t>> orders{{0, 1, 3, 2}, {3, 2, 1, 0}, {1, 0, 3, 2}};
  for (const auto& order : orders) {
    Model m;
    const Extents shape{4, 16, 2048, 64};
    const ValId k = m.input("k", shape);
    m.output(m.b.reshape(m.b.permute(k, order), {64, 2048 * 64}));
    const ValId joined = m.b.reshape(m.input("q", shape), {64, 2048, 64});
    m.output(m.b.exp(m.b.permute(joined, {0, 2, 1})));
    m.output(m.b.exp(m.b.permute(m.b.reshape(k, {64, 2048, 16, 4}), {0, 2, 1, 3})));
    m.output(m.b.permute(m.b.mul(k, m.b.constant(2.0, DType::kF32)), order));
    const SegmentedFusion cut = m.cut();
    ir::Fusion fusion = cut.fusion();
    int made = 0;
    for (const SegmentedGroup& group : cut.groups()) {
      const IterationDomain& domain = cut.domain(group.id);
      if (domain.kind == GroupKind::kView || domain.kind == GroupKind::kLibrary) continue;
      const GroupLowering lowering(fusion, group, domain, cut.in_place, cut.hints(), "k");
      std::vector<std::int64_t> lengths;
      for (const SpaceAxis& axis : lowering.space().axes) lengths.push_back(axis.hint);
      const LoweredGroup lowered = lowering.lower(choose_cuda(lowering.space(), lengths));
      for (const GroupKernel& kernel : lowered.kernels)
        made += !cuda::print_cuda(kernel.kernel).empty();
    }
    EXPECT_GE(made, 3);
  }
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
    const LoweredGroup group = lowered_for_cuda(m, GroupKind::kReduce);
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
    const LoweredGroup group = lowered_for_cuda(m, GroupKind::kRowCol);
    const std::int64_t chunks = outer_iterations(group.kernels[0]);
    EXPECT_LE(chunks, 1024) << rows;
    EXPECT_GE(chunks, std::min<std::int64_t>(rows / 4, 128)) << rows;
    const std::int64_t columns = outer_iterations(group.kernels.back());
    EXPECT_GE(columns, 8);  // blocks that share the columns
    // Where there are many chunks, a kernel between makes a few of them.
    ASSERT_EQ(group.kernels.size(), chunks > 512 ? 3U : 2U) << rows;
    if (chunks > 512) {
      EXPECT_LE(outer_iterations(group.kernels[1]) / columns, 64) << rows;
    }
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
    const GroupLowering lowering(fusion, group, cut.domain(group.id), cut.in_place, cut.hints(),
                                 "k");
    EXPECT_EQ(lowering.space().expensive, twice);
    const LoweredGroup lowered = lowered_for_cuda(m, GroupKind::kRowNorm);
    int exponentials = 0;
    loop::walk(lowered.kernels.at(0).kernel.body, [&](const loop::Statement& statement, int) {
      const auto* compute = std::get_if<loop::Compute>(&statement.node);
      exponentials += compute != nullptr && compute->op == ir::Op::exp ? 1 : 0;
    });
    EXPECT_EQ(exponentials, twice ? 1 : 2);
  }
}

/// However long rows are, what a block shares has room.
TEST(ScheduleCuda, StatesOfColumnsThatFitNowhereAreInMemory) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t columns : {4096, 8192, 12'000, 16'384, 25'600, 50'257, 152'064}) {
      Model m;
      const ValId x = m.b.cast(m.input("x", {512, columns}, dtype), DType::kF32);
      const ValId scale = m.input("scale", {columns});
      m.wrt = {x, scale, m.input("shift", {columns})};
      m.backward(m.b.layer_norm(x, scale, m.wrt[2]));
      for (const GroupKernel& kernel : lowered_for_cuda(m, GroupKind::kRowCol).kernels) {
        const std::size_t bytes =
            cuda::cuda_launch(kernel.kernel).shared_bytes([](const ir::Extent& size) {
              return size.evaluate([](ir::SymbolId) { return 0; });
            });
        EXPECT_LE(bytes, 100U * 1024) << columns << ": " << to_string(kernel.kernel.schedule);
      }
    }
}

/// Sums of a norm's gradients wait for the mean, not for the deviation, which is a factor of them.
TEST(Phases, OfNormsAndTheirGradients) {
  const auto phases = [](const Model& model, GroupKind kind) {
    const SegmentedFusion cut = model.cut();
    ir::Fusion fusion = cut.fusion();
    for (const SegmentedGroup& group : cut.groups())
      if (cut.domain(group.id).kind == kind)
        return GroupLowering(fusion, group, cut.domain(group.id), cut.in_place, cut.hints(), "k")
            .space()
            .phases;
    return 0;
  };
  for (const bool gradients : {false, true}) {
    Model layer, rms;
    const ValId y = layer_norm_layer(layer);
    const ValId z = rms_norm_layer(rms);
    gradients ? layer.backward(y) : layer.output(y);
    gradients ? rms.backward(z) : rms.output(z);
    const GroupKind kind = gradients ? GroupKind::kRowCol : GroupKind::kRowNorm;
    EXPECT_EQ(phases(layer, kind), 3);
    EXPECT_EQ(phases(rms, kind), 2);
  }
}

/// Sums that nothing waits for are taken where what they need is loaded anyway: the first walk of a
/// layer norm's gradients adds up the row alone, but all that is held is on its way by then.
TEST(Phases, SumsWaitForTheWalkThatLoadsWhatTheyNeed) {
  Model m;
  m.backward(layer_norm_layer(m));
  const LoweredGroup group = lowered_for_cuda(m, GroupKind::kRowCol);
  const loop::Kernel& kernel = group.kernels.at(0).kernel;
  std::vector<std::pair<int, int>> walks;  // loads of inputs, sums
  loop::walk(kernel.body, [&](const loop::Statement& statement, int) {
    const auto* lanes = std::get_if<loop::For>(&statement.node);
    if (lanes == nullptr || lanes->kind != loop::For::Kind::kLane) return;
    std::pair<int, int> seen;
    for (const loop::Statement& inner : lanes->body) {
      const auto* load = std::get_if<loop::Load>(&inner.node);
      seen.first +=
          load != nullptr && kernel.buffer(load->buffer).kind == loop::KernelBuffer::Kind::kInput;
      seen.second += std::holds_alternative<loop::Accumulate>(inner.node);
    }
    if (seen.second > 0) walks.push_back(seen);
  });
  // x and g for the sum of x; the scale for deviations, their squares and two sums with g.
  EXPECT_EQ(walks, (std::vector<std::pair<int, int>>{{2, 1}, {1, 4}}));
}

TEST(ScheduleCuda, RegistersAreKeptForAsManyBlocksAsFit) {
  for (const auto& [columns, blocks] : {std::pair<std::int64_t, int>{4096, 4}, {8192, 2}}) {
    Model m;
    const ValId x = m.input("x", {32768, columns});
    m.output(m.b.softmax(x, 1));
    const Schedule s = lowered_for_cuda(m, GroupKind::kRowNorm).kernels.at(0).kernel.schedule;
    EXPECT_GE(s.resident, blocks) << to_string(s);
    EXPECT_LE(s.resident * s.threads * s.rows_at_once, 1024) << to_string(s);
  }
}

}  // namespace
}  // namespace segfuse::compiler
