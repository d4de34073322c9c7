#include "engine/compiled/kernels.h"

#include <filesystem>
#include <map>

#include "base/code/code_store.h"
#include "base/context/state.h"
#include "base/mutex.h"
#include "ir/bind.h"

namespace segfuse::engine {

std::shared_ptr<jit::CpuCompiler> shared_cpu_compiler(const Context& context, std::string* reason) {
  static Mutex mutex;
  static auto& shared = *new std::map<std::filesystem::path, std::weak_ptr<jit::CpuCompiler>>();
  const std::shared_ptr<const CodeStore>& store = context.state().code;
  const MutexLock lock(mutex);
  std::weak_ptr<jit::CpuCompiler>& slot = shared[store->folder()];
  std::shared_ptr<jit::CpuCompiler> compiler = slot.lock();
  if (!compiler) slot = compiler = jit::open_cpu_compiler(reason, {.store = store});
  return compiler;
}

CpuKernels::CpuKernels(ir::Fusion fusion, std::shared_ptr<jit::CpuCompiler> compiler,
                       bool excess_precision)
    : compiled_(std::move(fusion), {.excess_precision = excess_precision}),
      compiler_(std::move(compiler)),
      excess_precision_(excess_precision) {}

const CpuGroup& CpuKernels::code(const compiler::ScheduledGroup& scheduled) {
  const auto known = made_.find(&scheduled);
  if (known != made_.end()) return known->second;
  CpuGroup group{&scheduled, {}};
  for (const compiler::GroupKernel& kernel : scheduled.lowered.kernels) {
    CpuKernel ready;
    ready.kernel = &kernel;
    ready.code = compiler_->compile({kernel.kernel.name, compiled_.print(kernel.kernel)});
    ready.function = ready.code->function(kernel.kernel.name);
    ready.sizes = kernel.kernel.sizes();
    group.kernels.push_back(std::move(ready));
  }
  return made_.emplace(&scheduled, std::move(group)).first->second;
}

CpuKernels& CpuKernels::body(ir::ExprId id) {
  std::unique_ptr<CpuKernels>& known = bodies_[id];
  if (!known)
    known = std::make_unique<CpuKernels>(*fusion().attr<ir::Body>(id, "body").fusion, compiler_,
                                         excess_precision_);
  return *known;
}

std::vector<const CpuGroup*> CpuKernels::prepare(std::span<const Shape> inputs, ir::Sizes& sizes) {
  sizes = ir::bind(fusion(), inputs);
  std::vector<const CpuGroup*> all(compiled_.groups().size(), nullptr);
  for (const compiler::SegmentedGroup& group : compiled_.groups())
    if (compiled_.has_kernels(group.id))
      all[group.id.index] = &code(compiled_.lower(group.id, sizes));
  sizes = ir::bind(fusion(), inputs);  // kernels may need sizes that follow from others
  return all;
}

}  // namespace segfuse::engine
