#include <algorithm>

#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extents;
using ir::Op;
using ir::ValId;

namespace {

bool contains(const Axes& axes, std::size_t axis) {
  return std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(axis));
}

/// The axes of a value of this rank that are not among `axes`.
Axes others(const Axes& axes, std::size_t rank) {
  Axes kept;
  for (std::size_t i = 0; i < rank; ++i)
    if (!contains(axes, i)) kept.push_back(static_cast<std::int64_t>(i));
  return kept;
}

/// broadcast(squeeze(x)) as one broadcast of x: its axes of size 1 go to result axes that come from
/// nowhere. Empty if there is no room for them.
std::optional<Axes> room_for_squeezed(const Axes& squeezed, std::size_t rank, const Axes& targets,
                                      std::size_t target_rank) {
  Axes places(rank);
  std::int64_t next = 0;  // the first result axis that is free
  for (std::size_t axis = 0, kept = 0; axis < rank; ++axis) {
    if (!contains(squeezed, axis)) {
      places[axis] = targets[kept++];
      if (places[axis] < next) return {};
      next = places[axis] + 1;
      continue;
    }
    places[axis] = next++;
  }
  if (next > static_cast<std::int64_t>(target_rank)) return {};
  return places;
}

bool on_broadcast(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  const Axes& axes = e.attr<Axes>("axes");
  if (r.same_shape(from, e.results[0])) {
    r.replace(e.results[0], from);
    return true;
  }
  if (const Expr* inner = r.is(from, Op::broadcast)) {
    Axes joined;
    for (const std::int64_t axis : inner->attr<Axes>("axes"))
      joined.push_back(axes[static_cast<std::size_t>(axis)]);
    const ValId source = inner->operands[0];
    r.replace(e.results[0], r.build().broadcast(source, joined, r.shape(e.results[0])));
    return true;
  }
  if (const Expr* inner = r.is(from, Op::squeeze)) {
    const ValId source = inner->operands[0];
    const Extents target = r.shape(e.results[0]);
    const auto places =
        room_for_squeezed(inner->attr<Axes>("axes"), r.shape(source).size(), axes, target.size());
    if (!places) return false;
    r.replace(e.results[0], r.build().broadcast(source, *places, target));
    return true;
  }
  return false;
}

bool squeeze_of_broadcast(Rewriter& r, const Expr& e, const Expr& inner) {
  const Axes& dropped = e.attr<Axes>("axes");
  const Axes axes = inner.attr<Axes>("axes");
  const Extents full = r.shape(e.operands[0]);
  ValId source = inner.operands[0];
  Axes gone;    // axes of the source that are dropped
  Axes places;  // where the others stand in the result
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (contains(dropped, static_cast<std::size_t>(axes[i]))) {
      gone.push_back(static_cast<std::int64_t>(i));
      continue;
    }
    const auto before = std::lower_bound(dropped.begin(), dropped.end(), axes[i]);
    places.push_back(axes[i] - (before - dropped.begin()));
  }
  if (!gone.empty()) source = r.build().squeeze(source, gone);
  r.replace(e.results[0], r.build().broadcast(source, places, r.shape(e.results[0])));
  return true;
}

bool broadcast_of_squeeze(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  const Axes& axes = e.attr<Axes>("axes");
  if (axes.empty()) {
    r.replace(e.results[0], from);
    return true;
  }
  if (const Expr* inner = r.is(from, Op::squeeze)) {
    const ValId source = inner->operands[0];
    const std::size_t rank = r.shape(source).size();
    Axes all = inner->attr<Axes>("axes");
    const Axes kept = others(all, rank);
    for (const std::int64_t axis : axes) all.push_back(kept[static_cast<std::size_t>(axis)]);
    r.replace(e.results[0], r.build().squeeze(source, all));
    return true;
  }
  if (const Expr* inner = r.is(from, Op::broadcast))
    return squeeze_of_broadcast(r, e, Expr(*inner));
  return false;
}

/// f(broadcast(a), broadcast(b)) is broadcast(f(a, b)) when both are broadcast in the same way;
/// constants follow any way, and are scalars when they are alone.
bool broadcast_of_elementwise(Rewriter& r, const Expr& e) {
  const Expr* first = nullptr;
  for (const ValId operand : e.operands) {
    if (r.uniform(operand)) continue;
    const Expr* spread = r.is(operand, Op::broadcast);
    if (!spread) return false;
    if (!first) first = spread;
    if (spread->attr<Axes>("axes") != first->attr<Axes>("axes") ||
        !r.same_shape(spread->operands[0], first->operands[0]))
      return false;
  }
  if (!first && r.shape(e.results[0]).empty()) return false;
  const Axes axes = first ? first->attr<Axes>("axes") : Axes{};
  const Extents small = first ? r.shape(first->operands[0]) : Extents{};
  const ValId result = r.before(Op::broadcast, e, small);
  r.replace(e.results[0], r.build().broadcast(result, axes, r.shape(e.results[0])));
  return true;
}

bool broadcasts_rule(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  if (e.op == Op::broadcast) return on_broadcast(r, e);
  if (e.op == Op::squeeze) return broadcast_of_squeeze(r, e);
  return ir::info(e.op).op_class == ir::OpClass::kElementwise && broadcast_of_elementwise(r, e);
}

}  // namespace

bool clean_broadcasts(ir::Fusion& fusion) { return rewrite(fusion, broadcasts_rule); }

}  // namespace segfuse::compiler
