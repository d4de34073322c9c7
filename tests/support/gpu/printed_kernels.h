#pragma once
// Kernels as print_cuda() writes them, compiled by the host's compiler and run thread by thread.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/codegen/cuda/print_cuda.h"

namespace segfuse::testing {

/// Many kernels in one text, because starting a compiler takes long.
class PrintedKernels {
 public:
  PrintedKernels();
  ~PrintedKernels();

  /// The number of the kernel; equal ones may be added again.
  std::size_t add(const compiler::loop::Kernel& kernel);
  /// Compiles all. Throws with the compiler's words.
  void build();
  /// Runs all blocks, at most `most_blocks` of them taking all outer iterations. Globals have the
  /// kernel's types. Returns the status word.
  int run(std::size_t number, std::span<Tensor> globals, const compiler::cuda::SizeOf& size,
          unsigned most_blocks = ~0U) const;

 private:
  struct Entry {
    std::string name;
    compiler::cuda::CudaLaunch launch;
    void (*call)(const void* argument) = nullptr;
  };
  std::vector<Entry> entries_;
  std::string text_;
};

}  // namespace segfuse::testing
