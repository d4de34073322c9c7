#include "engine/numerics/subject.h"

#include "base/thread_pool.h"
#include "engine/backend.h"
#include "engine/device/accelerator.h"
#include "segfuse/options.h"

namespace segfuse::engine::numerics {

Subject cpu_subject(std::string backend) {
  return [backend = std::move(backend)](const ir::Fusion& fusion, std::span<const Tensor> inputs,
                                        const Trial& trial) {
    ThreadPool pool(trial.threads);
    return Executable(fusion, pool,
                      {.backend = backend, .poison = trial.poison, .host = open_host()})
        .run(inputs);
  };
}

Subject device_subject(std::shared_ptr<Accelerator> accelerator) {
  return [accelerator = std::move(accelerator)](
             const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial) {
    ThreadPool pool(1);
    return Executable(fusion, pool, {.poison = trial.poison, .accelerator = accelerator})
        .run(inputs);
  };
}

Place place_of(std::string backend, std::string device) {
  const Options defaults = default_options();
  if (backend.empty()) backend = defaults.get(options::kBackend);
  if (device.empty()) device = defaults.get(options::kDevice);
  std::shared_ptr<Accelerator> accelerator = open_accelerator(device);
  if (!find_backend(backend, accelerator != nullptr).on_device)
    return {.subject = cpu_subject(std::move(backend))};
  std::string name = accelerator->name();
  return {.subject = device_subject(std::move(accelerator)),
          .functions = Functions::kDevice,
          .products = device_matmul_library(),
          .device = std::move(name)};
}

}  // namespace segfuse::engine::numerics
