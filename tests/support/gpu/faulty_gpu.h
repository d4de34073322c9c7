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

class FaultyKernels final : public runtime::KernelLoader {
 public:
  FaultyKernels(std::shared_ptr<runtime::KernelLoader> kernels, Change change)
      : kernels_(std::move(kernels)), change_(std::move(change)) {}

  int multiprocessors() const override { return kernels_->multiprocessors(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return kernels_->kernel({program.name, change_(program.source), program.defines}, entry);
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    ++launches;
    kernels_->launch(stream, kernel, launch, argument, size);
  }

  std::size_t launches = 0;

 private:
  std::shared_ptr<runtime::KernelLoader> kernels_;
  Change change_;
};

/// "sim:0" with such kernels.
inline std::shared_ptr<engine::Accelerator> make_faulty_accelerator(
    Change change, engine::AcceleratorOptions options = {}) {
  return engine::Accelerator::make(
      "sim:0", std::make_shared<FaultyKernels>(make_program_kernels(), std::move(change)),
      std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()), options);
}

}  // namespace segfuse::testing
