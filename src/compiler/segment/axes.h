#pragma once
// Where the values of one group are needed, and their axes, united where an expression runs along
// both.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/segment/classify.h"

namespace segfuse::compiler {

/// For each axis of the result of a reshape the axis of the operand that it is, or the last one of
/// those that it is the innermost part of; -1 for the others.
struct ReshapedAxes {
  std::vector<int> from;
  std::vector<bool> exact;
};

ReshapedAxes reshaped_axes(const ir::Fusion& fusion, const ir::Extents& from,
                           const ir::Extents& to);

/// By axis of operand `source` of a movement: the axis of the result along which its elements are
/// where they were; -1 for one along which they are moved.
std::vector<int> kept_axes(const ir::Fusion& fusion, const ir::Expr& move, std::size_t source);

/// A movement of a value that is computed in the same kernel is done on one of two sides. On that
/// of the store its operand is computed where it is and written to where it is moved to: reshapes,
/// and concats of operands of one shape, if nothing here reads the result. On that of the load the
/// operand is computed once more, at the position that is moved from.
class Needs {
 public:
  /// `store_concats`: concats go to the side of the store where they can.
  Needs(const GroupView& view, bool store_concats);

  struct Need {
    bool in_place = false;  ///< at its own position
    std::set<int> paths;    ///< and at those to which these lead
  };
  /// A movement on the side of the load, and the path that its result takes afterwards (-1: none).
  struct Path {
    ir::ExprId move;
    int after = -1;
  };

  const Need& of(ir::ValId val) const;
  const std::vector<Path>& paths() const { return paths_; }
  /// The movements on the side of the store, in the order of the group.
  const std::vector<ir::ExprId>& stored() const { return stored_; }
  bool is_stored(ir::ExprId id) const;
  /// Whether a concat is among them.
  bool stores_concat() const { return stores_concat_; }
  /// The reason for which computing again costs too much, if it does.
  std::optional<std::string> refused() const;

 private:
  void find_local();
  void choose_sides(bool store_concats);
  bool can_store(const ir::Expr& e, bool store_concats) const;
  void follow();
  bool is_local(ir::ValId val) const { return local_.contains(val.index); }
  int path(ir::ExprId move, int after);
  ir::ValId end_of(int path) const;

  const GroupView& view_;
  const ir::Fusion& fusion_;
  std::set<std::uint32_t> local_;
  std::vector<ir::ExprId> stored_;
  std::unordered_map<std::uint32_t, Need>
      needs_;  // none: nothing is moved, all are needed in place
  std::vector<Path> paths_;
  std::map<std::pair<ir::ExprId, int>, int> numbers_;
  bool stores_concat_ = false;
  bool moves_ = false;
  bool too_many_ = false;
};

/// How a value is there in the kernel.
enum class Place : std::uint8_t {
  kFree,    ///< computed where it is needed
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
  /// Takes part in the iteration: a local value, or a load used by one, that is needed where it is.
  bool touched = false;
  bool linear = false;  ///< a load without index arithmetic
};

struct ReducedNodes {
  ir::ExprId id;
  int operand = -1;        ///< slot
  std::vector<int> nodes;  ///< the reduced ones
};

/// Walks a group and unites. After run(): no value has two axes in one class.
class GroupAxes {
 public:
  /// `store_concats`: as Needs has it.
  GroupAxes(const GroupView& view, bool store_concats);
  ~GroupAxes();
  GroupAxes(const GroupAxes&) = delete;
  GroupAxes& operator=(const GroupAxes&) = delete;

  /// The reason for which the group is no kernel, if it is none.
  [[nodiscard]] std::optional<std::string> run();

  const std::vector<Placed>& placed() const { return placed_; }
  const std::vector<ReducedNodes>& reductions() const { return reductions_; }
  const Needs& needs() const { return needs_; }
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
  [[nodiscard]] bool move_local(const ir::Expr& e, const Placed& from);
  [[nodiscard]] bool move_again(const ir::Expr& e, ir::ExprId id);
  [[nodiscard]] bool join_stored(const ir::Expr& e);
  void move_load(const ir::Expr& e, ir::ExprId id, const Placed& from);
  [[nodiscard]] bool refuse(std::string reason);
  bool conflict() const;
  std::optional<std::string> check_moves() const;
  std::optional<std::string> check_joined() const;
  bool try_unite(const std::vector<std::pair<int, int>>& pairs);
  void join_loads();
  void join_reduced();
  void number_classes();

  const GroupView& view_;
  const ir::Fusion& fusion_;
  Needs needs_;
  std::vector<Placed> placed_;
  std::vector<ReducedNodes> reductions_;
  std::map<ir::ExprId, std::vector<int>> moved_;  // nodes along which an operand is moved
  mutable std::vector<int> parent_;
  std::vector<ir::Extent> extents_;
  std::vector<int> classes_;  // by root
  std::uint64_t space_ = 0;
  int class_count_ = 0;
  std::string reason_;
};

}  // namespace segfuse::compiler
