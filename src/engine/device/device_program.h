#pragma once
// A Fusion made ready to run on an accelerator.

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device/device_plan.h"

namespace segfuse::engine {

struct Milestones;

/// Whose stream a run goes on, and whose memory its results are.
struct DeviceRun {
  std::optional<runtime::StreamId> stream = {};  ///< in place of the accelerator's first
  std::span<const Tensor> outputs = {};          ///< memory for all results; empty: fresh
  bool waits = true;  ///< false: results stay on the accelerator, though all inputs are on the host
  Milestones* milestones = nullptr;  ///< see Executable::run()
};

/// What depends on shapes is planned on the first run with them and kept. One run at a time.
class DeviceProgram {
 public:
  /// Of `options` those that every run has: measure, poison, tf32. Compiled code is kept where the
  /// context says.
  DeviceProgram(ir::Fusion fusion, std::shared_ptr<Accelerator> accelerator, const Context& context,
                PlanOptions options = {}, bool excess_precision = false);
  ~DeviceProgram();

  const ir::Fusion& fusion() const { return program_; }

  /// `inputs` in the order of fusion().inputs(), each on the host or on the accelerator. If all are
  /// on the host, so are the results, and errors are thrown here. Else results are on the
  /// accelerator, nothing is waited for, and what the device finds wrong is thrown by check().
  /// Aliased inputs are overwritten where they are.
  std::vector<Tensor> run(std::span<const Tensor> inputs, const DeviceRun& how = {});
  /// Compiles the kernels for such inputs. Nothing but this object is used: others may use the
  /// accelerator.
  void compile(std::span<const Tensor> inputs);
  /// Shapes of the outputs for inputs of such types and shapes, whose elements are not looked at.
  std::vector<Shape> output_shapes(std::span<const Tensor> inputs) {
    return plan_for(inputs, plans_, {options_})->output_shapes;
  }
  /// The plan for such inputs where run_in_order() can run it, else nothing: where an input is
  /// overwritten, where there is a CRF, and where the accelerator has several streams.
  std::shared_ptr<DevicePlan> plan_in_order(std::span<const Tensor> inputs);
  /// See Executable::order_of_writes().
  std::vector<std::size_t> order_of_writes() const;
  /// A run on memory whose other uses `stream` is ordered with (PlanRunner::run_in_order):
  /// addresses of the inputs, then of the outputs. Nothing is waited for.
  void run_in_order(const std::shared_ptr<DevicePlan>& plan, std::span<std::byte* const> addresses,
                    runtime::StreamId stream);
  /// Waits for the runs so far. UsageError for an index out of range, DataError for what a CRF was
  /// given.
  void check();
  /// Runs it on copies of what is overwritten and throws the results away. The kernels mark values
  /// that hold NaN or infinities; where one appears that the inputs do not explain, the group's
  /// operands are looked at operation by operation. A sentence about the first operation, input
  /// or kernel that is to blame; empty: none is. Throws as a run and check() do.
  std::string look(std::span<const Tensor> inputs);
  /// The steps of the last run's plan, in order; empty unless they are measured.
  std::vector<StepTime> step_times() const;

 private:
  using Plans = std::map<std::vector<Shape>, std::shared_ptr<DevicePlan>>;
  std::shared_ptr<DevicePlan> plan_for(std::span<const Tensor> inputs, Plans& plans,
                                       const DevicePlanOptions& options);
  std::vector<Tensor> on_accelerator(std::span<const Tensor> inputs) const;
  std::vector<Tensor> start(const std::shared_ptr<DevicePlan>& plan,
                            const std::vector<Tensor>& given, const DeviceRun& how = {});
  void expect_check(const std::shared_ptr<DevicePlan>& plan);
  void check_status();
  void enqueue(DevicePlan& plan, std::span<const runtime::Buffer> buffers, runtime::StreamId stream,
               Milestones* milestones);
  std::vector<Tensor> copies(std::span<const Tensor> inputs) const;
  std::string judge(const compiler::SegmentedGroup& group, std::span<const Tensor> inputs);
  void write_back(std::span<const Tensor> inputs, const std::vector<Tensor>& given) const;

  ir::Fusion program_;
  std::shared_ptr<Accelerator> accelerator_;
  Context context_;
  DeviceCrf crf_;
  DeviceKernels fusion_;
  PlanOptions options_;
  Plans plans_;
  Plans looks_;                            ///< that look
  std::shared_ptr<DevicePlan> unchecked_;  ///< of the last run, if it checks something
  std::vector<Tensor> last_inputs_;        ///< of that run
  bool has_crf_ = false;
  runtime::Frontier last_run_;  ///< of a CRF, which keeps faults from run to run
  std::shared_ptr<const DevicePlan> last_plan_;
};

}  // namespace segfuse::engine
