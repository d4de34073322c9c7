#pragma once
// What the steps of a plan do on a device: device_plan.cpp has the frame and the groups with
// kernels, device_library.cpp the operations that run alone, device_scan.cpp loops.

#include <map>

#include "engine/attention/gpu/launch.h"
#include "engine/device/device_plan.h"
#include "engine/device/library_kernels.h"
#include "engine/plan/builder.h"

namespace segfuse::engine {

class DevicePlanner final : public PlanBuilder {
 public:
  DevicePlanner(DeviceKernels& fusion, const ir::Sizes& sizes, Accelerator& accelerator,
                DeviceCrf& crf, const DevicePlanOptions& options);
  DevicePlan run(std::span<const DeviceGroup> groups);

 private:
  /// A plan as a step of another: of the body of a scan.
  struct BodyPlan;
  BodyPlan run_body(std::span<const DeviceGroup> groups);

  /// A launch whose addresses are known when it runs.
  struct Launch {
    runtime::GpuKernel kernel;
    runtime::GpuLaunch shape;
    std::vector<std::uint64_t> words;
    struct Patch {
      std::size_t word;
      StepAddress address;
    };
    std::vector<Patch> patches;
  };

  /// Generated kernels and products begin at multiples of 256 bytes.
  bool is_packed(const Ref& ref) const override {
    return is_contiguous(ref.layout) && ref.layout.offset == 0;
  }
  void copy(const Ref& from, const Ref& to, const char* what) override;
  std::function<void(runtime::StreamHandle)> waiter() const override;
  std::uint32_t alignment_of(const Ref& ref) const;

  // --- steps
  void add_launch(std::string name, const StepOperands& operands, Launch launch);
  /// `refs` are the operands behind the launch's addresses, in order; the last `writes` are
  /// written.
  void add_library(std::string name, LibraryLaunch launch, const std::vector<Ref>& refs,
                   std::size_t writes);
  /// An operand of a launch by the word that is its address.
  struct Addressed {
    std::size_t word;
    Ref ref;
    bool written = false;
  };
  /// The same for a launch with addresses that may be left out.
  void add_library(std::string name, LibraryLaunch launch, std::span<const Addressed> refs);
  /// Another status word; its address.
  Ref status_word(DeviceCheck check);
  /// Fills the memory of a value with zeros: of an empty one, so that it counts as written.
  void touch(const Ref& ref) { fill(ref, 0, "empty"); }
  /// Sets the word of a value that holds NaN or infinities.
  void look(ir::ValId val);
  void keep(std::span<const ir::ValId> vals);

  void plan_looks();
  void before_group(const compiler::SegmentedGroup& group) override;
  void after_group(const compiler::SegmentedGroup& group, compiler::GroupKind kind) override;
  void plan_kernels(const compiler::SegmentedGroup& group) override;
  void plan_library(ir::ExprId id) override;
  void add_product(ir::ExprId id);
  void add_fold(ir::ExprId id);
  void add_scatter_add(ir::ExprId id);
  void add_scan(ir::ExprId id);
  void add_steps(ir::ExprId id);
  /// Copies memory to memory, by a kernel.
  std::function<void(runtime::StreamHandle, std::byte*, std::byte*)> copier(
      std::size_t element_bytes, std::int64_t elements) const;
  BodyPlan plan_body(ir::ExprId id, std::span<const Shape> shapes);
  /// The words of a body's checks: operations within a loop cannot say which input they read.
  std::optional<Ref> status_words(const std::vector<DeviceCheck>& checks);
  void add_sort(ir::ExprId id);
  // Attention: engine/attention/plan_device.cpp.
  struct AttentionStep {
    std::vector<Ref> operands;
    std::size_t rest = 0;  ///< of gradients, the first operand that they have besides
    AttentionPlan plan;
    std::vector<Addressed> refs;  ///< of all its kernels
    bool aligned = false;
  };
  AttentionStep attention_step(ir::ExprId id);
  void launch_attention(const AttentionStep& step, AttentionKernel kernel, std::string name,
                        std::span<const Addressed> more);
  Ref finite_rows(const AttentionStep& step, std::int64_t rows,
                  const std::vector<FiniteMatrix>& matrices, std::span<const Ref> operands);
  void add_attention(ir::ExprId id);
  void add_attention_grad(ir::ExprId id);
  LineSizes line_sizes(ir::ExprId id, const Shape& shape) const;
  void add_crf(ir::ExprId id);

  DeviceKernels& kernels_;
  const compiler::CompiledFusion& compiled_;
  std::span<const DeviceGroup> codes_;  ///< by group
  Accelerator& accelerator_;
  DeviceCrf& crf_;
  const std::shared_ptr<const CodeStore>& store_;
  DevicePlanOptions device_options_;
  DevicePlan made_;
  std::uint32_t status_ = 0;                     // the buffer, when there are checks
  std::uint32_t words_ = 0;                      // the buffer, when values are looked at
  std::map<std::uint32_t, std::uint32_t> kept_;  // by ValId: the buffer
};

}  // namespace segfuse::engine
