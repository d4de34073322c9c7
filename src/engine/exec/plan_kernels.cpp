#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/planner.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::SegmentedGroup;

namespace {

constexpr std::int64_t kTaskWork = 1 << 15;  // elements that make waking a thread worth it

/// Where a kernel's check looks: an operand of indices in memory, and how many there may be.
struct IndexCheck {
  ir::Op op = ir::Op::take;
  Ref indices;
  std::int64_t size = 0;
};

/// One call of a kernel over all its outer iterations.
struct Call {
  std::shared_ptr<const jit::CpuCode> code;
  jit::CpuFunction function = nullptr;
  std::vector<StepAddress> buffers;
  std::vector<std::int64_t> sizes;
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::size_t scratch = 0;  ///< bytes for each thread
  std::vector<std::string> checks;
};

/// The sentence about the first index that is out of range.
void report(const Run& run, const std::vector<IndexCheck>& checks, const std::string& what) {
  for (const IndexCheck& check : checks) {
    const Array indices = run.array(check.indices);
    for (std::int64_t i = 0; i < check.indices.layout.size(); ++i)
      ir::check_index(check.op,
                      check.indices.dtype == DType::kI32 ? indices.as<const std::int32_t>()[i]
                                                         : indices.as<const std::int64_t>()[i],
                      check.size);
  }
  throw UsageError(fmt::format("{} is out of range", what));
}

void run_call(Run& run, const Call& call, const std::vector<IndexCheck>& checks) {
  std::array<void*, 16> few;
  std::vector<void*> many;
  const std::size_t count = call.buffers.size();
  if (count >= few.size()) many.resize(count + 1);
  void** const buffers = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < count; ++i) buffers[i] = call.buffers[i].in(run.addresses);
  std::int32_t status = 0;
  buffers[count] = &status;
  run.pool.for_ranges(call.count, call.grain, [&](std::int64_t begin, std::int64_t end) {
    auto& rows = of_thread<GrowingMemory, struct KernelRows>();
    call.function(buffers, call.sizes.data(), begin, end, rows.at_least(call.scratch));
  });
  if (status != 0) report(run, checks, call.checks.at(static_cast<std::size_t>(status - 1)));
}

}  // namespace

void CpuPlanner::plan_library(ir::ExprId id) {
  if (fusion_.expr(id).op == ir::Op::scan) return plan_steps(id);
  const std::vector<ir::ValId> operands = fusion_.expr(id).operands;
  std::vector<Ref> before;
  for (const ir::ValId operand : operands) {
    before.push_back(ref(operand));
    set_ref(operand, widened(ref(operand)));
  }
  plan_expr(id);
  // The other way round: of a value that is there twice, the first is what it was.
  for (std::size_t i = operands.size(); i-- > 0;) set_ref(operands[i], before[i]);
}

void CpuPlanner::plan_kernels(const SegmentedGroup& group) {
  const CpuGroup& code = *codes_[group.id.index];
  const std::vector<Ref> workspaces = open_group(group, code.scheduled->lowered.workspaces);
  std::vector<Ref> results;
  for (const ir::ValId output : group.boundary.outputs) results.push_back(ref(output));
  std::vector<Ref> operands;
  for (const ir::ValId input : group.boundary.inputs) operands.push_back(ref(input));
  const StepOperands used = touched(operands, results, workspaces);
  std::vector<Call> calls;
  for (const CpuKernel& kernel : code.kernels) {
    const compiler::loop::Kernel& loops = kernel.kernel->kernel;
    Call call{kernel.code, kernel.function, {}, {}, 0, 1, 0, loops.checks};
    for (const compiler::Operand& operand : kernel.kernel->operands)
      call.buffers.push_back(
          used.of(operand.val.valid() ? ref(operand.val) : workspaces[operand.workspace]));
    for (const ir::Extent& size : kernel.sizes) call.sizes.push_back(sizes_.of(size));
    call.count = sizes_.of(loops.outer_count);
    call.grain =
        std::max<std::int64_t>(1, kTaskWork / std::max<std::int64_t>(1, sizes_.of(loops.work)));
    for (const compiler::loop::KernelBuffer& buffer : loops.buffers)
      if (buffer.kind == compiler::loop::KernelBuffer::Kind::kRow)
        call.scratch += static_cast<std::size_t>(
            compiler::loop::row_buffer_bytes(buffer.dtype, sizes_.of(buffer.elements)));
    calls.push_back(std::move(call));
  }
  std::vector<IndexCheck> checks;
  for (const ir::ExprId id : group.exprs) {
    const ir::Expr& expr = fusion_.expr(id);
    if (!ir::has_indices(expr.op)) continue;
    if (!std::binary_search(group.boundary.inputs.begin(), group.boundary.inputs.end(),
                            expr.operands[1]))
      continue;
    const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
    checks.push_back({expr.op, ref(expr.operands[1]), shape(expr.operands[0])[axis]});
  }
  add_step(
      group.exprs.back(), std::move(operands), std::move(results),
      [calls = std::move(calls), checks = std::move(checks)](Run& run) {
        for (const Call& call : calls) run_call(run, call, checks);
      },
      fmt::format("{} of {}", code.kernels[0].kernel->kernel.name, group.exprs.size()), workspaces);
}

CpuPlan CpuPlanner::run(const compiler::CompiledFusion& compiled,
                        std::span<const CpuGroup* const> codes) {
  codes_ = codes;
  plan_inputs();
  plan_groups(compiled);
  plan_outputs();
  return finish();
}

CpuPlan make_plan(CpuKernels& kernels, std::span<const Shape> inputs, const CpuContext& context,
                  const CpuPlanOptions& options) {
  ir::Sizes sizes;
  const std::vector<const CpuGroup*> codes = kernels.prepare(inputs, sizes);
  return CpuPlanner(kernels, sizes, context, options).run(kernels.compiled(), codes);
}

}  // namespace segfuse::engine
