#pragma once
// The GPU kernels of a compiled Fusion's groups, for the sizes that came so far.

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "compiler/compile.h"
#include "runtime/kernels.h"

namespace segfuse::engine {

/// One kernel ready to be launched.
struct DeviceKernel {
  compiler::GroupKernel kernel;
  compiler::cuda::CudaLaunch launch;
  runtime::GpuKernel code;
};

struct DeviceGroup {
  std::vector<std::shared_ptr<const DeviceKernel>> kernels;  ///< none: a view or a library call
  std::vector<compiler::Workspace> workspaces;
};

class DeviceKernels {
 public:
  /// Compiled code is kept in `store`; null: nowhere.
  DeviceKernels(ir::Fusion fusion, std::shared_ptr<runtime::KernelLoader> loader,
                bool excess_precision = false, std::shared_ptr<const CodeStore> store = nullptr);

  const compiler::CompiledFusion& compiled() const { return compiled_; }
  const compiler::SegmentedFusion& segmented() const { return compiled_.segmented(); }
  const std::vector<compiler::SegmentedGroup>& groups() const { return compiled_.groups(); }
  const ir::Fusion& fusion() const { return compiled_.fusion(); }
  const std::shared_ptr<const CodeStore>& store() const { return store_; }

  /// Binds the sizes of inputs of these shapes, makes kernels for them that are not there yet, all
  /// of them beside each other, and gives those of each group. UsageError for inputs that do not
  /// fit.
  std::vector<DeviceGroup> prepare(std::span<const Shape> inputs, ir::Sizes& sizes);
  /// Those of the body of a scan. They live as long as this.
  DeviceKernels& body(ir::ExprId id);
  /// Kernels that were made so far.
  std::size_t kernels() const { return made_.size(); }

 private:
  struct Pending;
  /// A kernel of a group under a schedule, by its place there, and what was fitted to sizes.
  using Variant = std::tuple<const compiler::ScheduledGroup*, std::size_t, compiler::Schedule>;
  void compile(std::vector<Pending>& pending);

  compiler::CompiledFusion compiled_;
  std::shared_ptr<runtime::KernelLoader> loader_;
  std::shared_ptr<const CodeStore> store_;
  bool excess_precision_;
  std::map<ir::ExprId, std::unique_ptr<DeviceKernels>> bodies_;
  std::map<Variant, std::shared_ptr<DeviceKernel>> made_;
};

}  // namespace segfuse::engine
