// Machine code for everything but library calls; loops where there is no compiler.

#include <mutex>

#include "base/console/log.h"
#include "engine/backend.h"
#include "engine/compiled/kernels.h"
#include "engine/exec/cpu_program.h"

namespace segfuse::engine {
namespace {

/// Slower, and the same results: said once a process.
void say_loops(const std::string& reason) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log(LogLevel::kWarning, "compiled functions run on built-in loops, which are slower: {}",
        reason);
  });
}

std::unique_ptr<Backend> make_compiled(const BackendSetup& setup) {
  std::string reason;
  std::shared_ptr<jit::CpuCompiler> compiler = shared_cpu_compiler(setup.options.context, &reason);
  if (!compiler) {
    say_loops(reason);
    return find_backend("loops").make(setup);
  }
  const auto planner = [kernels = std::make_shared<CpuKernels>(setup.fusion, std::move(compiler),
                                                               setup.options.excess_precision)](
                           std::span<const Tensor> inputs, const CpuContext& context,
                           const CpuPlanOptions& options) {
    std::vector<Shape> shapes;
    for (const Tensor& input : inputs) shapes.push_back(input.shape());
    return make_plan(*kernels, shapes, context, options);
  };
  return std::make_unique<CpuProgram>(setup, planner);
}

}  // namespace

BackendInfo compiled_backend() { return {.name = "compiled", .make = make_compiled}; }

}  // namespace segfuse::engine
