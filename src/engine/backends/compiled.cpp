// Machine code for everything but library calls; loops where there is no compiler.

#include "engine/backend.h"
#include "engine/compiled/kernels.h"
#include "engine/exec/cpu_program.h"

namespace segfuse::engine {
namespace {

std::unique_ptr<Backend> make(const BackendSetup& setup) {
  std::shared_ptr<jit::CpuCompiler> compiler = shared_cpu_compiler(setup.options.context);
  if (!compiler) return find_backend("loops").make(setup);
  const auto planner = [kernels = std::make_shared<CpuKernels>(setup.fusion, std::move(compiler),
                                                               setup.options.excess_precision)](
                           std::span<const Tensor> inputs, const CpuContext& context,
                           const CpuPlanOptions& options) {
    return make_plan(*kernels, inputs, context, options);
  };
  return std::make_unique<CpuProgram>(setup, planner);
}

}  // namespace

BackendInfo compiled_backend() { return {.name = "compiled", .make = make}; }

}  // namespace segfuse::engine
