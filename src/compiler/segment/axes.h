#pragma once
// The axes of the values of one group, united where an expression runs along both.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/segment/classify.h"

namespace segfuse::compiler {

/// How a value is there in the kernel.
enum class Place : std::uint8_t {
  kFree,    ///< computed by whoever needs it
  kLoad,    ///< read from memory, through any movement
  kLocal,   ///< computed in the kernel
  kStored,  ///< a local value under another shape, good for being written only
};

struct Placed {
  ir::ValId val;
  Place place = Place::kFree;
  std::vector<int> nodes;  ///< by axis: its node, -1 for size 1
  /// Of a stored value: more nodes that its position depends on, where a reshape has made one axis
  /// of several.
  std::vector<int> merged;
  std::vector<int> memory;  ///< of a load, by axis: the axis of the base it runs along, -1 if none
  std::vector<bool> exact;  ///< of a load, by axis: element i is element i of that axis
  ir::ValId base;           ///< of a load: what is read
  int base_rank = 0;
  bool touched = false;  ///< takes part in the iteration: local, or a load used by a local
  bool linear = false;   ///< a load without index arithmetic
};

struct ReducedNodes {
  ir::ExprId id;
  int operand = -1;        ///< slot
  std::vector<int> nodes;  ///< the reduced ones
};

/// Walks a group and unites. After run(): no value has two axes in one class.
class GroupAxes {
 public:
  explicit GroupAxes(const GroupView& view);
  ~GroupAxes();
  GroupAxes(const GroupAxes&) = delete;
  GroupAxes& operator=(const GroupAxes&) = delete;

  /// The reason for which the group is no kernel, if it is none.
  [[nodiscard]] std::optional<std::string> run();

  const std::vector<Placed>& placed() const { return placed_; }
  const std::vector<ReducedNodes>& reductions() const { return reductions_; }
  int slot(ir::ValId val) const { return view_.context.slots()[val.index]; }
  /// The class of a node, from 0 on.
  int class_of(int node) const { return node < 0 ? -1 : classes_[find(node)]; }
  std::uint64_t mask(const Placed& placed) const;
  std::uint64_t mask(const std::vector<int>& nodes) const;
  std::uint64_t space() const { return space_; }
  /// The first value, local before loaded, that has all axes of the space.
  const Placed* spanning() const;
  const ir::Extent& extent_of(int node) const { return extents_[static_cast<std::size_t>(node)]; }

 private:
  int fresh(const ir::Extent& extent);
  std::vector<int> fresh_nodes(ir::ValId val);
  int find(int node) const;
  int operand_slot(ir::ValId val);
  int add(Placed placed);
  void unite(const std::vector<int>& a, const std::vector<int>& b);
  [[nodiscard]] bool visit(ir::ExprId id);
  [[nodiscard]] bool elementwise(ir::ExprId id);
  [[nodiscard]] bool reduce(ir::ExprId id);
  [[nodiscard]] bool move(ir::ExprId id);
  [[nodiscard]] bool move_local(const ir::Expr& e, ir::ExprId id, const Placed& from);
  void move_load(const ir::Expr& e, ir::ExprId id, const Placed& from);
  [[nodiscard]] bool refuse(std::string reason);
  bool conflict() const;
  bool try_unite(const std::vector<std::pair<int, int>>& pairs);
  void join_loads();
  void join_reduced();
  void number_classes();

  const GroupView& view_;
  const ir::Fusion& fusion_;
  std::vector<Placed> placed_;
  std::vector<ReducedNodes> reductions_;
  mutable std::vector<int> parent_;
  std::vector<ir::Extent> extents_;
  std::vector<int> classes_;  // by root
  std::uint64_t space_ = 0;
  int class_count_ = 0;
  std::string reason_;
};

}  // namespace segfuse::compiler
