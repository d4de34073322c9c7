#pragma once
// A Fusion cut into groups, and the GPU kernels of each for the sizes that came so far.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/lower/lower.h"
#include "compiler/segment/segmented_fusion.h"
#include "ir/bind.h"
#include "runtime/gpu.h"

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

class DeviceFusion {
 public:
  /// Runs all passes and the segmenter. The program of segmented() is another than `fusion`, with
  /// the same inputs, outputs and symbols by position.
  DeviceFusion(ir::Fusion fusion, std::shared_ptr<runtime::Gpu> gpu, bool excess_precision = false);
  ~DeviceFusion();

  const compiler::SegmentedFusion& segmented() const { return segmented_; }
  const std::vector<compiler::SegmentedGroup>& groups() const { return groups_; }
  const ir::Fusion& fusion() const { return fusion_; }

  /// Binds the sizes of these inputs, makes kernels for them that are not there yet, all of them
  /// beside each other, and gives those of each group. UsageError for inputs that do not fit.
  std::vector<DeviceGroup> prepare(std::span<const Tensor> inputs, ir::Sizes& sizes);
  /// Kernels that were made so far.
  std::size_t kernels() const { return made_; }

 private:
  struct Lowering;
  struct Pending;
  const compiler::LoweredGroup& lowered(compiler::GroupId group, const ir::Sizes& sizes);
  void compile(std::vector<Pending>& pending);

  bool excess_precision_;
  compiler::SegmentedFusion segmented_;
  std::vector<compiler::SegmentedGroup> groups_;
  ir::Fusion fusion_;
  std::shared_ptr<runtime::Gpu> gpu_;
  std::vector<std::unique_ptr<Lowering>> lowerings_;  // by group; made when first asked for
  std::size_t made_ = 0;
};

}  // namespace segfuse::engine
