#include "engine/compiled/emit.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>

#include "base/code/made_kernels.h"
#include "engine/compiled/emission.h"
#include "engine/compiled/kernels.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using compiler::GroupKernel;

namespace {

std::string emit(const ir::Fusion& fusion, const compiler::CompileOptions& how,
                 const std::function<std::string(const Emission&, const GroupKernel&)>& text) {
  Emission emission(fusion, how);
  std::string all;
  emission.each([&](EmittedGroup& group) {
    for (const GroupKernel& kernel : group.lowered.kernels) {
      if (!all.empty()) all += '\n';
      all += text(emission, kernel);
    }
  });
  return all;
}

}  // namespace

std::string describe_plan(const ir::Fusion& fusion, const compiler::CompileOptions& how) {
  Emission emission(fusion, how);
  std::string text;
  emission.each([&](EmittedGroup& group) {
    text += fmt::format("group {}: {} of {} operations\n", group.group.id.index,
                        compiler::name_of(group.kind), group.group.exprs.size());
    if (!group.space) return;
    text += fmt::format("  space {}\n  schedule {}\n", emission.describe(*group.space),
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

std::string print_loops(const ir::Fusion& fusion, const compiler::CompileOptions& how) {
  return emit(fusion, how, [](const Emission&, const GroupKernel& kernel) {
    return compiler::loop::print(kernel.kernel);
  });
}

std::string print_kernels(const ir::Fusion& fusion, const compiler::CompileOptions& how) {
  return emit(fusion, how, [](const Emission& emission, const GroupKernel& kernel) {
    return emission.text(kernel);
  });
}

CudaUnit print_cuda_unit(const ir::Fusion& fusion, const compiler::CompileOptions& how) {
  Emission emission(fusion, how);
  std::map<std::string, int> same;
  CudaUnit unit;
  emission.each([&](EmittedGroup& group) {
    for (GroupKernel& kernel : group.lowered.kernels) {
      std::string& name = unit.names[emission.text(kernel)];
      if (!name.empty()) continue;
      const int number = ++same[kernel.kernel.name];
      if (number > 1) kernel.kernel.name += fmt::format("_of_{}", number);
      name = kernel.kernel.name;
      unit.text +=
          fmt::format("namespace unit_{} {{\n{}}}\n\n", unit.names.size(), emission.text(kernel));
    }
  });
  return unit;
}

runtime::cuda::Compiled compile_kernels(const ir::Fusion& fusion,
                                        const compiler::CompileOptions& how,
                                        std::string_view architecture) {
  const std::string text = print_cuda_unit(fusion, how).text;
  if (text.empty())
    throw UsageError(
        fmt::format("'{}' has no kernels of its own, so there is no machine code", fusion.name()));
  return runtime::cuda::compile_cubin(fusion.name(), text, {}, architecture);
}

void make_cpu_kernels(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                      const Context& context) {
  std::string reason;
  const std::shared_ptr<jit::CpuCompiler> made_by = shared_cpu_compiler(context, &reason);
  if (!made_by) throw DeviceError(fmt::format("there is no compiler for the CPU: {}", reason));
  Emission emission(fusion, {.hints = sizes});
  emission.each([&](EmittedGroup& group) {
    for (const GroupKernel& kernel : group.lowered.kernels)
      static_cast<void>(made_by->compile({kernel.kernel.name, emission.text(kernel)}));
  });
}

void make_cuda_kernels(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                       std::string_view architecture) {
  std::set<std::string> made;
  Emission emission(fusion, {.target = compiler::Target::kCuda, .hints = sizes});
  emission.each([&](EmittedGroup& group) {
    for (const GroupKernel& kernel : group.lowered.kernels) {
      const std::string& name = kernel.kernel.name;
      const std::string text = emission.text(kernel);
      if (!made.insert(text).second) continue;
      tell_kernels({MadeKernels::Language::kCuda,
                    name,
                    text,
                    {},
                    std::string(architecture),
                    runtime::cuda::compile_cubin(name, text, {}, architecture).cubin});
    }
  });
}

compiler::cpu::CProgram print_program(const ir::Fusion& fusion, const compiler::CompileOptions& how,
                                      std::string_view name) {
  compiler::CompileOptions plain = how;
  plain.attention_written_out = true;  // no library is there
  Emission emission(fusion, plain);
  std::vector<compiler::cpu::ProgramGroup> groups;
  emission.each([&](EmittedGroup& group) {
    groups.push_back({group.group, group.kind, std::move(group.lowered)});
  });
  return compiler::cpu::print_program(fusion, emission.fusion(), groups,
                                      emission.segmented().in_place, name);
}

}  // namespace segfuse::engine
