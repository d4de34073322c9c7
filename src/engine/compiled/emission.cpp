#include "engine/compiled/emission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/passes/pass.h"
#include "compiler/schedule/choose.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::PlanKind;
using compiler::SegmentedGroup;
using compiler::Space;
using compiler::SpaceAxis;

namespace {

compiler::SegmentedFusion cut(ir::Fusion fusion, const compiler::SizeHints& sizes) {
  compiler::run_passes(fusion);
  return compiler::segment(std::move(fusion), {.hints = sizes});
}

}  // namespace

Emission::Emission(const ir::Fusion& source, const EmitFor& how)
    : target_(how.target),
      excess_precision_(how.excess_precision),
      segmented_(cut(source, how.sizes)),
      fusion_(segmented_.fusion()) {}

void Emission::each(const std::function<void(EmittedGroup&)>& visit) {
  for (const SegmentedGroup& group : segmented_.groups()) {
    const compiler::GroupPlan& plan = segmented_.plan(group.id);
    EmittedGroup emitted{group, plan.kind, nullptr, {}, {}};
    if (plan.kind == PlanKind::kView || plan.kind == PlanKind::kLibrary) {
      visit(emitted);
      continue;
    }
    const compiler::GroupLowering lowering(fusion_, group, plan, segmented_.in_place,
                                           segmented_.hints(), compiler::function_name(plan.kind),
                                           excess_precision_);
    std::vector<std::int64_t> lengths;
    for (const SpaceAxis& axis : lowering.space().axes) lengths.push_back(axis.hint);
    emitted.space = &lowering.space();
    const auto choose =
        target_ == compiler::Target::kCuda ? compiler::choose_cuda : compiler::choose_cpu;
    emitted.schedule = choose(lowering.space(), lengths);
    emitted.lowered = lowering.lower(emitted.schedule);
    if (target_ == compiler::Target::kCuda) {
      const compiler::SegmentContext sizes(fusion_, segmented_.hints());
      for (GroupKernel& kernel : emitted.lowered.kernels)
        compiler::cuda::fit_to_sizes(kernel.kernel,
                                     [&](const ir::Extent& size) { return sizes.value_of(size); });
    }
    visit(emitted);
  }
}

std::string Emission::operands(const GroupKernel& kernel) const {
  std::vector<std::string> names;
  std::size_t next = 0;
  for (const auto& buffer : kernel.kernel.buffers) {
    if (buffer.kind == compiler::loop::Buffer::Kind::kRow) continue;
    const compiler::Operand& operand = kernel.operands[next++];
    names.push_back(fmt::format(
        "{} = {}", buffer.name,
        operand.val.valid() ? name(operand.val) : fmt::format("workspace {}", operand.workspace)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string Emission::name(ir::ValId val) const {
  for (const ir::Input& input : fusion_.inputs())
    if (input.val == val) return fmt::format("'{}'", input.name);
  for (const ir::Output& output : fusion_.outputs())
    if (output.val == val && !output.name.empty()) return fmt::format("'{}'", output.name);
  return fmt::format("%{}", val.index);
}

std::string Emission::describe(const Space& space) const {
  static constexpr const char* kRoles[] = {"", " reduced", " column"};
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < space.axes.size(); ++i)
    axes.push_back(fusion_.to_string(space.axes[i].extent) +
                   kRoles[static_cast<int>(space.axes[i].role)] +
                   (static_cast<int>(i) == space.inner ? " innermost" : ""));
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

}  // namespace segfuse::engine
