#include <algorithm>
#include <numeric>

#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::ValId;

namespace {

bool is_identity(const Axes& perm) {
  for (std::size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

bool all_zero(const Extents& extents) {
  return std::all_of(extents.begin(), extents.end(),
                     [](const Extent& e) { return e.is_constant(0); });
}

Axes axes_of_size(const Extents& shape, bool one) {
  Axes axes;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i].is_constant(1) == one) axes.push_back(static_cast<std::int64_t>(i));
  return axes;
}

Extents picked(const Extents& shape, const Axes& axes) {
  Extents all;
  for (const std::int64_t axis : axes) all.push_back(shape[static_cast<std::size_t>(axis)]);
  return all;
}

bool permute_of_broadcast(Rewriter& r, const Expr& e, const Expr& inner) {
  const Axes& perm = e.attr<Axes>("perm");
  const Axes& axes = inner.attr<Axes>("axes");
  Axes order;   // of the source's axes
  Axes places;  // in the result
  for (std::size_t i = 0; i < perm.size(); ++i) {
    const auto from = std::find(axes.begin(), axes.end(), perm[i]);
    if (from == axes.end()) continue;
    order.push_back(from - axes.begin());
    places.push_back(static_cast<std::int64_t>(i));
  }
  ValId source = inner.operands[0];
  if (!is_identity(order)) source = r.build().permute(source, order);
  r.replace(e.results[0], r.build().broadcast(source, places, r.shape(e.results[0])));
  return true;
}

bool on_permute(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  const Axes& perm = e.attr<Axes>("perm");
  if (is_identity(perm)) {
    r.replace(e.results[0], from);
    return true;
  }
  if (const Expr* inner = r.is(from, Op::permute)) {
    const Axes& first = inner->attr<Axes>("perm");
    Axes joined;
    for (const std::int64_t axis : perm) joined.push_back(first[static_cast<std::size_t>(axis)]);
    const ValId source = inner->operands[0];
    r.replace(e.results[0],
              is_identity(joined) ? source : r.build().permute(source, std::move(joined)));
    return true;
  }
  if (const Expr* inner = r.is(from, Op::broadcast))
    return permute_of_broadcast(r, e, Expr(*inner));
  return false;
}

/// The value that a chain of reshapes, and of squeezes and broadcasts that only drop or add axes of
/// size 1, begins with; only if there is a reshape on the way.
ValId reshaped_from(Rewriter& r, ValId from) {
  bool reshape = false;
  while (true) {
    const Expr* e = r.is(from, Op::reshape);
    if (e) reshape = true;
    if (!e) e = r.is(from, Op::squeeze);
    if (!e) {
      e = r.is(from, Op::broadcast);
      const Extents shape = r.shape(from);
      if (e && picked(shape, axes_of_size(shape, false)) !=
                   picked(r.shape(e->operands[0]), axes_of_size(r.shape(e->operands[0]), false)))
        e = nullptr;
    }
    if (!e) return reshape ? from : ValId{};
    from = e->operands[0];
  }
}

/// A reshape that keeps all sizes but ones, as squeeze and broadcast.
bool reshape_of_ones(Rewriter& r, const Expr& e) {
  const Extents from = r.shape(e.operands[0]);
  const Extents to = r.shape(e.results[0]);
  const Axes kept = axes_of_size(to, false);
  if (picked(from, axes_of_size(from, false)) != picked(to, kept)) return false;
  ValId value = e.operands[0];
  const Axes ones = axes_of_size(from, true);
  if (!ones.empty()) value = r.build().squeeze(value, ones);
  if (kept.size() < to.size()) value = r.build().broadcast(value, kept, to);
  r.replace(e.results[0], value);
  return true;
}

/// The axis that a reshape splits into `count`, if it does that and nothing else.
struct SplitAxis {
  std::size_t axis;
  std::size_t count;
};

std::optional<SplitAxis> split_axis(const Extents& from, const Extents& to) {
  if (from.empty() || to.size() <= from.size()) return {};
  std::size_t first = 0;
  while (first + 1 < from.size() && from[first] == to[first]) ++first;
  const std::size_t after = from.size() - first - 1;
  if (!std::equal(from.end() - static_cast<std::ptrdiff_t>(after), from.end(),
                  to.end() - static_cast<std::ptrdiff_t>(after)))
    return {};
  return SplitAxis{first, to.size() - from.size() + 1};
}

/// Whether the value is made from what a reduction gave, without a change of its axes' sizes.
bool follows_reduction(Rewriter& r, ValId val) {
  constexpr std::size_t kMaxVisited = 64;
  std::vector<ValId> open{val};
  for (std::size_t next = 0; next < open.size() && next < kMaxVisited; ++next) {
    const ExprId definition = r.fusion().val(open[next]).definition;
    if (!definition.valid()) continue;
    const Expr& e = r.fusion().expr(definition);
    const ir::OpClass kind = ir::info(e.op).op_class;
    if (kind == ir::OpClass::kReduction) return true;
    if (kind != ir::OpClass::kElementwise && e.op != Op::broadcast && e.op != Op::squeeze &&
        e.op != Op::permute)
      continue;
    for (const ValId operand : e.operands)
      if (std::find(open.begin(), open.end(), operand) == open.end()) open.push_back(operand);
  }
  return false;
}

/// The operand of an elementwise expression whose result is reshaped to `shape`, in that shape.
ValId split_operand(Rewriter& r, ValId operand, const Extents& shape, SplitAxis split) {
  if (const auto value = r.uniform(operand)) return r.full(*value, shape, r.dtype(operand));
  const Expr* e = r.is(operand, Op::reshape);
  if (e && r.shape(e->operands[0]) == shape) return e->operands[0];
  e = r.is(operand, Op::broadcast);
  if (!e) return r.build().reshape(operand, shape);
  ValId source = e->operands[0];
  const Axes axes = e->attr<Axes>("axes");
  const Extents whole = r.shape(source);
  Axes places;
  Extents sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const bool here = axis == split.axis && !whole[i].is_constant(1);
    for (std::size_t k = 0; k < (here ? split.count : 1); ++k) {
      const std::size_t place = axis + k + (axis > split.axis ? split.count - 1 : 0);
      places.push_back(static_cast<std::int64_t>(place));
      sizes.push_back(here ? shape[place] : whole[i]);
    }
  }
  if (sizes != whole) source = r.build().reshape(source, sizes);
  return r.build().broadcast(source, places, shape);
}

/// A result that is stored and also read with an axis split is computed in that shape, so that both
/// are of one kernel: reshape(f(a)) is f(reshape(a)), and what is stored is f(reshape(a)) with the
/// axes joined.
bool reshape_of_stored(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  const ExprId definition = r.fusion().val(from).definition;
  if (!definition.valid()) return false;
  const Expr f = r.fusion().expr(definition);
  if (ir::info(f.op).op_class != ir::OpClass::kElementwise || f.results.size() != 1) return false;
  const Extents shape = r.shape(e.results[0]);
  const std::optional<SplitAxis> split = split_axis(r.shape(from), shape);
  if (!split) return false;
  bool stored = r.fusion().is_output(from);
  for (const ExprId use : r.fusion().val(from).uses) {
    const Expr& user = r.fusion().expr(use);
    if (user.op == Op::reshape) continue;
    if (ir::info(user.op).op_class != ir::OpClass::kOpaque) return false;
    stored = true;
  }
  if (!stored) return false;
  // elementwise_of_reshape would undo it.
  for (const ValId operand : f.operands)
    if (!r.is(operand, Op::broadcast) && follows_reduction(r, operand)) return false;
  std::vector<ValId> operands;
  for (const ValId operand : f.operands)
    operands.push_back(split_operand(r, operand, shape, *split));
  const ValId result = r.build().make(f.op, operands, f.attrs);
  const Extents joined = r.shape(from);
  r.replace(e.results[0], result);
  r.replace(from, r.build().reshape(result, joined));
  return true;
}

bool on_reshape(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  if (r.same_shape(from, e.results[0])) {
    r.replace(e.results[0], from);
    return true;
  }
  if (reshape_of_ones(r, e) || reshape_of_stored(r, e)) return true;
  const ValId source = reshaped_from(r, from);
  if (!source.valid()) return false;
  r.replace(e.results[0], r.build().reshape(source, r.shape(e.results[0])));
  return true;
}

bool on_squeeze(Rewriter& r, const Expr& e) {
  const Expr* inner = r.is(e.operands[0], Op::permute);
  if (!inner) return false;
  const Axes perm = inner->attr<Axes>("perm");
  const Axes& dropped = e.attr<Axes>("axes");
  Axes gone;
  for (const std::int64_t axis : dropped) gone.push_back(perm[static_cast<std::size_t>(axis)]);
  std::sort(gone.begin(), gone.end());
  Axes order;
  for (std::size_t i = 0; i < perm.size(); ++i) {
    if (std::binary_search(dropped.begin(), dropped.end(), static_cast<std::int64_t>(i))) continue;
    const auto before = std::lower_bound(gone.begin(), gone.end(), perm[i]) - gone.begin();
    order.push_back(perm[i] - before);
  }
  ValId value = r.build().squeeze(inner->operands[0], gone);
  if (!is_identity(order)) value = r.build().permute(value, order);
  r.replace(e.results[0], value);
  return true;
}

bool on_slice(Rewriter& r, const Expr& e) {
  const ValId from = e.operands[0];
  const Extents starts = r.fusion().canonical(e.attr<Extents>("starts"));
  if (all_zero(starts) && r.same_shape(from, e.results[0])) {
    r.replace(e.results[0], from);
    return true;
  }
  const Expr* inner = r.is(from, Op::slice);
  if (!inner) return false;
  // The inner slice bounds what the outer one may read. Both must be known to be inside, or an
  // error at run time would be lost.
  const ValId source = inner->operands[0];
  Extents joined = r.fusion().canonical(inner->attr<Extents>("starts"));
  const Extents whole = r.shape(source);
  const Extents bound = r.shape(from);
  const Extents sizes = r.shape(e.results[0]);
  for (std::size_t i = 0; i < joined.size(); ++i) {
    const Extent left_by_inner = whole[i] - joined[i] - bound[i];
    const Extent left_by_outer = bound[i] - starts[i] - sizes[i];
    if (!left_by_inner.is_constant() || !left_by_outer.is_constant()) return false;
    joined[i] = joined[i] + starts[i];
  }
  r.replace(e.results[0], r.build().slice(source, joined, sizes));
  return true;
}

/// f(permute(a)) is permute(f(a)), also for several operands that are permuted in the same way.
bool on_elementwise(Rewriter& r, const Expr& e) {
  const Expr* first = nullptr;
  for (const ValId operand : e.operands) {
    if (r.uniform(operand)) continue;
    const Expr* moved = r.is(operand, Op::permute);
    if (!moved || r.fusion().val(operand).uses.size() != 1 || r.fusion().is_output(operand))
      return false;
    if (!first) first = moved;
    if (moved->attr<Axes>("perm") != first->attr<Axes>("perm")) return false;
  }
  if (!first) return false;
  const Axes perm = first->attr<Axes>("perm");
  const ValId result = r.before(Op::permute, e, r.shape(first->operands[0]));
  r.replace(e.results[0], r.build().permute(result, perm));
  return true;
}

/// f(reshape(a), b) is reshape(f(a, reshape(b))), where a depends on the axes that its reductions
/// had and b may be read along these as well: a norm of groups, scaled by channels.
bool elementwise_of_reshape(Rewriter& r, const Expr& e) {
  const Expr* moved = nullptr;
  for (const ValId operand : e.operands)
    if (const Expr* reshape = r.is(operand, Op::reshape);
        reshape && !moved && follows_reduction(r, reshape->operands[0]))
      moved = reshape;
  if (!moved) return false;
  const Extents shape = r.shape(moved->operands[0]);
  const auto source = [&](ValId operand) {
    const Expr* reshape = r.is(operand, Op::reshape);
    return reshape && r.shape(reshape->operands[0]) == shape ? reshape->operands[0] : ValId{};
  };
  for (const ValId operand : e.operands)
    if (!source(operand).valid() && follows_reduction(r, operand)) return false;
  std::vector<ValId> operands;
  for (const ValId operand : e.operands) {
    const auto value = r.uniform(operand);
    operands.push_back(value                     ? r.full(*value, shape, r.dtype(operand))
                       : source(operand).valid() ? source(operand)
                                                 : r.build().reshape(operand, shape));
  }
  const ValId result = r.build().make(e.op, operands, e.attrs);
  r.replace(e.results[0], r.build().reshape(result, r.shape(e.results[0])));
  return true;
}

/// Whether the permutation exchanges the last two axes and keeps the others.
bool exchanges_last_two(const Axes& perm) {
  Axes exchanged(perm.size());
  std::iota(exchanged.begin(), exchanged.end(), 0);
  if (exchanged.size() < 2) return false;
  std::swap(exchanged.end()[-1], exchanged.end()[-2]);
  return perm == exchanged;
}

/// A product reads a transposed matrix where it is.
bool product_of_transposed(Rewriter& r, const Expr& e) {
  bool changed = false;
  ValId operands[2] = {e.operands[0], e.operands[1]};
  bool transposed[2] = {e.attr<std::int64_t>("transpose_a") != 0,
                        e.attr<std::int64_t>("transpose_b") != 0};
  for (const std::size_t i : {0, 1}) {
    const Expr* moved = r.is(operands[i], Op::permute);
    if (!moved || !exchanges_last_two(moved->attr<Axes>("perm"))) continue;
    operands[i] = moved->operands[0];
    transposed[i] = !transposed[i];
    changed = true;
  }
  if (!changed) return false;
  r.replace(e.results[0], r.build().matmul(operands[0], operands[1], transposed[0], transposed[1]));
  return true;
}

bool movement_rule(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  if (e.op == Op::matmul) return product_of_transposed(r, e);
  if (ir::info(e.op).op_class == ir::OpClass::kElementwise)
    return on_elementwise(r, e) || elementwise_of_reshape(r, e);
  if (ir::info(e.op).op_class != ir::OpClass::kMovement) return false;
  switch (ir::as<ir::MovementOp>(e.op)) {
    case ir::MovementOp::permute: return on_permute(r, e);
    case ir::MovementOp::reshape: return on_reshape(r, e);
    case ir::MovementOp::squeeze: return on_squeeze(r, e);
    case ir::MovementOp::slice: return on_slice(r, e);
    case ir::MovementOp::pad:
      if (!all_zero(e.attr<Extents>("low")) || !all_zero(e.attr<Extents>("high"))) return false;
      r.replace(e.results[0], e.operands[0]);
      return true;
    case ir::MovementOp::concat:
      if (e.operands.size() != 1) return false;
      r.replace(e.results[0], e.operands[0]);
      return true;
    case ir::MovementOp::broadcast:
    case ir::MovementOp::take:
    case ir::MovementOp::gather:
    case ir::MovementOp::scatter_add:
    case ir::MovementOp::unfold:
    case ir::MovementOp::fold: break;
  }
  return false;
}

}  // namespace

bool clean_movement(ir::Fusion& fusion) { return rewrite(fusion, movement_rule); }

}  // namespace segfuse::compiler
