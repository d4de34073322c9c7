#include "engine/exec/view.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::engine {

std::optional<Layout> view_of(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                              const Layout& layout) {
  using Ints = std::vector<std::int64_t>;
  const ir::Expr& expr = fusion.expr(id);
  const Shape target = sizes.of(fusion.val(expr.results[0]).shape);
  switch (ir::as<ir::MovementOp>(expr.op)) {
    case ir::MovementOp::permute: return permuted(layout, fusion.attr<Ints>(id, "perm"));
    case ir::MovementOp::broadcast:
      return broadcasted(layout, fusion.attr<Ints>(id, "axes"), target);
    case ir::MovementOp::slice:
      return sliced(layout, sizes.of(fusion.attr<ir::Extents>(id, "starts")), target);
    case ir::MovementOp::unfold: {
      const auto axis = static_cast<std::size_t>(fusion.attr<std::int64_t>(id, "axis"));
      return unfolded(layout, axis, target[axis], target[axis + 1],
                      fusion.attr<std::int64_t>(id, "stride"),
                      fusion.attr<std::int64_t>(id, "dilation"));
    }
    case ir::MovementOp::squeeze:
    case ir::MovementOp::reshape: return reshaped(layout, target);
    case ir::MovementOp::pad:
    case ir::MovementOp::concat:
    case ir::MovementOp::take:
    case ir::MovementOp::gather:
    case ir::MovementOp::scatter_add:
    case ir::MovementOp::fold: break;
  }
  throw InternalError(fmt::format("'{}' is not a view", ir::info(expr.op).name));
}

}  // namespace segfuse::engine
