#pragma once
// What most passes share: a local rule, applied until it applies nowhere.

#include <optional>

#include "ir/builder.h"
#include "ir/fusion.h"

namespace segfuse::compiler {

using Axes = std::vector<std::int64_t>;

/// One place at which a rule may apply. Values that a rule makes must be used by the replacement:
/// it decides before it builds.
class Rewriter {
 public:
  explicit Rewriter(ir::Fusion& fusion) : fusion_(fusion), builder_(fusion) {}

  ir::Fusion& fusion() { return fusion_; }
  ir::Builder& build() { return builder_; }

  /// The definition of `val` if it is an `op`, else null. Good until something is erased.
  const ir::Expr* is(ir::ValId val, ir::Op op) const;
  ir::Extents shape(ir::ValId val) const { return fusion_.canonical(fusion_.val(val).shape); }
  bool same_shape(ir::ValId a, ir::ValId b) const { return shape(a) == shape(b); }
  DType dtype(ir::ValId val) const { return fusion_.val(val).dtype; }
  /// The scalar that `val` holds everywhere, if it is a constant or the broadcast of one.
  std::optional<double> uniform(ir::ValId val) const;
  /// A constant everywhere. `shape` may be [].
  ir::ValId full(double value, const ir::Extents& shape, DType dtype) {
    return builder_.full(value, shape, dtype);
  }

  /// The elementwise expression over what its operands were before a movement `moved`, of that
  /// shape; uniform ones become constants of it.
  ir::ValId before(ir::Op moved, const ir::Expr& expr, const ir::Extents& shape);

  /// Lets `with`, which does not depend on `old`, stand for it, and erases what nobody needs any
  /// more.
  void replace(ir::ValId old, ir::ValId with);

 private:
  ir::Fusion& fusion_;
  ir::Builder builder_;
};

/// Looks at one expression; true if it was replaced.
using Rule = bool (*)(Rewriter&, ir::ExprId);

/// Applies the rule to all live expressions in topological order, again until nothing changes.
bool rewrite(ir::Fusion& fusion, Rule rule);

}  // namespace segfuse::compiler
