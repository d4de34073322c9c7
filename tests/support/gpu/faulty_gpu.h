#pragma once
// A simulated device whose kernels are changed before they are compiled: faults as a code generator
// could have them.

#include <functional>
#include <string>

#include "support/gpu/program_gpu.h"

namespace segfuse::testing {

using Change = std::function<std::string(std::string source)>;

/// All of `from` becomes `to`, in texts that have each of `where`.
inline Change replaced(std::string from, std::string to, std::vector<std::string> where = {}) {
  return [=](std::string source) {
    for (const std::string& word : where)
      if (source.find(word) == std::string::npos) return source;
    for (std::size_t at = source.find(from); at != std::string::npos;
         at = source.find(from, at + to.size()))
      source.replace(at, from.size(), to);
    return source;
  };
}

class FaultyGpu final : public runtime::Gpu {
 public:
  FaultyGpu(std::shared_ptr<runtime::Gpu> gpu, Change change)
      : gpu_(std::move(gpu)), change_(std::move(change)) {}

  std::string name() const override { return gpu_->name(); }
  int multiprocessors() const override { return gpu_->multiprocessors(); }
  bool fast_double() const override { return gpu_->fast_double(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return gpu_->kernel({program.name, change_(program.source), program.defines}, entry);
  }
  void launch(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
              std::size_t shared_bytes, const void* argument, std::size_t size,
              runtime::StreamHandle stream) override {
    ++launches;
    gpu_->launch(kernel, grid, block, shared_bytes, argument, size, stream);
  }
  void launch_together(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
                       std::size_t shared_bytes, const void* argument, std::size_t size,
                       runtime::StreamHandle stream) override {
    ++launches;
    gpu_->launch_together(kernel, grid, block, shared_bytes, argument, size, stream);
  }
  void* allocate(std::size_t bytes, runtime::StreamHandle stream) override {
    return gpu_->allocate(bytes, stream);
  }
  void release(void* memory, runtime::StreamHandle stream) noexcept override {
    gpu_->release(memory, stream);
  }
  void fill(void* memory, std::uint8_t value, std::size_t bytes,
            runtime::StreamHandle stream) override {
    gpu_->fill(memory, value, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes,
                    runtime::StreamHandle stream) override {
    gpu_->copy_to_host(to, from, bytes, stream);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes,
                      runtime::StreamHandle stream) override {
    gpu_->copy_to_device(to, from, bytes, stream);
  }
  void synchronize(runtime::StreamHandle stream) override { gpu_->synchronize(stream); }

  std::size_t launches = 0;

 private:
  std::shared_ptr<runtime::Gpu> gpu_;
  Change change_;
};

/// "sim:0" with such kernels.
inline std::shared_ptr<engine::Accelerator> make_faulty_accelerator(
    Change change, engine::AcceleratorOptions options = {}) {
  return engine::Accelerator::make(
      "sim:0", std::make_shared<FaultyGpu>(make_program_gpu(), std::move(change)),
      std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()), options);
}

}  // namespace segfuse::testing
