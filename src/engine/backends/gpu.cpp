// Kernels and library calls on a GPU: what "compiled" means where there is one.

#include "engine/backend.h"
#include "engine/device/device_program.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(const BackendSetup& setup)
      : program_(setup.fusion, setup.options.accelerator, setup.options.context,
                 PlanOptions{.measure = setup.options.profile,
                             .poison = setup.options.poison,
                             .tf32 = setup.options.tf32},
                 setup.options.excess_precision),
        check_numerics_(setup.options.check_numerics) {}

  std::vector<Tensor> run(std::span<const Tensor> inputs) override { return run(inputs, nullptr); }
  std::vector<Tensor> run_with(std::span<const Tensor> inputs, Milestones& milestones) override {
    return run(inputs, &milestones);
  }
  std::vector<std::size_t> order_of_writes() const override { return program_.order_of_writes(); }
  void check() override { program_.check(); }
  std::string look(std::span<const Tensor> inputs) override { return program_.look(inputs); }
  std::vector<StepTime> step_times() const override { return program_.step_times(); }

 private:
  std::vector<Tensor> run(std::span<const Tensor> inputs, Milestones* milestones) {
    if (check_numerics_)
      if (const std::string fault = program_.look(inputs); !fault.empty()) throw DataError(fault);
    return program_.run(inputs, {.milestones = milestones});
  }

  DeviceProgram program_;
  bool check_numerics_;
};

}  // namespace

BackendInfo gpu_backend() {
  return {.name = "compiled",
          .on_device = true,
          .checks_numerics = true,
          .make = [](const BackendSetup& setup) -> std::unique_ptr<Backend> {
            return std::make_unique<GpuBackend>(setup);
          }};
}

}  // namespace segfuse::engine
