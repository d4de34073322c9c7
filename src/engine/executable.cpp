#include "engine/executable.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/code/float_mode.h"
#include "engine/backend.h"
#include "engine/compiled/kernels.h"
#include "engine/device/accelerator.h"
#include "engine/plan/bad_index.h"
#include "runtime/cuda/cublas_lt.h"
#include "segfuse/error.h"

namespace segfuse::engine {
namespace {

bool on_device(const Tensor& input) { return input.device_memory() != nullptr; }

std::vector<Tensor> on_host(std::span<const Tensor> inputs) {
  std::vector<Tensor> copies;
  for (const Tensor& input : inputs) copies.push_back(input.to_host());
  return copies;
}

}  // namespace

struct Executable::State {
  State(ir::Fusion program, ThreadPool& pool, ExecutableOptions how)
      : fusion(std::move(program)),
        options(std::move(how)),
        info(find_backend(options.backend, options.accelerator != nullptr)) {
    if (options.check_numerics && !info.checks_numerics) {
      ir::Fusion looked_at = fusion;
      for (const ir::Alias& alias : fusion.aliases()) looked_at.remove_alias(alias.input);
      checker = std::make_unique<State>(std::move(looked_at), pool,
                                        ExecutableOptions{.backend = "loops",
                                                          .check_numerics = true,
                                                          .host = options.host,
                                                          .context = options.context});
    }
    backend = info.make({fusion, pool, options});
  }

  std::vector<Tensor> run(std::span<const Tensor> inputs, Milestones* milestones) {
    if (checker) (void)checker->run(on_host(inputs), nullptr);
    if (milestones != nullptr) milestones->over = nullptr;
    if (info.on_device && milestones != nullptr) return backend->run_with(inputs, *milestones);
    if (!info.on_device && std::ranges::any_of(inputs, on_device)) return run_on_copies(inputs);
    return run_there(inputs);
  }

  std::vector<Tensor> run_there(std::span<const Tensor> inputs) {
    try {
      return backend->run(inputs);
    } catch (const BadIndex& found) {
      explain(found, fusion, inputs);
    }
  }

  /// Operands come to the host, results and overwritten inputs go back to where they were.
  std::vector<Tensor> run_on_copies(std::span<const Tensor> inputs) {
    if (!options.accelerator)
      throw UsageError(
          fmt::format("an input is in the memory of {}, but the program runs on the CPU; copy it "
                      "to the host with to_host(), or choose that device",
                      std::ranges::find_if(inputs, on_device)->device_memory()->device()));
    const std::vector<Tensor> copies = on_host(inputs);
    std::vector<Tensor> outputs = run_there(copies);
    for (Tensor& output : outputs) {
      std::size_t shared = 0;
      while (shared < copies.size() && !output.shares_storage_with(copies[shared])) ++shared;
      output = shared < copies.size() ? inputs[shared] : options.accelerator->upload(output);
    }
    for (const ir::Alias& alias : fusion.aliases()) {
      std::size_t to = 0;
      while (fusion.inputs()[to].val != alias.input) ++to;
      if (on_device(inputs[to])) options.accelerator->upload_into(copies[to], inputs[to]);
    }
    return outputs;
  }

  ir::Fusion fusion;
  ExecutableOptions options;
  const BackendInfo& info;
  std::unique_ptr<State> checker;  ///< the same program in loops, looked at; nothing is kept of it
  std::unique_ptr<Backend> backend;
};

Executable::Executable(ir::Fusion fusion, ThreadPool& pool, ExecutableOptions options)
    : state_([&] {
        const FloatMode mode(Denormals::kKept);  // constants are folded
        return std::make_unique<State>(std::move(fusion), pool, std::move(options));
      }()) {}
Executable::~Executable() = default;
Executable::Executable(Executable&&) noexcept = default;
Executable& Executable::operator=(Executable&&) noexcept = default;

ExecutableOptions executable_options(const Context& context) {
  const Options& chosen = context.options();
  return {.backend = chosen.get(options::kBackend),
          .check_numerics = chosen.get(options::kCheckNumerics) == "op",
          .accelerator = open_accelerator(chosen.get(options::kDevice), context),
          .host = open_host(context),
          .context = context};
}

bool allows_tf32(std::string_view precision) {
  if (precision.empty() || precision == "float32") return false;
  if (precision == "tf32") return true;
  throw UsageError(
      fmt::format("found the precision '{}' for matrix products of float32, expected 'float32' or "
                  "'tf32'",
                  precision));
}

std::string device_matmul_library() { return runtime::cuda_matmul_library(); }

std::string cpu_compiler_name(std::string* reason) {
  const std::shared_ptr<jit::CpuCompiler> compiler = shared_cpu_compiler({}, reason);
  return compiler ? compiler->version() : "";
}

void Executable::check() { state_->backend->check(); }
std::string Executable::look(std::span<const Tensor> inputs) {
  return state_->backend->look(inputs);
}
std::vector<Tensor> Executable::run(std::span<const Tensor> inputs, Milestones* milestones) {
  const FloatMode mode(Denormals::kKept);
  return state_->run(inputs, milestones);
}
std::vector<std::size_t> Executable::order_of_writes() const {
  std::vector<std::size_t> order = state_->backend->order_of_writes();
  order.resize(state_->fusion.inputs().size(), 0);
  return order;
}
const ir::Fusion& Executable::fusion() const noexcept { return state_->fusion; }
std::vector<StepTime> Executable::step_times() const { return state_->backend->step_times(); }
std::size_t Executable::workspace_bytes() const noexcept {
  return state_->backend->workspace_bytes();
}

}  // namespace segfuse::engine
