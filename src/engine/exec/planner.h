#pragma once
// What the steps of a plan do on the CPU: plan.cpp has the frame, plan_ops.cpp one function for
// each kind of operation, plan_kernels.cpp generated kernels.

#include "engine/compiled/kernels.h"
#include "engine/exec/plan.h"

namespace segfuse::engine {

class CpuPlanner final : public PlanBuilder {
 public:
  /// In built-in loops.
  CpuPlanner(const ir::Fusion& fusion, const ir::Sizes& sizes, const CpuContext& context,
             const CpuPlanOptions& options);
  /// With generated kernels.
  CpuPlanner(CpuKernels& kernels, const ir::Sizes& sizes, const CpuContext& context,
             const CpuPlanOptions& options);
  CpuPlan run(std::span<const Group> groups);
  CpuPlan run(const compiler::CompiledFusion& compiled, std::span<const CpuGroup* const> codes);

 private:
  bool is_packed(const Ref& ref) const override { return is_contiguous(ref.layout); }
  void copy(const Ref& from, const Ref& to, const char* what) override;
  std::function<void(runtime::StreamHandle)> waiter() const override;

  /// Where a result of an operation in built-in loops is made: a half as f32.
  Ref compute(ir::ValId val);
  Ref scalar(DType dtype, double value);
  static StepOperands touched(std::span<const Ref> operands, std::span<const Ref> results,
                              std::span<const Ref> workspaces);
  /// `operands` are read, `results` and `workspaces` written. `expr`: the last expression that is
  /// evaluated; invalid for conversions. `what`: its name, if that is not the expression's.
  void add_step(ir::ExprId expr, std::vector<Ref> operands, std::vector<Ref> results,
                std::function<void(Run&)> go, std::string what = {},
                std::span<const Ref> workspaces = {});
  /// A step that rounds a result to the half type of `val`, if it has one; between generated
  /// kernels it is stored in that type, too.
  void round(ir::ExprId expr, ir::ValId val);
  /// The same values in a compute type.
  Ref widened(const Ref& ref);
  CpuPlan finish();

  // --- generated kernels
  void plan_kernels(const compiler::SegmentedGroup& group) override;
  void plan_library(ir::ExprId id) override;

  // --- operations
  void plan_group(const Group& group);
  void plan_pointwise(const Group& group);
  void plan_expr(ir::ExprId id);
  void plan_creation(ir::ExprId id);
  void plan_reduction(ir::ExprId id);
  void plan_movement(ir::ExprId id);
  void plan_pad(ir::ExprId id);
  void plan_concat(ir::ExprId id);
  void plan_fold(ir::ExprId id);
  void plan_matmul(ir::ExprId id);
  void plan_scan(ir::ExprId id);
  void plan_sort(ir::ExprId id);
  void plan_attention(ir::ExprId id);
  void plan_attention_grad(ir::ExprId id);
  void plan_steps(ir::ExprId id);
  CpuPlan plan_body(ir::ExprId id, std::span<const Shape> shapes);
  void add_scan_step(ir::ExprId id, const std::vector<Ref>& operands,
                     const std::vector<Ref>& results, std::function<void(Run&)> go,
                     std::span<const Ref> workspaces);
  /// A value packed and in its own type.
  Ref stored(ir::ValId val);
  void plan_semicrf(ir::ExprId id);
  bool used_outside(ir::ValId val, const Group& group) const;

  CpuContext context_;
  StepCheck check_;
  CpuKernels* kernels_ = nullptr;  ///< null: built-in loops
  bool generated_ = false;
  std::optional<std::uint32_t> constants_;  ///< the buffer
  std::vector<std::byte> constant_bytes_;
  std::span<const CpuGroup* const> codes_;  ///< by group, where code is generated
};

}  // namespace segfuse::engine
