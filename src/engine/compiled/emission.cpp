#include "engine/compiled/emission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::SegmentedGroup;
using compiler::Space;
using compiler::SpaceAxis;

void Emission::each(const std::function<void(EmittedGroup&)>& visit) {
  for (const SegmentedGroup& group : compiled_.groups()) {
    EmittedGroup emitted{group, segmented().domain(group.id).kind, nullptr, {}, {}};
    if (compiled_.has_kernels(group.id)) {
      const compiler::ScheduledGroup& scheduled = compiled_.lower(group.id);
      emitted.space = &compiled_.space(group.id);
      emitted.schedule = scheduled.schedule;
      emitted.lowered = scheduled.lowered;
      for (GroupKernel& kernel : emitted.lowered.kernels) compiled_.fit(kernel.kernel);
    }
    visit(emitted);
  }
}

std::string Emission::operands(const GroupKernel& kernel) const {
  std::vector<std::string> names;
  std::size_t next = 0;
  for (const auto& buffer : kernel.kernel.buffers) {
    if (buffer.kind == compiler::loop::KernelBuffer::Kind::kRow) continue;
    const compiler::Operand& operand = kernel.operands[next++];
    names.push_back(fmt::format(
        "{} = {}", buffer.name,
        operand.val.valid() ? name(operand.val) : fmt::format("workspace {}", operand.workspace)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string Emission::name(ir::ValId val) const {
  for (const ir::Input& input : fusion().inputs())
    if (input.val == val) return fmt::format("'{}'", input.name);
  for (const ir::Output& output : fusion().outputs())
    if (output.val == val && !output.name.empty()) return fmt::format("'{}'", output.name);
  return fmt::format("%{}", val.index);
}

std::string Emission::describe(const Space& space) const {
  static constexpr const char* kRoles[] = {"", " reduced", " column"};
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < space.axes.size(); ++i)
    axes.push_back(fusion().to_string(space.axes[i].extent) +
                   kRoles[static_cast<int>(space.axes[i].role)] +
                   (static_cast<int>(i) == space.inner ? " innermost" : ""));
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

}  // namespace segfuse::engine
