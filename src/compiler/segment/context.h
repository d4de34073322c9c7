#pragma once
// What is known about a Fusion before it is cut into groups.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::compiler {

/// Numbers for symbolic sizes, used to weigh one cut against another; never for correctness.
struct SizeHints {
  std::map<std::string, std::int64_t> symbols;
  std::int64_t other = 256;  ///< every symbol that is not named
};

/// What a set of expressions reads from memory and writes to it, ascending by id.
struct Boundary {
  std::vector<ir::ValId> inputs;
  std::vector<ir::ValId> outputs;
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

/// Whether an operation is run by a library or a kernel of its own, alone in its group: opaque
/// ones, and those that add into places (scatter_add, fold).
bool runs_alone(ir::Op op);

/// The value whose memory `val` may share: a view of it (kView) is the same bytes.
ir::ValId storage_root(const ir::Fusion& fusion, ir::ValId val);

/// A Fusion without dead code, seen by the segmenter. The Fusion must stay where it is.
class SegmentContext {
 public:
  SegmentContext(const ir::Fusion& fusion, const SizeHints& hints);
  /// Looks at the Fusion again, after statements were added or erased.
  void grow();
  /// The same for one new expression only, which computes what `original` does from another value
  /// of the same type. order() does not have it until grow().
  void add_copy(ir::ExprId copy, ir::ExprId original);

  const ir::Fusion& fusion() const { return fusion_; }

  /// Constants, extents, iota, and what is computed from these and scalar inputs alone by
  /// elementwise expressions and simple movement, a few after one another: every kernel computes
  /// them for itself, so they are no boundaries. One that is an output, or an operand of what runs
  /// alone, is in a group all the same, which writes it for those.
  bool is_free(ir::ExprId id) const { return free_[id.index]; }
  bool is_free(ir::ValId id) const {
    const ir::ExprId definition = fusion_.val(id).definition;
    return definition.valid() && free_[definition.index];
  }
  /// Whether a group holds the expression.
  bool in_group(ir::ExprId id) const { return !free_[id.index] || written_[id.index]; }

  /// A topological order of all expressions that depends on the outputs and operands, not on ids.
  const std::vector<ir::ExprId>& order() const { return order_; }
  /// An expression's place in order(); a copy has that of its original.
  std::uint32_t rank(ir::ExprId id) const { return rank_[id.index]; }
  bool before(ir::ExprId a, ir::ExprId b) const {
    return rank(a) != rank(b) ? rank(a) < rank(b) : a < b;
  }

  std::int64_t elements(ir::ValId id) const;
  std::int64_t bytes(ir::ValId id) const { return bytes_[id.index]; }
  std::int64_t value_of(const ir::Extent& extent) const;
  bool is_output(ir::ValId id) const { return output_[id.index]; }

  /// Whether `user` needs `val` in memory rather than computing it for itself.
  bool reads(ir::ExprId user, ir::ValId val) const;

  /// inputs = what the set uses and does not define; outputs = what it defines and somebody outside
  /// uses, or the Fusion gives out. Free values are neither, unless they have to be in memory.
  Boundary boundary(std::span<const ir::ExprId> exprs) const;

  /// By ValId, all -1 between uses: scratch of the classifier, which resets what it sets.
  std::vector<int>& slots() const { return slots_; }

 private:
  int find_free(const ir::Expr& expr, const std::vector<int>& depth) const;
  void find_order();
  void add_leaves(ir::ExprId user, ir::ValId val, std::vector<ir::ValId>& inputs) const;

  const ir::Fusion& fusion_;
  SizeHints hints_;
  std::vector<bool> free_;     // by ExprId
  std::vector<bool> written_;  // by ExprId: free and in a group
  std::vector<bool> output_;   // by ValId
  std::vector<ir::ExprId> order_;
  std::vector<std::uint32_t> rank_;
  std::vector<std::int64_t> bytes_;
  // Scratch of boundary(): the last call that saw a statement.
  mutable std::uint32_t call_ = 0;
  mutable std::vector<std::uint32_t> member_;
  mutable std::vector<std::uint32_t> seen_;
  mutable std::vector<int> slots_;
};

}  // namespace segfuse::compiler
