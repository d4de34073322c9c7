#pragma once
// A Fusion made ready to run on an accelerator.

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device_plan.h"

namespace segfuse::engine {

/// What depends on shapes is planned on the first run with them and kept. One run at a time.
class DeviceProgram {
 public:
  /// With `measure` each step of a run is waited for and timed.
  DeviceProgram(ir::Fusion fusion, std::shared_ptr<Accelerator> accelerator, bool measure = false);
  ~DeviceProgram();

  const ir::Fusion& fusion() const { return program_; }

  /// `inputs` in the order of fusion().inputs(), each on the host or on the accelerator. If all are
  /// on the host, so are the results, and errors are thrown here. Else results are on the
  /// accelerator, nothing is waited for, and what the device finds wrong is thrown by check().
  /// Aliased inputs are overwritten where they are.
  std::vector<Tensor> run(std::span<const Tensor> inputs);
  /// Waits for the runs so far. UsageError for an index out of range, DataError for what a CRF was
  /// given.
  void check();
  /// The steps of the last run's plan, in order; empty unless they are measured.
  std::vector<DeviceStepTime> step_times() const;

 private:
  DevicePlan& plan_for(std::span<const Tensor> inputs);
  void check_status(DevicePlan& plan);
  void write_back(std::span<const Tensor> inputs, const std::vector<Tensor>& given) const;

  ir::Fusion program_;
  std::shared_ptr<Accelerator> accelerator_;
  DeviceCrf crf_;
  DeviceFusion fusion_;
  std::map<std::vector<Shape>, DevicePlan> plans_;
  DevicePlan* unchecked_ = nullptr;  ///< of the last run, if it checks something
  std::vector<Tensor> last_inputs_;  ///< of that run
  bool has_crf_ = false;
  bool measure_ = false;
  const DevicePlan* last_plan_ = nullptr;
};

}  // namespace segfuse::engine
