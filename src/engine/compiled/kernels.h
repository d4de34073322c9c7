#pragma once
// The machine code of a compiled Fusion's groups for the CPU, for the sizes that came so far.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "ir/bind.h"
#include "jit/cpu_compiler.h"
#include "segfuse/context.h"

namespace segfuse::engine {

/// One kernel ready to be called.
struct CpuKernel {
  const compiler::GroupKernel* kernel = nullptr;
  std::shared_ptr<const jit::CpuCode> code;
  jit::CpuFunction function = nullptr;
  std::vector<ir::Extent> sizes;  ///< the integer arguments
};

/// Those of a group under one schedule.
struct CpuGroup {
  const compiler::ScheduledGroup* scheduled = nullptr;
  std::vector<CpuKernel> kernels;
};

/// The compiler that all contexts with one folder of code share, so that equal kernels are compiled
/// once: nothing, with the reason, where there is none.
std::shared_ptr<jit::CpuCompiler> shared_cpu_compiler(const Context& context,
                                                      std::string* reason = nullptr);

class CpuKernels {
 public:
  CpuKernels(ir::Fusion fusion, std::shared_ptr<jit::CpuCompiler> compiler,
             bool excess_precision = false);

  const compiler::CompiledFusion& compiled() const { return compiled_; }
  const ir::Fusion& fusion() const { return compiled_.fusion(); }
  /// By group, for inputs of these shapes, to which `sizes` is bound; nothing for views
  /// and library calls. Lives as long as this. UsageError for inputs that do not fit.
  std::vector<const CpuGroup*> prepare(std::span<const Shape> inputs, ir::Sizes& sizes);
  /// Those of the body of a scan. They live as long as this.
  CpuKernels& body(ir::ExprId id);

 private:
  const CpuGroup& code(const compiler::ScheduledGroup& scheduled);

  compiler::CompiledFusion compiled_;
  std::shared_ptr<jit::CpuCompiler> compiler_;
  bool excess_precision_;
  std::map<const compiler::ScheduledGroup*, CpuGroup> made_;
  std::map<ir::ExprId, std::unique_ptr<CpuKernels>> bodies_;
};

}  // namespace segfuse::engine
