#include "engine/device/device_kernels.h"

#include <atomic>
#include <exception>
#include <string_view>
#include <thread>

#include "ir/bind.h"

namespace segfuse::engine {

using compiler::SegmentedGroup;

/// A kernel to be compiled.
struct DeviceKernels::Pending {
  std::shared_ptr<DeviceKernel> kernel;
  runtime::GpuProgram program;
  std::exception_ptr error;
};

DeviceKernels::DeviceKernels(ir::Fusion fusion, std::shared_ptr<runtime::KernelLoader> loader,
                             bool excess_precision, std::shared_ptr<const CodeStore> store)
    : compiled_(std::move(fusion),
                {.target = compiler::Target::kCuda, .excess_precision = excess_precision}),
      loader_(std::move(loader)),
      store_(std::move(store)),
      excess_precision_(excess_precision) {}

DeviceKernels& DeviceKernels::body(ir::ExprId id) {
  std::unique_ptr<DeviceKernels>& known = bodies_[id];
  if (!known)
    known = std::make_unique<DeviceKernels>(*fusion().attr<ir::Body>(id, "body").fusion, loader_,
                                            excess_precision_, store_);
  return *known;
}

/// On as many threads as the machine has: each text takes the compiler about a fifth of a second.
/// Of equal texts one is compiled, and the others find it.
void DeviceKernels::compile(std::vector<Pending>& pending) {
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::size_t> texts;
  for (std::size_t i = 0; i < pending.size(); ++i)
    if (seen.emplace(pending[i].program.source, i).second) texts.push_back(i);
  const auto find = [&](Pending& one) {
    compiler::loop::Kernel& kernel = one.kernel->kernel.kernel;
    one.kernel->code = loader_->kernel(one.program, kernel.name);
    std::size_t local = loader_->local_bytes(one.kernel->code);
    // The guess at registers was too low for this one. A frame that stays has other reasons.
    for (compiler::loop::Kernel other = kernel; local > 0 && spare_registers(other.schedule);) {
      runtime::GpuProgram program = one.program;
      program.source = compiled_.print(other);
      const runtime::GpuKernel code = loader_->kernel(program, kernel.name);
      const std::size_t bytes = loader_->local_bytes(code);
      if (bytes >= local) break;
      local = bytes;
      kernel.schedule = other.schedule;
      one.program = std::move(program);
      one.kernel->code = code;
    }
  };
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < texts.size(); i = next++) try {
        find(pending[texts[i]]);
      } catch (...) {
        pending[texts[i]].error = std::current_exception();
      }
  };
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min(most, texts.size()); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  for (const Pending& one : pending)
    if (one.error) std::rethrow_exception(one.error);
  for (Pending& one : pending) find(one);
}

std::vector<DeviceGroup> DeviceKernels::prepare(std::span<const Shape> inputs, ir::Sizes& sizes) {
  sizes = ir::bind(fusion(), inputs);
  std::vector<const compiler::ScheduledGroup*> scheduled(groups().size(), nullptr);
  for (const SegmentedGroup& group : groups())
    if (compiled_.has_kernels(group.id))
      scheduled[group.id.index] = &compiled_.lower(group.id, sizes);
  sizes = ir::bind(fusion(), inputs);  // kernels may need sizes that follow from others

  std::vector<DeviceGroup> all(groups().size());
  std::vector<Pending> pending;
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (scheduled[g] == nullptr) continue;
    const compiler::LoweredGroup& lowered = scheduled[g]->lowered;
    all[g].workspaces = lowered.workspaces;
    for (std::size_t i = 0; i < lowered.kernels.size(); ++i) {
      compiler::GroupKernel kernel = lowered.kernels[i];
      compiled_.fit(kernel.kernel, sizes);
      std::shared_ptr<DeviceKernel>& known = made_[{scheduled[g], i, kernel.kernel.schedule}];
      if (!known) {
        known = std::make_shared<DeviceKernel>();
        known->launch = compiler::cuda::cuda_launch(kernel.kernel);
        known->kernel = std::move(kernel);
        const compiler::loop::Kernel& loops = known->kernel.kernel;
        pending.push_back({known, {loops.name, compiled_.print(loops), {}, store_}, {}});
      }
      all[g].kernels.push_back(known);
    }
  }
  try {
    compile(pending);
  } catch (...) {  // what is not compiled is not there
    std::erase_if(made_, [](const auto& entry) { return entry.second->code.handle == nullptr; });
    throw;
  }
  return all;
}

}  // namespace segfuse::engine
