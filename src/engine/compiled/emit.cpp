#include "engine/compiled/emit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

#include "compiler/codegen/cpu/print_c.h"
#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/passes/pass.h"
#include "compiler/schedule/choose.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::LoweredGroup;
using compiler::PlanKind;
using compiler::SegmentedGroup;
using compiler::Space;
using compiler::SpaceAxis;

namespace {

struct EmittedGroup {
  const SegmentedGroup& group;
  PlanKind kind;
  const Space* space = nullptr;  ///< nothing for views and library calls
  compiler::Schedule schedule;
  LoweredGroup lowered;
};

class Emission {
 public:
  Emission(const ir::Fusion& source, const EmitFor& how)
      : target_(how.target), segmented_(cut(source, how.sizes)), fusion_(segmented_.fusion()) {}

  void each(const std::function<void(const EmittedGroup&)>& visit) {
    for (const SegmentedGroup& group : segmented_.groups()) {
      const compiler::GroupPlan& plan = segmented_.plan(group.id);
      EmittedGroup emitted{group, plan.kind, nullptr, {}, {}};
      if (plan.kind == PlanKind::kView || plan.kind == PlanKind::kLibrary) {
        visit(emitted);
        continue;
      }
      const compiler::GroupLowering lowering(fusion_, group, plan, segmented_.in_place,
                                             segmented_.hints(),
                                             compiler::function_name(plan.kind));
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
          compiler::cuda::fit_to_sizes(
              kernel.kernel, [&](const ir::Extent& size) { return sizes.value_of(size); });
      }
      visit(emitted);
    }
  }

  const ir::Fusion& fusion() const { return fusion_; }

  /// "b0 = 'x', b1 = %7, w2 = workspace 0"
  std::string operands(const GroupKernel& kernel) const {
    std::vector<std::string> names;
    std::size_t next = 0;
    for (const auto& buffer : kernel.kernel.buffers) {
      if (buffer.kind == compiler::loop::Buffer::Kind::kRow) continue;
      const compiler::Operand& operand = kernel.operands[next++];
      names.push_back(fmt::format("{} = {}", buffer.name,
                                  operand.val.valid()
                                      ? name(operand.val)
                                      : fmt::format("workspace {}", operand.workspace)));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

 private:
  static compiler::SegmentedFusion cut(ir::Fusion fusion, const compiler::SizeHints& sizes) {
    compiler::run_passes(fusion);
    return compiler::segment(std::move(fusion), {.hints = sizes});
  }

  std::string name(ir::ValId val) const {
    for (const ir::Input& input : fusion_.inputs())
      if (input.val == val) return fmt::format("'{}'", input.name);
    for (const ir::Output& output : fusion_.outputs())
      if (output.val == val && !output.name.empty()) return fmt::format("'{}'", output.name);
    return fmt::format("%{}", val.index);
  }

  compiler::Target target_;
  compiler::SegmentedFusion segmented_;
  ir::Fusion fusion_;
};

std::string describe(const Emission& emission, const Space& space) {
  static constexpr const char* kRoles[] = {"", " reduced", " column"};
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < space.axes.size(); ++i)
    axes.push_back(emission.fusion().to_string(space.axes[i].extent) +
                   kRoles[static_cast<int>(space.axes[i].role)] +
                   (static_cast<int>(i) == space.inner ? " innermost" : ""));
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

std::string emit(const ir::Fusion& fusion, const EmitFor& how,
                 const std::function<std::string(const GroupKernel&)>& text) {
  Emission emission(fusion, how);
  std::string all;
  emission.each([&](const EmittedGroup& group) {
    for (const GroupKernel& kernel : group.lowered.kernels) {
      if (!all.empty()) all += '\n';
      all += text(kernel);
    }
  });
  return all;
}

}  // namespace

std::string describe_plan(const ir::Fusion& fusion, const EmitFor& how) {
  Emission emission(fusion, how);
  std::string text;
  emission.each([&](const EmittedGroup& group) {
    text += fmt::format("group {}: {} of {} operations\n", group.group.id.index,
                        compiler::name_of(group.kind), group.group.exprs.size());
    if (!group.space) return;
    text += fmt::format("  space {}\n  schedule {}\n", describe(emission, *group.space),
                        to_string(group.schedule));
    for (const GroupKernel& kernel : group.lowered.kernels)
      text += fmt::format("  kernel {} x {}: {}\n", kernel.kernel.name,
                          emission.fusion().to_string(kernel.kernel.outer_count),
                          emission.operands(kernel));
    for (std::size_t i = 0; i < group.lowered.workspaces.size(); ++i)
      text += fmt::format("  workspace {}: {}[{}]\n", i, name_of(group.lowered.workspaces[i].dtype),
                          emission.fusion().to_string(group.lowered.workspaces[i].elements));
  });
  return text;
}

std::string print_loops(const ir::Fusion& fusion, const EmitFor& how) {
  return emit(fusion, how,
              [](const GroupKernel& kernel) { return compiler::loop::print(kernel.kernel); });
}

std::string print_kernels(const ir::Fusion& fusion, const EmitFor& how) {
  return emit(fusion, how, [&](const GroupKernel& kernel) {
    return how.target == compiler::Target::kCuda ? compiler::cuda::print_cuda(kernel.kernel)
                                                 : compiler::cpu::print_c(kernel.kernel);
  });
}

}  // namespace segfuse::engine
