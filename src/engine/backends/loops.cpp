// Built-in loops: for machines without a compiler, and for looking at each operation by itself.

#include "engine/backend.h"
#include "engine/exec/cpu_program.h"
#include "engine/exec/step_check.h"
#include "ir/bind.h"

namespace segfuse::engine {
namespace {

std::unique_ptr<Backend> make_loops(const BackendSetup& setup) {
  const bool checks = setup.options.check_numerics;
  const auto planner = [&fusion = setup.fusion, groups = make_groups(setup.fusion, !checks)](
                           std::span<const Tensor> inputs, const CpuContext& context,
                           const CpuPlanOptions& options) {
    return make_plan(fusion, groups, ir::bind_inputs(fusion, inputs), context, options);
  };
  return std::make_unique<CpuProgram>(setup, planner,
                                      checks ? check_steps(setup.fusion) : StepCheck{});
}

}  // namespace

BackendInfo loops_backend() {
  return {.name = "loops", .checks_numerics = true, .make = make_loops};
}

}  // namespace segfuse::engine
