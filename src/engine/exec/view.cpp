#include "engine/exec/view.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::engine {

std::optional<Layout> view_of(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                              const Layout& layout) {
  using Ints = std::vector<std::int64_t>;
  const ir::Expr& expr = fusion.expr(id);
  const Shape target = sizes.of(fusion.val(expr.results[0]).shape);
  switch (expr.op) {
    case ir::Op::permute: return permuted(layout, fusion.attr<Ints>(id, "perm"));
    case ir::Op::broadcast: return broadcasted(layout, fusion.attr<Ints>(id, "axes"), target);
    case ir::Op::slice:
      return sliced(layout, sizes.of(fusion.attr<ir::Extents>(id, "starts")), target);
    case ir::Op::unfold: {
      const auto axis = static_cast<std::size_t>(fusion.attr<std::int64_t>(id, "axis"));
      return unfolded(layout, axis, target[axis], target[axis + 1],
                      fusion.attr<std::int64_t>(id, "stride"),
                      fusion.attr<std::int64_t>(id, "dilation"));
    }
    case ir::Op::squeeze:
    case ir::Op::reshape: return reshaped(layout, target);
    default: throw InternalError(fmt::format("'{}' is no view", ir::info(expr.op).name));
  }
}

}  // namespace segfuse::engine
