#pragma once
// Runs kernels as C text, beside the interpreter of loop IR, and compares.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "compiler/loop/kernel.h"
#include "jit/cpu_compiler.h"
#include "support/c/compiled_c.h"

namespace segfuse::test {

class CKernels {
 public:
  /// With clang in this process where that is possible and `stranger` is not set; otherwise with
  /// this machine's compiler and `flags`.
  explicit CKernels(bool stranger = false, std::string flags = "-O1");

  using Size = std::function<std::int64_t(const ir::Extent&)>;

  /// A runner for run_groups: runs both, fails the test where they differ by more than rounding,
  /// and goes on with the interpreter's results.
  int compare(const compiler::loop::Kernel& kernel, std::span<Tensor> globals, const Size& size);

  int compiled() const { return compiled_; }
  /// The bytes of all that kernels have written so far.
  const std::string& written() const { return written_; }

 private:
  jit::CpuFunction function(const compiler::loop::Kernel& kernel, const std::string& text);
  int run(const compiler::loop::Kernel& kernel, std::span<Tensor> typed, const Size& size);
  std::shared_ptr<jit::CpuCompiler> clang_;
  std::string flags_;
  std::map<std::string, std::unique_ptr<CompiledC>> libraries_;
  int compiled_ = 0;
  std::string written_;
};

}  // namespace segfuse::test
