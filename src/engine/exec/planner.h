#pragma once
// The state of planning. plan.cpp has the frame, plan_ops.cpp one function for each kind of
// operation.

#include <map>

#include "engine/compiled/kernels.h"
#include "engine/exec/plan.h"
#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {

class Planner {
 public:
  Planner(const ir::Fusion& fusion, const ir::Sizes& sizes);
  Plan run(std::span<const Group> groups);
  Plan run(const compiler::CompiledFusion& compiled, std::span<const CpuGroup* const> codes);

 private:
  // --- storages and values
  std::uint32_t add_storage(Storage::Kind kind, std::size_t index, std::size_t bytes);
  /// New contiguous memory.
  Ref scratch(DType type, Shape shape);
  /// Where a result is made: an output's own memory if it can be, else the arena.
  Ref place(ir::ValId val) { return place(val, compute_type(dtype(val))); }
  Ref place(ir::ValId val, DType type);
  Ref scalar(DType dtype, double value);
  const Ref& ref(ir::ValId val) const { return refs_[val.index]; }
  Shape shape(ir::ValId val) const { return sizes_.of(fusion_.val(val).shape); }
  DType dtype(ir::ValId val) const { return fusion_.val(val).dtype; }
  /// `ref` itself if row-major without gaps, else a copy.
  Ref packed(const Ref& ref);
  void add_step(ir::ExprId expr, std::vector<Ref> operands, std::vector<Ref> results,
                std::function<void(Run&)> go);
  /// A step that rounds a result to the half type of `val`, if it has one; between generated
  /// kernels it is stored in that type, too.
  void round(ir::ExprId expr, ir::ValId val);
  void plan_inputs();
  void plan_outputs();
  void assign_arena();

  /// The same values in a compute type.
  Ref widened(const Ref& ref);

  // --- generated kernels
  void plan_kernels(const compiler::SegmentedGroup& group, const CpuGroup& code);
  void plan_library(ir::ExprId id);

  // --- operations
  void plan_group(const Group& group);
  void plan_pointwise(const Group& group);
  void plan_expr(ir::ExprId id);
  void plan_creation(ir::ExprId id);
  void plan_view(ir::ExprId id);
  void plan_reduction(ir::ExprId id);
  void plan_movement(ir::ExprId id);
  void plan_pad(ir::ExprId id);
  void plan_concat(ir::ExprId id);
  void plan_matmul(ir::ExprId id);
  void plan_semicrf(ir::ExprId id);
  bool used_outside(ir::ValId val, const Group& group) const;

  const ir::Fusion& fusion_;
  const ir::Sizes& sizes_;
  Plan plan_;
  std::vector<Ref> refs_;                                // by ValId
  std::vector<bool> live_;                               // by ExprId
  std::map<std::uint32_t, std::size_t> direct_outputs_;  // by ValId: the output it is made in
  bool generated_ = false;
  std::vector<ir::Alias> in_place_;
};

}  // namespace segfuse::engine
