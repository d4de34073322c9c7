#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/exec/lines.h"
#include "engine/exec/matmul.h"
#include "engine/exec/move.h"
#include "engine/exec/planner.h"
#include "engine/exec/pointwise.h"
#include "engine/exec/reduce.h"
#include "engine/exec/semicrf_ops.h"

namespace segfuse::engine {

using Strides = std::vector<std::int64_t>;

// --- pointwise groups

bool CpuPlanner::used_outside(ir::ValId val, const Group& group) const {
  if (fusion_.is_output(val)) return true;
  const auto& uses = fusion_.val(val).uses;
  return std::any_of(uses.begin(), uses.end(), [&](ir::ExprId user) {
    return is_live(user) &&
           std::find(group.exprs.begin(), group.exprs.end(), user) == group.exprs.end();
  });
}

void CpuPlanner::plan_pointwise(const Group& group) {
  using Operand = PointwiseProgram::Operand;
  auto program = std::make_shared<PointwiseProgram>(shape(fusion_.result(group.exprs.front())));
  std::map<std::uint32_t, Operand> values;
  std::vector<Ref> loaded;
  std::vector<Ref> stored;
  auto operand = [&](ir::ValId val) {
    const auto known = values.find(val.index);
    if (known != values.end()) return known->second;
    loaded.push_back(ref(val));
    return values[val.index] = program->load(ref(val));
  };
  auto target = [&](ir::ValId val) {
    if (!used_outside(val, group)) return program->temporary(compute_type(dtype(val)));
    stored.push_back(compute(val));
    return program->store(stored.back());
  };
  for (const ir::ExprId id : group.exprs) {
    const ir::Expr& expr = fusion_.expr(id);
    const ir::ValId result = expr.results[0];
    if (expr.op == ir::Op::random_uniform) {
      loaded.push_back(ref(expr.operands[0]));
      const Operand out = values[result.index] = target(result);
      program->emit_random(out, loaded.back(), fusion_.attr<std::int64_t>(id, "stream"));
      continue;
    }
    Operand in[3];
    for (std::size_t i = 0; i < expr.operands.size(); ++i) in[i] = operand(expr.operands[i]);
    const DType from = compute_type(dtype(expr.operands.back()));
    const DType to = compute_type(dtype(result));
    const Loop loop =
        expr.op == ir::Op::cast ? cast_loop(from, dtype(result)) : pointwise_loop(expr.op, from);
    const Operand out = values[result.index] = target(result);
    program->emit(loop, out, {in[0], in[1], in[2]});
    if (to != dtype(result)) program->emit(round_loop(dtype(result)), out, {out});
  }
  program->finish();
  std::string what;
  if (group.exprs.size() > 1) {
    what = fmt::format("{} pointwise:", group.exprs.size());
    for (const ir::ExprId id : group.exprs) what += ' ' + name_of(id);
  }
  add_step(
      group.exprs.back(), std::move(loaded), std::move(stored),
      [program](Run& run) { program->run(run); }, std::move(what));
}

void CpuPlanner::plan_group(const Group& group) {
  if (group.pointwise) {
    plan_pointwise(group);
  } else {
    plan_expr(group.exprs.front());
  }
}

void CpuPlanner::plan_expr(ir::ExprId id) {
  switch (ir::info(fusion_.expr(id).op).op_class) {
    case ir::OpClass::kReduction: return plan_reduction(id);
    case ir::OpClass::kMovement: return plan_movement(id);
    case ir::OpClass::kCreation: return plan_creation(id);
    case ir::OpClass::kOpaque:
      switch (ir::as<ir::OpaqueOp>(fusion_.expr(id).op)) {
        case ir::OpaqueOp::matmul: return plan_matmul(id);
        case ir::OpaqueOp::cumsum:
        case ir::OpaqueOp::cumprod:
        case ir::OpaqueOp::cummax:
        case ir::OpaqueOp::cummin:
        case ir::OpaqueOp::cumlogsumexp:
        case ir::OpaqueOp::linear_scan: return plan_scan(id);
        case ir::OpaqueOp::scan: return plan_steps(id);
        case ir::OpaqueOp::sort: return plan_sort(id);
        case ir::OpaqueOp::attention: return plan_attention(id);
        case ir::OpaqueOp::attention_grad: return plan_attention_grad(id);
        case ir::OpaqueOp::semicrf_loss:
        case ir::OpaqueOp::semicrf_loss_grad: return plan_semicrf(id);
      }
      break;
    case ir::OpClass::kElementwise: break;
  }
  throw InternalError(fmt::format("no plan for '{}'", ir::info(fusion_.expr(id).op).name));
}

// --- creation and reductions

void CpuPlanner::plan_creation(ir::ExprId id) {
  const ir::ValId result = fusion_.result(id);
  switch (ir::as<ir::CreationOp>(fusion_.expr(id).op)) {
    case ir::CreationOp::constant:
      return set_ref(result, scalar(dtype(result), fusion_.attr<double>(id, "value")));
    case ir::CreationOp::extent: {
      const std::int64_t size = sizes_.of(fusion_.attr<ir::Extents>(id, "size")[0]);
      return set_ref(result, scalar(dtype(result), static_cast<double>(size)));
    }
    case ir::CreationOp::iota: {
      const Ref target = compute(result);
      add_step(id, {}, {target}, [target](Run& run) { iota(run.array(target)); });
      return round(id, result);
    }
    case ir::CreationOp::random_uniform: break;  // in a pointwise group
  }
  throw InternalError(fmt::format("no plan for '{}'", ir::info(fusion_.expr(id).op).name));
}

void CpuPlanner::plan_reduction(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  std::vector<Ref> targets;
  for (const ir::ValId result : expr.results) targets.push_back(compute(result));
  const Ref from = ref(expr.operands[0]);
  add_step(id, {from}, targets,
           [op = expr.op, from, targets, axes = fusion_.attr<Strides>(id, "axes")](Run& run) {
             std::vector<Array> to;
             for (const Ref& target : targets) to.push_back(run.array(target));
             reduce(run.pool, op, run.array(from), axes, to);
           });
  for (const ir::ValId result : expr.results) round(id, result);
}

// --- movement

void CpuPlanner::plan_pad(ir::ExprId id) {
  const Ref from = ref(fusion_.expr(id).operands[0]);
  const Ref value = scalar(dtype(fusion_.result(id)), fusion_.attr<double>(id, "value"));
  const Ref to = compute(fusion_.result(id));
  const Shape low = sizes_.of(fusion_.attr<ir::Extents>(id, "low"));
  add_step(id, {from, value}, {to}, [from, to, low, value](Run& run) {
    pad(run.pool, run.array(from), run.array(to), low, run.array(value).data);
  });
}

void CpuPlanner::plan_concat(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Ref whole = compute(expr.results[0]);
  Shape starts(whole.layout.shape.size(), 0);
  std::vector<Ref> from;
  std::vector<Ref> to;
  for (const ir::ValId operand : expr.operands) {
    from.push_back(ref(operand));
    to.push_back(whole);
    to.back().layout = sliced(whole.layout, starts, from.back().layout.shape);
    starts[axis] += from.back().layout.shape[axis];
  }
  add_step(id, from, {whole}, [from, to](Run& run) {
    for (std::size_t i = 0; i < from.size(); ++i)
      engine::copy(run.pool, run.array(from[i]), run.array(to[i]));
  });
}

void CpuPlanner::plan_fold(ir::ExprId id) {
  const Ref from = ref(fusion_.expr(id).operands[0]);
  const Ref to = compute(fusion_.result(id));
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const auto stride = fusion_.attr<std::int64_t>(id, "stride");
  const auto dilation = fusion_.attr<std::int64_t>(id, "dilation");
  add_step(id, {from}, {to}, [=](Run& run) {
    fold(run.pool, run.array(from), axis, stride, dilation, run.array(to));
  });
  round(id, fusion_.result(id));
}

void CpuPlanner::plan_movement(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  auto function = take;
  switch (ir::as<ir::MovementOp>(expr.op)) {
    case ir::MovementOp::pad: return plan_pad(id);
    case ir::MovementOp::concat: return plan_concat(id);
    case ir::MovementOp::fold: return plan_fold(id);
    case ir::MovementOp::take: break;
    case ir::MovementOp::gather: function = gather; break;
    case ir::MovementOp::scatter_add: function = scatter_add; break;
    case ir::MovementOp::permute:
    case ir::MovementOp::broadcast:
    case ir::MovementOp::squeeze:
    case ir::MovementOp::reshape:
    case ir::MovementOp::slice:
    case ir::MovementOp::unfold: return plan_view(id);
  }
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const Ref from = ref(expr.operands[0]);
  const Ref to = compute(expr.results[0]);
  const Ref indices = ref(expr.operands[1]);
  add_step(id, {from, indices}, {to}, [=](Run& run) {
    function(run.pool, run.array(from), run.array(indices), axis, run.array(to));
  });
  if (ir::adds(expr.op)) round(id, expr.results[0]);
}

// --- library calls

void CpuPlanner::plan_matmul(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const bool transpose_a = fusion_.attr<std::int64_t>(id, "transpose_a") != 0;
  const bool transpose_b = fusion_.attr<std::int64_t>(id, "transpose_b") != 0;
  Ref a = ref(expr.operands[0]);
  Ref b = ref(expr.operands[1]);
  auto matrix = [&](Ref& operand, bool transpose) {
    const std::optional<Matrix> direct = as_matrix(operand.layout, transpose);
    if (direct) return *direct;
    operand = packed(operand);
    // Axes of one element and empty arrays may have any strides.
    const std::int64_t offset = operand.layout.offset;
    operand.layout = contiguous(operand.layout.shape);
    operand.layout.offset = offset;
    return as_matrix(operand.layout, transpose).value();
  };
  const Matrix left = matrix(a, transpose_a);
  const Product product = plan_product(left, matrix(b, transpose_b));
  const Ref out = compute(expr.results[0]);
  std::vector<Ref> workspaces;
  if (product.scratch() > 0)
    workspaces.push_back(scratch(out.dtype, {product.scratch()}, "partial sums"));
  const Ref partial = workspaces.empty() ? out : workspaces[0];
  const auto multiply_all = [=](Run& run) {
    if (out.dtype == DType::kF32) {
      multiply(run.pool, product, run.array(a).as<const float>(), run.array(b).as<const float>(),
               run.array(out).as<float>(), run.array(partial).as<float>());
    } else {
      multiply(run.pool, product, run.array(a).as<const double>(), run.array(b).as<const double>(),
               run.array(out).as<double>(), run.array(partial).as<double>());
    }
  };
  add_step(id, {a, b}, {out}, multiply_all, {}, workspaces);
  round(id, expr.results[0]);
}

void CpuPlanner::plan_scan(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  std::vector<Ref> from;
  for (const ir::ValId operand : expr.operands) from.push_back(packed(ref(operand)));
  const Ref to = compute(expr.results[0]);
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const bool reverse = fusion_.attr<std::int64_t>(id, "reverse") != 0;
  add_step(id, from, {to}, [=, op = expr.op](Run& run) {
    const Array second = from.size() > 1 ? run.array(from[1]) : Array{};
    scan(run.pool, op, run.array(from[0]), second, axis, reverse, run.array(to));
  });
  round(id, expr.results[0]);
}

void CpuPlanner::plan_sort(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const Ref from = packed(ref(expr.operands[0]));
  const bool with_values = wanted(expr.results[0]), with_places = wanted(expr.results[1]);
  std::vector<Ref> results;
  if (with_values) results.push_back(compute(expr.results[0]));
  if (with_places) results.push_back(compute(expr.results[1]));
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const bool descending = fusion_.attr<std::int64_t>(id, "descending") != 0;
  add_step(id, {from}, results, [=](Run& run) {
    const Array values = with_values ? run.array(results.front()) : Array{};
    const Array places = with_places ? run.array(results.back()) : Array{};
    sort(run.pool, run.array(from), axis, descending, with_values ? &values : nullptr,
         with_places ? &places : nullptr);
  });
  if (with_values) round(id, expr.results[0]);
}

void CpuPlanner::plan_semicrf(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  std::vector<Ref> operands;
  for (const ir::ValId operand : expr.operands) operands.push_back(ref(operand));
  std::vector<Ref> results;
  std::vector<bool> has;
  for (const ir::ValId result : expr.results) {
    has.push_back(wanted(result));
    if (has.back()) results.push_back(compute(result));
  }
  const bool gradient = expr.op == ir::Op::semicrf_loss_grad;
  add_step(id, operands, results, [=](Run& run) {
    std::vector<Array> in;
    for (const Ref& operand : operands) in.push_back(run.array(operand));
    std::vector<Array> out;
    std::size_t next = 0;
    for (const bool want : has) out.push_back(want ? run.array(results[next++]) : Array{});
    if (gradient) {
      run.semicrf.loss_grad(in, out);
    } else {
      run.semicrf.loss(in, out[0]);
    }
  });
}

}  // namespace segfuse::engine
