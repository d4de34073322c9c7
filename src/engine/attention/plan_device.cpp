// The steps of attention and of its gradients on a GPU.

#include <array>

#include "engine/attention/gpu/launch.h"
#include "engine/attention/operands.h"
#include "engine/device/device_planner.h"
#include "ir/attention.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t word_of(AttentionAddress address) {
  return static_cast<std::size_t>(address);
}

std::int64_t flags_of(std::int64_t rows) { return (rows + kFlagRows - 1) / kFlagRows; }

}  // namespace

DevicePlanner::AttentionStep DevicePlanner::attention_step(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const ir::AttentionOperands parts = ir::attention_operands(fusion_, expr.op, expr.operands);
  AttentionStep step;
  step.operands = attention_operands(id);
  step.plan = attention_plan(fusion_, sizes_, id, step.operands);
  const auto read = [&](AttentionAddress address, std::size_t operand) {
    step.refs.push_back({word_of(address), step.operands[operand]});
  };
  read(AttentionAddress::kQ, 0);
  read(AttentionAddress::kK, 1);
  read(AttentionAddress::kV, 2);
  if (parts.bias) read(AttentionAddress::kBias, *parts.bias);
  if (parts.mask) read(AttentionAddress::kMask, *parts.mask);
  step.rest = parts.rest;
  const auto is_aligned = [&](std::size_t operand) {
    return alignment_of(step.operands[operand]) >= 16;
  };
  step.aligned = is_aligned(0) && is_aligned(1) && is_aligned(2) &&
                 (parts.rest == step.operands.size() || is_aligned(parts.rest + 1));
  return step;
}

void DevicePlanner::launch_attention(const AttentionStep& step, AttentionKernel kernel,
                                     std::string name, std::span<const Addressed> more) {
  const DType type = step.operands[0].dtype;
  std::vector<Addressed> refs = step.refs;
  refs.insert(refs.end(), more.begin(), more.end());
  const auto shared = static_cast<std::size_t>(accelerator_.kernels()->shared_bytes());
  add_library(
      std::move(name),
      attention_launch(kernel, type, step.plan, step.aligned,
                       attention_tiles(kernel, type, step.plan.inner, step.plan.outer, shared)),
      refs);
}

/// Flags of the rows of operands, which a band needs that hides tiles.
Ref DevicePlanner::finite_rows(const AttentionStep& step, std::int64_t rows,
                               const std::vector<FiniteMatrix>& matrices,
                               std::span<const Ref> operands) {
  const Ref flags =
      scratch(DType::kBool, {step.plan.batch * flags_of(rows)}, "finite rows of attention");
  std::vector<Addressed> refs;
  for (std::size_t i = 0; i < operands.size(); ++i) refs.push_back({i, operands[i]});
  refs.push_back({3, flags, true});
  add_library("attention finite",
              attention_finite_launch(step.operands[0].dtype, step.plan, rows, matrices), refs);
  return flags;
}

void DevicePlanner::add_attention(ir::ExprId id) {
  AttentionStep step = attention_step(id);
  const Ref out = place(fusion_.result(id, 0));
  const Ref logs = place(fusion_.result(id, 1));
  const AttentionPlan& plan = step.plan;
  if (num_elements(logs.layout.shape) == 0) {
    touch(out);
    return touch(logs);
  }
  if (num_elements(out.layout.shape) == 0) touch(out);
  if (plan.skips() && plan.columns > 0) {
    const FiniteMatrix values{&plan.v, plan.outer};
    step.refs.push_back({word_of(AttentionAddress::kColumnFlags),
                         finite_rows(step, plan.columns, {values}, {&step.operands[2], 1})});
  }
  const std::array<Addressed, 2> results{{{word_of(AttentionAddress::kFirst), out, true},
                                          {word_of(AttentionAddress::kLog), logs, true}}};
  launch_attention(step, AttentionKernel::kResult, name_of(id), results);
}

void DevicePlanner::add_attention_grad(ir::ExprId id) {
  AttentionStep step = attention_step(id);
  const AttentionPlan& plan = step.plan;
  std::array<std::optional<Ref>, 3> to;
  for (std::size_t i = 0; i < to.size(); ++i)
    if (const ir::ValId result = fusion_.result(id, i); wanted(result)) to[i] = place(result);
  const bool empty = plan.batch == 0 || plan.rows == 0 || plan.columns == 0;
  for (const std::optional<Ref>& ref : to)
    if (ref && (empty || num_elements(ref->layout.shape) == 0)) touch(*ref);
  if (empty) return;

  const Ref& logs = step.operands[step.rest];
  const Ref& g = step.operands[step.rest + 1];
  if (plan.skips()) {
    AttentionMatrices of_logs;
    std::int64_t each = plan.rows;
    of_logs.steps.resize(plan.leading.size());
    for (std::size_t a = plan.leading.size(); a-- > 0; each *= plan.leading[a])
      of_logs.steps[a] = each;
    of_logs.row = 1;
    step.refs.push_back(
        {word_of(AttentionAddress::kRowFlags),
         finite_rows(step, plan.rows,
                     {{&plan.q, plan.inner}, {&plan.g, plan.outer}, {&of_logs, 1, true}},
                     std::array<Ref, 3>{step.operands[0], g, logs})});
    step.refs.push_back(
        {word_of(AttentionAddress::kColumnFlags),
         finite_rows(step, plan.columns, {{&plan.k, plan.inner}}, {&step.operands[1], 1})});
  }
  const std::string name = name_of(id);
  const Shape rows{plan.batch * plan.rows};
  const Ref log = scratch(logs.dtype, rows, "logarithms of attention");
  const Ref rest = scratch(logs.dtype, rows, "rests of logarithms");
  launch_attention(step, AttentionKernel::kLogarithms, "attention logarithms",
                   std::array<Addressed, 3>{{{word_of(AttentionAddress::kLogs), logs},
                                             {word_of(AttentionAddress::kLog), log, true},
                                             {word_of(AttentionAddress::kRest), rest, true}}});
  step.refs.push_back({word_of(AttentionAddress::kG), g});
  step.refs.push_back({word_of(AttentionAddress::kLess), step.operands[step.rest + 2]});
  step.refs.push_back({word_of(AttentionAddress::kLog), log});
  step.refs.push_back({word_of(AttentionAddress::kRest), rest});
  if (to[0])
    launch_attention(step, AttentionKernel::kQueries, name + " of queries",
                     std::array<Addressed, 1>{{{word_of(AttentionAddress::kFirst), *to[0], true}}});
  std::vector<Addressed> of_keys;
  if (to[1]) of_keys.push_back({word_of(AttentionAddress::kFirst), *to[1], true});
  if (to[2]) of_keys.push_back({word_of(AttentionAddress::kSecond), *to[2], true});
  if (!of_keys.empty()) launch_attention(step, AttentionKernel::kKeys, name + " of keys", of_keys);
}

}  // namespace segfuse::engine
