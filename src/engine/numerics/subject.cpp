#include "engine/numerics/subject.h"

#include "base/thread_pool.h"

namespace segfuse::engine::numerics {

Subject cpu_subject(Backend backend) {
  return [backend](const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial) {
    ThreadPool pool(trial.threads);
    return Executable(fusion, pool, {.backend = backend, .poison = trial.poison}).run(inputs);
  };
}

}  // namespace segfuse::engine::numerics
