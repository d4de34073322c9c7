#pragma once
// Which expressions are evaluated together.

#include <vector>

#include "ir/fusion.h"

namespace segfuse::engine {

/// Expressions that run as one step, in order. A pointwise group holds elementwise expressions and
/// random_uniform, all of one shape; every other group holds one expression.
struct Group {
  bool pointwise = false;
  std::vector<ir::ExprId> exprs;
};

/// All live expressions in groups, in an order in which they can run. Deterministic. Without
/// `fuse` every group holds one expression.
std::vector<Group> make_groups(const ir::Fusion& fusion, bool fuse = true);

}  // namespace segfuse::engine
