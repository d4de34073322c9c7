#pragma once
// What all kernels of one group are made from: its axes, its reductions cut into simple ones, and
// where results go.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/lower/emitter.h"
#include "compiler/lower/lower.h"

namespace segfuse::compiler {

/// One state of a reduction (OpInfo::walks) over the reduced or the column axes: a welford has
/// three (the sum, then the sums of deviations and of their squares), a logsumexp two (the maximum,
/// then the sum of exponentials under it).
struct SimpleReduction {
  ir::ExprId expr;
  int part = 0;
  ir::Monoid op = ir::Monoid::kSum;
  DType dtype = DType::kF32;  ///< of the state
  int walk = 0;               ///< the walk over the row that accumulates it
  bool column = false;
};

/// An output of the group: `root` is computed, `path` moves it to where it is stored.
struct Result {
  ir::ValId output;
  ir::ValId root;
  std::vector<ir::ExprId> path;
  int level = 0;            ///< walks that must be over before `root` is known
  bool full = false;        ///< it runs along a reduced axis
  bool column = false;      ///< needs a column's reduction
  std::vector<bool> along;  ///< by axis of the plan
};

struct GroupState {
  GroupState(ir::Fusion& program, const SegmentedGroup& g, const GroupPlan& p,
             std::vector<ir::Alias> aliases, const SizeHints& h, std::string kernel_name,
             bool excess_precision);

  ir::Fusion& fusion;
  const SegmentedGroup& group;
  const GroupPlan& plan;
  std::vector<ir::Alias> in_place;
  SizeHints hints;
  std::string name;
  GroupContext context;

  std::vector<std::vector<std::size_t>> joined;  ///< by axis of the Space: axes of the plan
  Space space;
  std::vector<SimpleReduction> reductions;
  std::vector<Result> results;
  std::map<ir::ValId, int> levels;

  const std::vector<int>& place(ir::ValId val) const;
  bool has_place(ir::ValId val) const { return places_.contains(val); }
  /// Positions of a value when the plan's axes are at `at`.
  Tuple tuple(ir::ValId val, const Tuple& at) const;
  /// Positions of a result's output.
  Tuple forward(loop::Indices& indices, const Result& result, const Tuple& at) const;
  /// The plan's axes, from those of the Space.
  Tuple plan_axes(loop::Indices& indices, const Tuple& space_at) const;
  bool is_local(ir::ValId val) const;
  /// The reductions that a value depends on, by number.
  std::vector<std::size_t> reductions_below(ir::ValId val) const;
  ir::Extent ceil_divide(const ir::Extent& size, std::int64_t by) const;

 private:
  void find_reductions();
  void postpone_reductions();
  std::set<ir::ValId> below(ir::ValId val, bool within) const;
  bool repeats_expensive() const;
  void find_results();
  void join_axes(const GroupKernel& survey, const std::vector<loop::VarId>& vars);
  void describe_space(const GroupKernel& survey, const std::vector<loop::VarId>& vars);
  /// All loads and stores, with one variable for each axis of the plan.
  GroupKernel survey(std::vector<loop::VarId>& vars) const;
  int level(ir::ValId val);
  bool tainted_by_column(ir::ValId val) const;

  std::map<ir::ValId, std::vector<int>> places_;
};

/// Whether positions move along axis `a` as along an outer part of `b`, wherever they are used.
/// `extent` is that of `b`.
bool joinable(const loop::Kernel& kernel, loop::VarId a, loop::VarId b, const ir::Extent& extent);

/// Calls visit for every index of the kernel's statements.
void each_index(const loop::Kernel& kernel, const std::function<void(const loop::Index&)>& visit);

}  // namespace segfuse::compiler
