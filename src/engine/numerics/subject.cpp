#include "engine/numerics/subject.h"

#include "base/thread_pool.h"
#include "engine/backend.h"
#include "engine/device/accelerator.h"

namespace segfuse::engine::numerics {

Subject cpu_subject(std::string backend, const Context& context) {
  return [backend = std::move(backend), context](
             const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial) {
    ThreadPool pool(trial.threads);
    return Executable(fusion, pool,
                      {.backend = backend,
                       .poison = trial.poison,
                       .host = open_host(context),
                       .context = context})
        .run(inputs);
  };
}

Subject device_subject(std::shared_ptr<Accelerator> accelerator, const Context& context) {
  return [accelerator = std::move(accelerator), context](
             const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial) {
    ThreadPool pool(1);
    return Executable(fusion, pool,
                      {.poison = trial.poison, .accelerator = accelerator, .context = context})
        .run(inputs);
  };
}

Place place_of(const Context& context) {
  const ExecutableOptions how = executable_options(context);
  const std::shared_ptr<Accelerator>& accelerator = how.accelerator;
  if (!find_backend(how.backend, accelerator != nullptr).on_device)
    return {.subject = cpu_subject(how.backend, context)};
  std::string name = accelerator->name();
  return {.subject = device_subject(accelerator, context),
          .functions = Functions::kDevice,
          .products = device_matmul_library(),
          .device = std::move(name)};
}

}  // namespace segfuse::engine::numerics
