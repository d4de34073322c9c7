// The steps of attention and of its gradients.

#include "base/check.h"
#include "engine/attention/operands.h"
#include "engine/exec/planner.h"
#include "ir/attention.h"

namespace segfuse::engine {
namespace {

/// The operands of a step as they are in memory.
struct AttentionRefs {
  AttentionPlan plan;
  std::vector<Ref> operands;
  ir::AttentionOperands parts;
  Ref flags;
  std::optional<Ref> splits;  ///< of gradients

  template <class T>
  AttentionArrays<T> arrays(Run& run) const {
    AttentionArrays<T> in;
    in.q = run.array(operands[0]).as<const T>();
    in.k = run.array(operands[1]).as<const T>();
    in.v = run.array(operands[2]).as<const T>();
    if (parts.bias) in.bias = run.array(operands[*parts.bias]).as<const T>();
    if (parts.mask) in.mask = run.array(operands[*parts.mask]).as<const std::uint8_t>();
    if (splits) in.split_logs = run.array(*splits).as<T>();
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
  return {attention_plan(fusion, sizes, id, operands),
          std::move(operands),
          ir::attention_operands(fusion, expr.op, expr.operands),
          {},
          {}};
}

}  // namespace

void CpuPlanner::plan_attention(ir::ExprId id) {
  AttentionRefs refs = attention_refs(fusion_, sizes_, id, attention_operands(id));
  const Ref out = compute(fusion_.result(id, 0));
  const Ref logs = compute(fusion_.result(id, 1));
  refs.flags = scratch(DType::kBool, {refs.plan.flags(false)}, "finite values");
  const std::vector<Ref> operands = refs.operands;
  const std::vector<Ref> workspaces{refs.flags};
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
  round(id, fusion_.result(id));
}

void CpuPlanner::plan_attention_grad(ir::ExprId id) {
  AttentionRefs refs = attention_refs(fusion_, sizes_, id, attention_operands(id));
  const DType type = ir::attention_sums(dtype(fusion_.result(id)));
  std::vector<Ref> results;
  std::vector<std::optional<Ref>> to;
  for (const ir::ValId result : fusion_.expr(id).results) {
    to.emplace_back();
    if (!wanted(result)) continue;
    to.back() = compute(result);
    results.push_back(*to.back());
  }
  refs.splits = scratch(type, {2 * refs.plan.batch * refs.plan.rows}, "logarithms of attention");
  refs.flags = scratch(DType::kBool, {refs.plan.flags(true)}, "finite operands");
  const std::vector<Ref> operands = refs.operands;
  const std::vector<Ref> workspaces{*refs.splits, refs.flags};
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
  for (const ir::ValId result : fusion_.expr(id).results)
    if (wanted(result)) round(id, result);
}

}  // namespace segfuse::engine
