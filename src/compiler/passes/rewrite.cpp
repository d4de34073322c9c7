#include "compiler/passes/rewrite.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Op;
using ir::ValId;

namespace {

constexpr int kMaxSweeps = 10000;

Axes all_axes(std::size_t rank) {
  Axes axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

}  // namespace

const Expr* Rewriter::is(ValId val, Op op) const {
  const ExprId definition = fusion_.val(val).definition;
  if (!definition.valid()) return nullptr;
  const Expr& expr = fusion_.expr(definition);
  return expr.op == op ? &expr : nullptr;
}

std::optional<double> Rewriter::uniform(ValId val) const {
  const Expr* spread = is(val, Op::broadcast);
  const Expr* constant = is(spread ? spread->operands[0] : val, Op::constant);
  if (!constant) return {};
  return constant->attr<double>("value");
}

ValId Rewriter::before(Op moved, const Expr& expr, const ir::Extents& shape) {
  std::vector<ValId> sources;
  for (const ValId operand : expr.operands) {
    const auto value = uniform(operand);
    sources.push_back(value ? full(*value, shape, dtype(operand))
                            : is(operand, moved)->operands[0]);
  }
  return builder_.make(expr.op, sources, expr.attrs);
}

void Rewriter::replace(ValId old, ValId with) {
  const ExprId root = fusion_.val(old).definition;
  // Sizes that are equal by a requirement only, as 2*N and 3*M, stay two texts for one number.
  if (shape(with) != shape(old) && fusion_.equal(shape(with), shape(old)))
    with = builder_.broadcast(with, all_axes(shape(old).size()), shape(old));
  fusion_.redirect_uses(old, with);
  std::vector<ExprId> stack{root};
  while (!stack.empty()) {
    const ExprId id = stack.back();
    stack.pop_back();
    if (!fusion_.contains(id)) continue;
    const Expr& expr = fusion_.expr(id);
    const bool needed = std::any_of(expr.results.begin(), expr.results.end(), [&](ValId result) {
      return !fusion_.val(result).uses.empty() || fusion_.is_output(result);
    });
    if (needed) continue;
    for (const ValId operand : expr.operands)
      if (const ExprId next = fusion_.val(operand).definition; next.valid()) stack.push_back(next);
    fusion_.erase(id);
  }
}

bool rewrite(ir::Fusion& fusion, Rule rule) {
  Rewriter rewriter(fusion);
  bool changed = false;
  bool again = true;
  for (int sweep = 0; again; ++sweep) {
    SEGFUSE_CHECK(sweep < kMaxSweeps, "a rule over '{}' comes to rest", fusion.name());
    again = false;
    for (const ExprId id : fusion.live_exprs())
      if (fusion.contains(id) && rule(rewriter, id)) again = true;
    changed = changed || again;
  }
  return changed;
}

}  // namespace segfuse::compiler
