#include "engine/compiled/kernels.h"

#include <mutex>

#include "compiler/codegen/cpu/print_c.h"
#include "compiler/passes/pass.h"
#include "compiler/schedule/choose.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::engine {

std::shared_ptr<jit::CpuCompiler> shared_cpu_compiler(std::string* reason) {
  static std::mutex mutex;
  static std::weak_ptr<jit::CpuCompiler> shared;
  const std::lock_guard lock(mutex);
  std::shared_ptr<jit::CpuCompiler> compiler = shared.lock();
  if (!compiler) shared = compiler = jit::open_cpu_compiler(reason);
  return compiler;
}

struct CompiledFusion::Lowering {
  Lowering(ir::Fusion& fusion, const compiler::SegmentedGroup& group,
           const compiler::SegmentedFusion& segmented, std::string name, bool excess_precision)
      : lowering(fusion, group, segmented.plan(group.id), segmented.in_place, segmented.hints(),
                 std::move(name), excess_precision) {}
  compiler::GroupLowering lowering;
  std::map<compiler::Schedule, GroupCode> codes;
};

namespace {

compiler::SegmentedFusion cut(ir::Fusion fusion) {
  compiler::run_passes(fusion);
  return compiler::segment(std::move(fusion));
}

}  // namespace

CompiledFusion::CompiledFusion(ir::Fusion fusion, std::shared_ptr<jit::CpuCompiler> compiler,
                               bool excess_precision)
    : excess_precision_(excess_precision),
      segmented_(cut(std::move(fusion))),
      groups_(segmented_.groups()),
      fusion_(segmented_.fusion()),
      compiler_(std::move(compiler)),
      lowerings_(groups_.size()) {}
CompiledFusion::~CompiledFusion() = default;

const GroupCode& CompiledFusion::code(compiler::GroupId group, const ir::Sizes& sizes) {
  auto& made = lowerings_.at(group.index);
  if (!made)
    made = std::make_unique<Lowering>(fusion_, groups_[group.index], segmented_,
                                      compiler::function_name(segmented_.plan(group).kind),
                                      excess_precision_);
  const compiler::Space& space = made->lowering.space();
  std::vector<std::int64_t> lengths;
  for (const compiler::SpaceAxis& axis : space.axes) lengths.push_back(sizes.of(axis.extent));
  const compiler::Schedule schedule = compiler::choose_cpu(space, lengths);
  const auto known = made->codes.find(schedule);
  if (known != made->codes.end()) return known->second;
  compiler::LoweredGroup lowered = made->lowering.lower(schedule);
  GroupCode code{schedule, {}, std::move(lowered.workspaces)};
  for (compiler::GroupKernel& kernel : lowered.kernels) {
    KernelCode ready;
    ready.code = compiler_->compile({kernel.kernel.name, compiler::cpu::print_c(kernel.kernel)});
    ready.function = ready.code->function(kernel.kernel.name);
    ready.sizes = kernel.kernel.sizes();
    ready.kernel = std::move(kernel);
    code.kernels.push_back(std::move(ready));
  }
  return made->codes.emplace(schedule, std::move(code)).first->second;
}

}  // namespace segfuse::engine
