#pragma once
// A kernel with its memory on a device.

#include <algorithm>
#include <vector>

#include "base/context/state.h"
#include "compiler/codegen/cuda/print_cuda.h"
#include "runtime/memory/stream_memory.h"
#include "support/gpu/kernel_jobs.h"

namespace segfuse::testing {

class DeviceJob {
 public:
  DeviceJob(runtime::DeviceAccess gpu, const KernelJob& job)
      : gpu_(std::move(gpu)), job_(job), launch_(compiler::cuda::cuda_launch(job.kernel)) {
    kernel_ = gpu_.kernels->kernel({job.kernel.name + "_" + std::to_string(fnv(job)),
                                    compiler::cuda::print_cuda(job.kernel),
                                    {},
                                    Context().state().code},
                                   job.kernel.name);
    for (const Tensor& tensor : job.before) {
      memory_.push_back(
          gpu_.memory->allocate(gpu_.home, std::max<std::size_t>(tensor.bytes(), 16)));
      if (tensor.bytes() > 0)
        gpu_.device->copy(gpu_.home, memory_.back(), tensor.data(), tensor.bytes());
    }
    status_ = gpu_.memory->allocate(gpu_.home, 16);
    gpu_.device->fill(gpu_.home, status_, 0, 16);
    gpu_.device->synchronize(gpu_.home);
    const auto size = [&job](const ir::Extent& extent) { return job.size(extent); };
    argument_ = launch_.argument(memory_, size, reinterpret_cast<int*>(status_));
    blocks_ = launch_.blocks(size);
    shared_ = launch_.shared_bytes(size);
  }
  ~DeviceJob() {
    for (void* memory : memory_) gpu_.memory->release(gpu_.home, static_cast<std::byte*>(memory));
    gpu_.memory->release(gpu_.home, status_);
  }
  DeviceJob(const DeviceJob&) = delete;
  DeviceJob& operator=(const DeviceJob&) = delete;

  void launch() {
    gpu_.kernels->launch(gpu_.home, kernel_,
                         {{blocks_, 1, 1}, {launch_.threads, launch_.rows_at_once, 1}, shared_},
                         argument_.data(), argument_.size() * sizeof(argument_[0]));
  }
  std::vector<Tensor> globals() const {
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      all.push_back(job_.before[i].clone());
      if (all.back().bytes() > 0)
        gpu_.device->read(gpu_.home, all.back().data(), memory_[i], all.back().bytes());
    }
    return all;
  }
  int status() const {
    int value = 0;
    gpu_.device->read(gpu_.home, &value, status_, sizeof(value));
    return value;
  }

 private:
  /// Programs are told apart by name.
  static std::uint64_t fnv(const KernelJob& job) {
    std::uint64_t hash = 1469598103934665603ULL;
    for (const char c : compiler::cuda::print_cuda(job.kernel))
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    return hash;
  }

  runtime::DeviceAccess gpu_;
  const KernelJob& job_;
  compiler::cuda::CudaLaunch launch_;
  runtime::GpuKernel kernel_;
  std::vector<void*> memory_;
  std::byte* status_ = nullptr;
  std::vector<std::uint64_t> argument_;
  unsigned blocks_ = 1;
  std::size_t shared_ = 0;
};

}  // namespace segfuse::testing
