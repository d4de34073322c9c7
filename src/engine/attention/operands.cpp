// The operands of attention and of its gradients, as the plans of all targets have them.

#include "engine/attention/operands.h"

#include "engine/plan/builder.h"
#include "ir/attention.h"

namespace segfuse::engine {
namespace {

/// Elements of each row beside each other, or repeated.
bool has_rows(const Layout& layout, bool may_repeat) {
  const std::int64_t last = layout.strides.back();
  return layout.shape.back() <= 1 || last == 1 || (may_repeat && last == 0);
}

/// Of `batch` by the leading axes of the scores, for which a size of 1 is repeated.
AttentionMatrices matrices(const Layout& layout, const Shape& leading) {
  const std::size_t rank = layout.shape.size();
  const auto step = [&](std::size_t a) { return layout.shape[a] == 1 ? 0 : layout.strides[a]; };
  AttentionMatrices found;
  found.starts = {0};
  for (std::size_t a = 0; a + 2 < rank; ++a) {
    found.steps.push_back(step(a));
    std::vector<std::int64_t> next;
    for (const std::int64_t start : found.starts)
      for (std::int64_t i = 0; i < leading[a]; ++i) next.push_back(start + i * step(a));
    found.starts = std::move(next);
  }
  found.row = step(rank - 2);
  found.column = layout.shape[rank - 1] == 1 ? 0 : layout.strides[rank - 1];
  return found;
}

}  // namespace

AttentionPlan attention_plan(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                             std::span<const Ref> operands) {
  const ir::Expr& expr = fusion.expr(id);
  const ir::AttentionOperands parts = ir::attention_operands(fusion, expr.op, expr.operands);
  AttentionPlan plan;
  const Shape& q = operands[0].layout.shape;
  const Shape& v = operands[2].layout.shape;
  plan.leading.assign(q.begin(), q.end() - 2);
  plan.batch = num_elements(plan.leading);
  plan.rows = q[q.size() - 2];
  plan.inner = q.back();
  plan.columns = v[v.size() - 2];
  plan.outer = v.back();
  plan.scale = fusion.attr<double>(id, "scale");
  plan.fill = fusion.attr<double>(id, "fill");
  const auto& ahead = fusion.attr<ir::Extents>(id, "ahead");
  if (!ahead.empty()) plan.ahead = sizes.of(ahead[0]) - sizes.of(ahead[1]);
  const auto matrices_of = [&](std::size_t i) {
    return matrices(operands[i].layout, plan.leading);
  };
  plan.q = matrices_of(0);
  plan.k = matrices_of(1);
  plan.v = matrices_of(2);
  if (parts.bias) plan.bias = matrices_of(*parts.bias);
  if (parts.mask) plan.mask = matrices_of(*parts.mask);
  if (expr.op == ir::Op::attention_grad) plan.g = matrices_of(parts.rest + 1);
  return plan;
}

std::vector<Ref> PlanBuilder::attention_operands(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const ir::AttentionOperands parts = ir::attention_operands(fusion_, expr.op, expr.operands);
  std::vector<Ref> operands;
  for (std::size_t i = 0; i < expr.operands.size(); ++i) {
    const Ref& from = ref(expr.operands[i]);
    const bool row_sums = i == parts.rest || i == parts.rest + 2;
    const bool may_repeat = i == parts.bias || i == parts.mask;
    operands.push_back(!row_sums && has_rows(from.layout, may_repeat) ? from : packed(from));
  }
  return operands;
}

}  // namespace segfuse::engine
