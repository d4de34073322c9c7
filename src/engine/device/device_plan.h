#pragma once
// A Fusion's run on an accelerator for one set of shapes, as a plan of the runtime.

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/device/accelerator.h"
#include "engine/device/device_crf.h"
#include "engine/device/device_kernels.h"
#include "engine/plan/builder.h"

namespace segfuse::engine {

/// What a status word may say, from 1 on: "take: index along axis 0".
using DeviceCheck = std::vector<std::string>;

/// What a plan does besides computing.
struct DevicePlanOptions : PlanOptions {
  bool look = false;                           ///< see DevicePlan::words
  std::optional<compiler::GroupId> keep = {};  ///< see DevicePlan::kept
};

struct DevicePlan {
  /// What the plan is given: the inputs in their order, then outputs that are memory of their own,
  /// then what of the following there is: words, kept, status.
  std::unique_ptr<runtime::PlanRunner> runner;
  std::vector<Shape> output_shapes;
  /// By output: the input whose memory it is, for those that are written in place.
  std::vector<std::optional<std::size_t>> in_place;
  /// One int for each of `looked_at`, set by each run: bit 0, it holds NaN; bit 1, an infinity.
  runtime::Buffer words;
  std::vector<ir::ValId> looked_at;  ///< floats that are inputs or cross groups
  /// For one group: copies of what it read and what it wrote.
  std::vector<std::pair<ir::ValId, runtime::Buffer>> kept;
  /// One int for each entry of `checks`: 0, or which of its sentences holds, from 1.
  runtime::Buffer status;
  std::vector<DeviceCheck> checks;
  /// By step; empty unless they are measured.
  std::vector<std::shared_ptr<StepTime>> times;
};

/// Plans a run with inputs of these shapes; kernels are compiled as needed. The plan holds what it
/// needs of the fusion, not the fusion; `crf` outlives it.
DevicePlan make_device_plan(DeviceKernels& fusion, Accelerator& accelerator, DeviceCrf& crf,
                            std::span<const Tensor> inputs, const DevicePlanOptions& options);

}  // namespace segfuse::engine
