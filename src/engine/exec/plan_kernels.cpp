#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/planner.h"
#include "engine/plan/bad_index.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::engine {

using compiler::GroupKernel;
using compiler::SegmentedGroup;

namespace {

constexpr std::int64_t kTaskWork = 1 << 15;  // elements that make waking a thread worth it

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

void run_call(Run& run, const Call& call) {
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
  if (status != 0) throw BadIndex(call.checks.at(static_cast<std::size_t>(status - 1)));
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
  add_step(
      group.exprs.back(), std::move(operands), std::move(results),
      [calls = std::move(calls)](Run& run) {
        for (const Call& call : calls) run_call(run, call);
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
