#pragma once
// The state of planning for a device. device_plan.cpp has the frame and the groups with kernels,
// device_library.cpp the operations that run alone.

#include <map>

#include "engine/device/device_plan.h"
#include "engine/device/library_kernels.h"
#include "engine/device/step_operands.h"

namespace segfuse::engine {

class DevicePlanner {
 public:
  DevicePlanner(DeviceKernels& fusion, const ir::Sizes& sizes, Accelerator& accelerator,
                DeviceCrf& crf, const DevicePlanOptions& options);
  DevicePlan run(std::span<const DeviceGroup> groups);

 private:
  /// A launch whose addresses are known when it runs.
  struct Launch {
    runtime::GpuKernel kernel;
    runtime::Extent3 grid;
    runtime::Extent3 block;
    std::size_t shared = 0;
    std::vector<std::uint64_t> words;
    struct Patch {
      std::size_t word;
      StepAddress address;
    };
    std::vector<Patch> patches;
  };

  // --- buffers and values
  std::uint32_t add_buffer(plan::Buffer::Kind kind, std::string name, std::size_t bytes);
  Ref scratch(DType dtype, Shape shape, const char* name);
  /// Where a result is made: an output's own memory if it can be, else scratch.
  Ref place(ir::ValId val);
  const Ref& ref(ir::ValId val) const { return refs_.at(val.index); }
  Shape shape(ir::ValId val) const { return sizes_.of(fusion_.val(val).shape); }
  DType dtype(ir::ValId val) const { return fusion_.val(val).dtype; }
  /// `ref` itself if row-major without gaps, else a copy.
  Ref packed(const Ref& ref);
  std::uint32_t alignment_of(const Ref& ref) const;
  std::string name_of(ir::ExprId id) const;

  // --- steps
  void add_step(std::string name, const StepOperands& operands, runtime::PlanFunction function);
  runtime::PlanFunction measured(const std::string& name, runtime::PlanFunction function);
  void add_launch(std::string name, const StepOperands& operands, Launch launch);
  /// `refs` are the operands behind the launch's addresses, in order; the last `writes` are
  /// written.
  void add_library(std::string name, LibraryLaunch launch, const std::vector<Ref>& refs,
                   std::size_t writes);
  /// Another status word; its address.
  Ref status_word(DeviceCheck check);
  /// The indices of an operation, where they are an input of the program.
  void add_indices(DeviceCheck& check, ir::ExprId id) const;
  /// Fills the memory of a value with zeros: of an empty one, so that it counts as written.
  void touch(const Ref& ref) { fill(ref, 0, "empty"); }
  void fill(const Ref& ref, std::uint8_t value, const char* what);
  void copy(const Ref& from, const Ref& to, const char* what);
  void poison(const Ref& ref);
  /// Sets the word of a value that holds NaN or infinities.
  void look(ir::ValId val);
  void keep(std::span<const ir::ValId> vals);

  void plan_inputs();
  void plan_outputs();
  void plan_looks();
  void plan_group(const compiler::SegmentedGroup& group, const DeviceGroup& code);
  void plan_kernels(const compiler::SegmentedGroup& group, const DeviceGroup& code);
  void plan_view(ir::ExprId id);
  void plan_library(ir::ExprId id);
  void plan_matmul(ir::ExprId id);
  void plan_fold(ir::ExprId id);
  void plan_scatter_add(ir::ExprId id);
  void plan_crf(ir::ExprId id);

  const ir::Fusion& fusion_;
  const compiler::SegmentedFusion& segmented_;
  std::span<const compiler::SegmentedGroup> groups_;
  const ir::Sizes& sizes_;
  Accelerator& accelerator_;
  DeviceCrf& crf_;
  DevicePlanOptions options_;
  DevicePlan result_;
  plan::Plan plan_;
  std::vector<runtime::PlanFunction> functions_;
  std::vector<Ref> refs_;                                // by ValId
  std::vector<bool> live_;                               // by ExprId
  std::map<std::uint32_t, std::size_t> direct_outputs_;  // by ValId: the output it is made in
  std::vector<std::uint32_t> output_buffers_;            // by output
  std::uint32_t status_ = 0;                             // the buffer, when there are checks
  std::uint32_t words_ = 0;                              // the buffer, when values are looked at
  std::map<std::uint32_t, std::uint32_t> kept_;          // by ValId: the buffer
};

}  // namespace segfuse::engine
