#pragma once
// What the plans of all targets have: buffers for the values of a Fusion at one set of sizes, views
// of them, where results are made, and what is copied at the end. A target adds what its steps do.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "engine/plan/step_operands.h"
#include "engine/plan/step_time.h"
#include "ir/bind.h"
#include "ir/fusion.h"
#include "plan/plan.h"
#include "runtime/plan_runner.h"

namespace segfuse::engine {

/// What a plan does besides computing.
struct PlanOptions {
  bool measure = false;  ///< the time of each step, which is waited for
  bool poison = false;   ///< memory is filled with NaN before it is written
  bool tf32 = false;     ///< as ExecutableOptions has it
};

struct BuiltPlan {
  plan::Plan plan;
  std::vector<runtime::PlanFunction> functions;
  std::vector<Shape> output_shapes;
  /// By output: the input whose memory it is, for those that are written in place.
  std::vector<std::optional<std::size_t>> in_place;
  /// By step that calls a function; empty unless they are measured.
  std::vector<std::shared_ptr<StepTime>> times;
};

/// The plan's buffers are the inputs, then the outputs that are memory of their own, then others.
class PlanBuilder {
 public:
  virtual ~PlanBuilder() = default;
  PlanBuilder(const PlanBuilder&) = delete;
  PlanBuilder& operator=(const PlanBuilder&) = delete;

 protected:
  /// `in_place`: the outputs that their group writes over an input. Other outputs that overwrite
  /// inputs are copied at the end.
  PlanBuilder(const ir::Fusion& fusion, const ir::Sizes& sizes, std::span<const ir::Alias> in_place,
              PlanOptions options);

  // --- what a target does
  /// Row-major without gaps, beginning where the target's kernels want it.
  virtual bool is_packed(const Ref& ref) const = 0;
  /// A step that copies a view, or converts it to the type of `to`.
  virtual void copy(const Ref& from, const Ref& to, const char* what) = 0;
  /// A function that waits for a stream, for the measurement of steps.
  virtual std::function<void(runtime::StreamHandle)> waiter() const = 0;
  /// The steps of a group that has kernels.
  virtual void plan_kernels(const compiler::SegmentedGroup& group) = 0;
  /// The steps of an operation that runs alone.
  virtual void plan_library(ir::ExprId id) = 0;
  /// Around the steps of each group.
  virtual void before_group(const compiler::SegmentedGroup&) {}
  virtual void after_group(const compiler::SegmentedGroup&, compiler::GroupKind) {}

  // --- buffers and values
  std::uint32_t add_buffer(plan::BufferSpec::Kind kind, std::string name, std::size_t bytes);
  /// New contiguous memory of a run's own.
  Ref scratch(DType dtype, Shape shape, std::string name);
  /// Where a result is made: an output's own memory if it can be, else scratch.
  Ref place(ir::ValId val) { return place(val, dtype(val)); }
  Ref place(ir::ValId val, DType type);
  /// The memory of the input that a group writes this output over; nothing if it does not.
  std::optional<Ref> overwritten_by(ir::ValId output) const;
  Ref input_ref(std::size_t input) const;
  const Ref& ref(ir::ValId val) const { return refs_.at(val.index); }
  void set_ref(ir::ValId val, Ref ref) { refs_.at(val.index) = std::move(ref); }
  Shape shape(ir::ValId val) const { return sizes_.of(fusion_.val(val).shape); }
  DType dtype(ir::ValId val) const { return fusion_.val(val).dtype; }
  std::string name_of(ir::ExprId id) const;
  /// `ref` itself if it is packed, else a copy.
  Ref packed(const Ref& ref);
  /// Those of an attention in a form that kernels can read: values without rows in memory are
  /// copied.
  std::vector<Ref> attention_operands(ir::ExprId id);
  bool is_live(ir::ExprId id) const { return live_[id.index]; }
  /// Whether anybody reads a result.
  bool wanted(ir::ValId result) const;

  // --- steps
  void add_step(std::string name, const StepOperands& operands, runtime::PlanFunction function);
  void fill(const Ref& ref, std::uint8_t value, const char* what);
  void poison(const Ref& ref);

  /// All groups in their order.
  void plan_groups(const compiler::CompiledFusion& compiled);
  void refuse_nothing(const compiler::SegmentedGroup& group) const;
  /// Packs what the kernels of a group read, finds memory for what they write, and gives that of
  /// their workspaces.
  std::vector<Ref> open_group(const compiler::SegmentedGroup& group,
                              std::span<const compiler::Workspace> workspaces);
  /// All inputs, and the memory of outputs.
  void plan_inputs();
  /// A result that is a view of its operand; a reshape that cannot be one copies first.
  void plan_view(ir::ExprId id);
  /// Outputs that no step has made where they belong are copied, then inputs are overwritten.
  void plan_outputs();

  const ir::Fusion& fusion_;
  const ir::Sizes& sizes_;
  PlanOptions options_;
  BuiltPlan result_;

 private:
  runtime::PlanFunction measured(const std::string& name, runtime::PlanFunction function);
  std::size_t input_of(ir::ValId val) const;

  std::vector<ir::Alias> in_place_;
  std::vector<Ref> refs_;                                // by ValId
  std::vector<bool> live_;                               // by ExprId
  std::map<std::uint32_t, std::size_t> direct_outputs_;  // by ValId: the output it is made in
  std::vector<std::uint32_t> output_buffers_;            // by output
};

}  // namespace segfuse::engine
