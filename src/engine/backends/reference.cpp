// The interpreter in double precision; results are rounded at the end.

#include <cstring>

#include "engine/backend.h"
#include "engine/exec/semicrf_ops.h"
#include "ir/interpret/interpreter.h"

namespace segfuse::engine {
namespace {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const BackendSetup& setup) : fusion_(setup.fusion) {}

  std::vector<Tensor> run(std::span<const Tensor> inputs) override {
    std::vector<Tensor> outputs =
        ir::interpret(fusion_, inputs, reference_opaque_ops(), {.outputs_as_f64 = false});
    for (const ir::Alias& alias : fusion_.aliases()) {
      std::size_t from = 0;
      std::size_t to = 0;
      while (fusion_.outputs()[from].val != alias.output) ++from;
      while (fusion_.inputs()[to].val != alias.input) ++to;
      Tensor target = inputs[to];
      if (!target.shares_storage_with(outputs[from]))
        std::memcpy(target.data(), outputs[from].data(), target.bytes());
    }
    return outputs;
  }

 private:
  const ir::Fusion& fusion_;
};

}  // namespace

BackendInfo reference_backend() {
  return {.name = "reference", .make = [](const BackendSetup& setup) -> std::unique_ptr<Backend> {
            return std::make_unique<ReferenceBackend>(setup);
          }};
}

}  // namespace segfuse::engine
