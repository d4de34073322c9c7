// scan on the CPU: the body has a plan of its own, which runs once a step. Its inputs and outputs
// are where the scan's are: one step of a sequence, one step of a stacked result, and for carries
// two buffers in turn.

#include <algorithm>

#include "base/half_types.h"
#include "engine/exec/planner.h"
#include "engine/plan/loop_steps.h"
#include "ir/bind.h"

namespace segfuse::engine {
namespace {

/// What the body's plan gets for one of its inputs or outputs.
struct StepMemory {
  Ref ref;
  std::size_t step_bytes = 0;  ///< from one step to the next
};

struct Steps : LoopSteps<Ref> {
  std::shared_ptr<CpuPlan> body;
  std::vector<StepMemory> given;  ///< sequences and constants
  std::vector<StepMemory> stacked;
  std::vector<Ref> arena;  ///< one, or none
};

void run_steps(Run& run, const Steps& steps) {
  const auto address = [&](const Ref& ref) { return static_cast<std::byte*>(run.array(ref).data); };
  const std::size_t carries = steps.first.size();
  if (steps.length == 0)
    for (std::size_t c = 0; c < carries; ++c)
      std::copy_n(address(steps.first[c]),
                  bytes_of(steps.first[c].dtype, steps.first[c].layout.shape),
                  address(steps.last[c]));
  std::byte* const arena = steps.arena.empty() ? nullptr : address(steps.arena[0]);
  std::vector<std::byte*> memory;
  for (std::int64_t i = 0; i < steps.length; ++i) {
    const std::size_t t = steps.element(i);
    memory.clear();
    for (std::size_t c = 0; c < carries; ++c) memory.push_back(address(steps.read(c, i)));
    for (const StepMemory& given : steps.given)
      memory.push_back(address(given.ref) + t * given.step_bytes);
    for (std::size_t c = 0; c < carries; ++c) memory.push_back(address(steps.written(c, i)));
    for (const StepMemory& stacked : steps.stacked)
      memory.push_back(address(stacked.ref) + t * stacked.step_bytes);
    steps.body->run(memory, arena);
  }
}

}  // namespace

CpuPlan CpuPlanner::plan_body(ir::ExprId id, std::span<const Shape> shapes) {
  const ir::Fusion& body = *fusion_.attr<ir::Body>(id, "body").fusion;
  CpuPlanOptions options;
  options.poison = options_.poison;
  if (kernels_ != nullptr) return make_plan(kernels_->body(id), shapes, context_, options);
  return make_plan(body, make_groups(body), ir::bind(body, shapes), context_, options);
}

Ref CpuPlanner::stored(ir::ValId val) {
  const Ref from = packed(ref(val));
  if (from.dtype == dtype(val)) return from;
  const Ref half = scratch(dtype(val), from.layout.shape, "rounded");
  copy(from, half, "convert");
  return half;
}

void CpuPlanner::plan_steps(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto carries = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "carries"));
  const auto sequences = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "sequences"));
  Steps steps;
  steps.length = sizes_.of(fusion_.attr<ir::Extents>(id, "length")[0]);
  steps.reverse = fusion_.attr<std::int64_t>(id, "reverse") != 0;
  std::vector<Ref> operands;
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < expr.operands.size(); ++i) {
    operands.push_back(stored(expr.operands[i]));
    shapes.push_back(operands.back().layout.shape);
    const bool sequence = i >= carries && i < carries + sequences;
    if (sequence) shapes.back().erase(shapes.back().begin());
    const DType type = operands.back().dtype;
    if (i < carries)
      steps.first.push_back(operands.back());
    else
      steps.given.push_back({operands.back(), sequence ? bytes_of(type, shapes.back()) : 0});
  }
  steps.body = std::make_shared<CpuPlan>(plan_body(id, shapes));

  std::vector<Ref> results;
  std::vector<Ref> workspaces;
  for (std::size_t r = 0; r < expr.results.size(); ++r) {
    const ir::ValId result = expr.results[r];
    const DType type = dtype(result);
    Shape one = shape(result);
    if (r >= carries) one.erase(one.begin());
    const bool seen = r < carries || wanted(result);
    results.push_back(!seen                          ? scratch(type, one, "unused")
                      : generated_ || !is_half(type) ? place(result)
                                                     : scratch(type, shape(result), "halves"));
    if (r >= carries) {
      steps.stacked.push_back({results.back(), seen ? bytes_of(type, one) : 0});
      continue;
    }
    steps.last.push_back(results.back());
    steps.between.push_back({scratch(type, one, "carry"), scratch(type, one, "carry")});
    workspaces.insert(workspaces.end(), steps.between.back().begin(), steps.between.back().end());
  }
  if (const auto bytes = static_cast<std::int64_t>(steps.body->arena_bytes()); bytes > 0) {
    steps.arena.push_back(scratch(DType::kBool, {bytes}, "a step"));
    workspaces.push_back(steps.arena[0]);
  }
  add_scan_step(id, operands, results, [steps](Run& run) { run_steps(run, steps); }, workspaces);
}

/// Built-in loops hold halves as f32: then the step has halves, and what is looked at are their
/// copies.
void CpuPlanner::add_scan_step(ir::ExprId id, const std::vector<Ref>& operands,
                               const std::vector<Ref>& results, std::function<void(Run&)> go,
                               std::span<const Ref> workspaces) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto half = [](const Ref& ref) { return is_half(ref.dtype); };
  if (generated_ || (std::none_of(operands.begin(), operands.end(), half) &&
                     std::none_of(results.begin(), results.end(), half)))
    return add_step(id, operands, results, std::move(go), {}, workspaces);
  add_step({}, operands, results, std::move(go), name_of(id), workspaces);
  std::vector<Ref> before;
  std::vector<Ref> after;
  for (const ir::ValId operand : expr.operands) before.push_back(ref(operand));
  for (std::size_t r = 0; r < results.size(); ++r) {
    after.push_back(widened(results[r]));
    set_ref(expr.results[r], after.back());
  }
  add_step(id, before, after, [](Run&) {});
}

}  // namespace segfuse::engine
