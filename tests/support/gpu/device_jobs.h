#pragma once
// A kernel with its memory on a device.

#include <algorithm>
#include <vector>

#include "compiler/codegen/cuda/print_cuda.h"
#include "runtime/gpu.h"
#include "support/gpu/kernel_jobs.h"

namespace segfuse::testing {

class DeviceJob {
 public:
  DeviceJob(runtime::Gpu& gpu, const KernelJob& job)
      : gpu_(gpu), job_(job), launch_(compiler::cuda::cuda_launch(job.kernel)) {
    kernel_ = gpu.kernel({job.kernel.name + "_" + std::to_string(fnv(job)),
                          compiler::cuda::print_cuda(job.kernel),
                          {}},
                         job.kernel.name);
    for (const Tensor& tensor : job.before) {
      memory_.push_back(gpu.allocate(std::max<std::size_t>(tensor.bytes(), 16), nullptr));
      if (tensor.bytes() > 0)
        gpu.copy_to_device(memory_.back(), tensor.data(), tensor.bytes(), nullptr);
    }
    status_ = static_cast<int*>(gpu.allocate(16, nullptr));
    gpu.fill(status_, 0, 16, nullptr);
    const auto size = [&job](const ir::Extent& extent) { return job.size(extent); };
    argument_ = launch_.argument(memory_, size, status_);
    blocks_ = launch_.blocks(size);
    shared_ = launch_.shared_bytes(size);
  }
  ~DeviceJob() {
    for (void* memory : memory_) gpu_.release(memory, nullptr);
    gpu_.release(status_, nullptr);
  }
  DeviceJob(const DeviceJob&) = delete;
  DeviceJob& operator=(const DeviceJob&) = delete;

  void launch() {
    gpu_.launch(kernel_, {blocks_, 1, 1}, {launch_.threads, launch_.rows_at_once, 1}, shared_,
                argument_.data(), argument_.size() * sizeof(argument_[0]), nullptr);
  }
  std::vector<Tensor> globals() const {
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      all.push_back(job_.before[i].clone());
      if (all.back().bytes() > 0)
        gpu_.copy_to_host(all.back().data(), memory_[i], all.back().bytes(), nullptr);
    }
    return all;
  }
  int status() const {
    int value = 0;
    gpu_.copy_to_host(&value, status_, sizeof(value), nullptr);
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

  runtime::Gpu& gpu_;
  const KernelJob& job_;
  compiler::cuda::CudaLaunch launch_;
  runtime::GpuKernel kernel_;
  std::vector<void*> memory_;
  int* status_ = nullptr;
  std::vector<std::uint64_t> argument_;
  unsigned blocks_ = 1;
  std::size_t shared_ = 0;
};

}  // namespace segfuse::testing
