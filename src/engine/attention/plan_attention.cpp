// The steps of attention and of its gradients.

#include "base/check.h"
#include "engine/attention/attention.h"
#include "engine/exec/planner.h"
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
    std::vector<std::int64_t> next;
    for (const std::int64_t start : found.starts)
      for (std::int64_t i = 0; i < leading[a]; ++i) next.push_back(start + i * step(a));
    found.starts = std::move(next);
  }
  found.row = step(rank - 2);
  found.column = layout.shape[rank - 1] == 1 ? 0 : layout.strides[rank - 1];
  return found;
}

/// The operands of a step as they are in memory.
struct AttentionRefs {
  AttentionPlan plan;
  std::vector<Ref> operands;
  ir::AttentionOperands parts;
  Ref scratch, flags;

  template <class T>
  AttentionArrays<T> arrays(Run& run) const {
    AttentionArrays<T> in;
    in.q = run.array(operands[0]).as<const T>();
    in.k = run.array(operands[1]).as<const T>();
    in.v = run.array(operands[2]).as<const T>();
    if (parts.bias) in.bias = run.array(operands[*parts.bias]).as<const T>();
    if (parts.mask) in.mask = run.array(operands[*parts.mask]).as<const std::uint8_t>();
    in.scratch = run.array(scratch).as<T>();
    in.flags = run.array(flags).as<std::uint8_t>();
    return in;
  }
};

template <class Function>
void with_type(DType dtype, const Function& function) {
  if (dtype == DType::kF32) return function(float{});
  SEGFUSE_CHECK(dtype == DType::kF64, "attention of {}", name_of(dtype));
  function(double{});
}

/// What both directions need.
AttentionRefs attention_refs(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                             std::vector<Ref> operands) {
  const ir::Expr& expr = fusion.expr(id);
  AttentionRefs refs;
  refs.parts = ir::attention_operands(fusion, expr.op, expr.operands);
  refs.operands = std::move(operands);
  AttentionPlan& plan = refs.plan;
  const Shape& q = refs.operands[0].layout.shape;
  const Shape& v = refs.operands[2].layout.shape;
  const Shape leading(q.begin(), q.end() - 2);
  plan.batch = num_elements(leading);
  plan.rows = q[q.size() - 2];
  plan.inner = q.back();
  plan.columns = v[v.size() - 2];
  plan.outer = v.back();
  plan.scale = fusion.attr<double>(id, "scale");
  plan.fill = fusion.attr<double>(id, "fill");
  const auto& ahead = fusion.attr<ir::Extents>(id, "ahead");
  if (!ahead.empty()) plan.ahead = sizes.of(ahead[0]) - sizes.of(ahead[1]);
  const auto matrices_of = [&](std::size_t i) {
    return matrices(refs.operands[i].layout, leading);
  };
  plan.q = matrices_of(0);
  plan.k = matrices_of(1);
  plan.v = matrices_of(2);
  if (refs.parts.bias) plan.bias = matrices_of(*refs.parts.bias);
  if (refs.parts.mask) plan.mask = matrices_of(*refs.parts.mask);
  if (expr.op == ir::Op::attention_grad) plan.g = matrices_of(refs.parts.rest + 1);
  return refs;
}

}  // namespace

std::vector<Ref> CpuPlanner::attention_operands(ir::ExprId id) {
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

void CpuPlanner::plan_attention(ir::ExprId id) {
  AttentionRefs refs = attention_refs(fusion_, sizes_, id, attention_operands(id));
  const Ref out = compute(fusion_.result(id, 0));
  const Ref logs = compute(fusion_.result(id, 1));
  refs.scratch = scratch(out.dtype, {refs.plan.scratch(false)}, "keys by columns");
  refs.flags = scratch(DType::kBool, {refs.plan.flags(false)}, "finite values");
  const std::vector<Ref> operands = refs.operands;
  const std::vector<Ref> workspaces{refs.scratch, refs.flags};
  add_step(
      id, operands, {out, logs},
      [=](Run& run) {
        with_type(out.dtype, [&](auto zero) {
          using T = decltype(zero);
          attend<T>(run.pool, refs.plan, refs.arrays<T>(run), run.array(out).as<T>(),
                    run.array(logs).as<T>());
        });
      },
      {}, workspaces);
}

void CpuPlanner::plan_attention_grad(ir::ExprId id) {
  AttentionRefs refs = attention_refs(fusion_, sizes_, id, attention_operands(id));
  const DType type = dtype(fusion_.result(id));
  std::vector<Ref> results;
  std::vector<std::optional<Ref>> to;
  for (const ir::ValId result : fusion_.expr(id).results) {
    to.emplace_back();
    if (!wanted(result)) continue;
    to.back() = compute(result);
    results.push_back(*to.back());
  }
  refs.scratch = scratch(type, {refs.plan.scratch(true)}, "keys and values by columns");
  refs.flags = scratch(DType::kBool, {refs.plan.flags(true)}, "finite operands");
  const std::vector<Ref> operands = refs.operands;
  const std::vector<Ref> workspaces{refs.scratch, refs.flags};
  add_step(
      id, operands, results,
      [=](Run& run) {
        with_type(type, [&](auto zero) {
          using T = decltype(zero);
          const auto in = [&](std::size_t i) {
            return run.array(refs.operands[refs.parts.rest + i]).template as<const T>();
          };
          const auto out = [&](std::size_t i) {
            return to[i] ? run.array(*to[i]).template as<T>() : nullptr;
          };
          attend_grad<T>(run.pool, refs.plan, refs.template arrays<T>(run),
                         {in(0), in(1), in(2), out(0), out(1), out(2)});
        });
      },
      {}, workspaces);
}

}  // namespace segfuse::engine
