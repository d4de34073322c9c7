#pragma once
// What all kernels of a group share, under any schedule: its axes, its reductions cut
// into simple ones, and where results go. docs/lowering.md has the terms.

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

/// An output of the group, or the part of one that an operand of a concat is: `root` is computed,
/// `path` moves it to where it is stored.
struct GroupResult {
  struct Step {
    ir::ExprId move;
    std::size_t operand = 0;  ///< of a concat: which one
  };
  ir::ValId output;
  ir::ValId root;
  std::vector<Step> path;
  int walk = 0;             ///< the first one in which `root` is known: those before must be over
  bool full = false;        ///< it runs along a reduced axis, so it is stored inside of its walk
  bool column = false;      ///< needs a column's reduction
  std::vector<bool> along;  ///< by axis of the domain
};

struct GroupAnalysis {
  GroupAnalysis(ir::Fusion& program, const SegmentedGroup& g, const IterationDomain& p,
                std::vector<ir::Alias> aliases, const SizeHints& h, std::string kernel_name,
                bool excess_precision);

  ir::Fusion& fusion;
  const SegmentedGroup& group;
  const IterationDomain& domain;
  std::vector<ir::Alias> in_place;
  SizeHints hints;
  std::string name;
  GroupContext context;

  /// By axis of the Space: the axes of the domain that are one loop there.
  std::vector<std::vector<std::size_t>> collapsed;
  Space space;
  std::vector<SimpleReduction> reductions;
  std::vector<GroupResult> results;

  /// By dimension of a value: the axis of the domain, -1 for none.
  const std::vector<int>& value_axes(ir::ValId val) const;
  bool has_axes(ir::ValId val) const { return value_axes_.contains(val); }
  /// Where a value is read or computed when the domain's axes are at `at`.
  Coordinates coordinates_of(ir::ValId val, const Coordinates& at) const;
  /// Where the output of a result is stored then: its path moves the root's coordinates on.
  Coordinates output_coordinates(loop::Indices& indices, const GroupResult& result,
                                 const Coordinates& at) const;
  /// The domain's axes, from those of the Space.
  Coordinates domain_axes(loop::Indices& indices, const Coordinates& space_at) const;
  bool is_local(ir::ValId val) const;
  /// The reductions that a value depends on, by number.
  std::vector<std::size_t> reductions_of(ir::ValId val) const;
  /// Walks after which all of these reductions are known.
  int walks_of(const std::vector<std::size_t>& numbers) const;
  /// The values of the group that a value is computed from, itself among them, and what they load.
  /// `same_walk`: only those of the same walk, which begins with the results of reductions.
  std::set<ir::ValId> dependencies_of(ir::ValId val, bool same_walk) const;
  ir::Extent ceil_divide(const ir::Extent& size, std::int64_t by) const;

 private:
  void find_reductions();
  void postpone_reductions();
  bool repeats_expensive() const;
  void find_results();
  void order_stores();
  void add_results(GroupResult result);
  bool moves_when_stored(ir::ExprId id) const;
  void collapse_axes(const GroupKernel& survey, const std::vector<loop::VarId>& vars);
  void describe_space(const GroupKernel& survey, const std::vector<loop::VarId>& vars);
  /// All loads and stores, with one variable for each axis of the domain.
  GroupKernel survey(std::vector<loop::VarId>& vars) const;
  /// The walk in which a value is known first: one after that of every reduction it depends on.
  int first_walk(ir::ValId val);
  bool depends_on_column(ir::ValId val) const;

  std::map<ir::ValId, std::vector<int>> value_axes_;
  std::map<ir::ValId, int> first_walks_;
};

/// Whether the loops over axes `a` and `b` can be one, of which `b` is the inner part: wherever
/// positions are used, a step along `a` is `extent` steps along `b`. `extent` is that of `b`.
bool collapsible(const loop::Kernel& kernel, loop::VarId a, loop::VarId b,
                 const ir::Extent& extent);

/// Calls visit for every index of the kernel's statements.
void each_index(const loop::Kernel& kernel, const std::function<void(const loop::Index&)>& visit);

}  // namespace segfuse::compiler
