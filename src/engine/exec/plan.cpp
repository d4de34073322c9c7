#include "engine/exec/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "engine/device/accelerator.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/move.h"
#include "engine/exec/planner.h"
#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

StepBuffers::StepBuffers(const StepOperands& operands) {
  std::uint32_t position = 0;
  for (const std::vector<plan::BufferId>& ids : {operands.reads(), operands.writes()})
    for (const plan::BufferId id : ids) positions_.emplace_back(id.index, position++);
  std::sort(positions_.begin(), positions_.end());
}

std::size_t StepBuffers::position(std::uint32_t buffer) const {
  const auto found = std::lower_bound(positions_.begin(), positions_.end(),
                                      std::pair<std::uint32_t, std::uint32_t>(buffer, 0));
  SEGFUSE_CHECK(found != positions_.end() && found->first == buffer, "buffer {}", buffer);
  return found->second;
}

CpuPlan::CpuPlan(BuiltPlan built, std::vector<std::byte> constants)
    : built_(std::move(built)), constants_(std::move(constants)) {
  plan::verify(built_.plan);
  placement_ = plan::place(built_.plan, 1, kAlignment);
  bases_.resize(built_.plan.buffers.size());
}

void CpuPlan::run(std::span<std::byte* const> given, std::byte* arena) {
  std::size_t next = 0;
  for (std::size_t b = 0; b < bases_.size(); ++b) switch (built_.plan.buffers[b].kind) {
      case plan::BufferSpec::Kind::kScratch: bases_[b] = arena + placement_.offsets[b]; break;
      case plan::BufferSpec::Kind::kConstant: bases_[b] = constants_.data(); break;
      default: bases_[b] = given[next++];
    }
  for (const plan::Step& step : built_.plan.steps) {
    if (step.kind == plan::Step::Kind::kFill) {
      const std::uint32_t buffer = step.writes[0].index;
      std::memset(bases_[buffer], step.value, built_.plan.buffers[buffer].bytes);
      continue;
    }
    addresses_.clear();
    for (const plan::BufferId id : step.reads) addresses_.push_back(bases_[id.index]);
    for (const plan::BufferId id : step.writes) addresses_.push_back(bases_[id.index]);
    built_.functions[step.function]({}, addresses_);
  }
}

/// Buffers over memory of others, in the order of the plan: one for each address, so that uses of
/// inputs that share memory are ordered. Nothing when some overlap otherwise.
std::vector<runtime::Buffer> CpuPlan::lend(Accelerator& host, std::span<std::byte* const> given) {
  struct Range {
    std::byte* begin;
    std::size_t bytes;
    runtime::Buffer buffer = {};
  };
  empty_.resize(built_.plan.buffers.size());
  std::vector<Range> ranges;
  std::size_t next = 0;
  for (std::size_t b = 0; b < empty_.size(); ++b) {
    const plan::BufferSpec& buffer = built_.plan.buffers[b];
    if (buffer.kind == plan::BufferSpec::Kind::kScratch) continue;
    std::byte* at =
        buffer.kind == plan::BufferSpec::Kind::kConstant ? constants_.data() : given[next++];
    ranges.push_back({at == nullptr ? &empty_[b] : at, buffer.bytes});
  }
  std::map<std::byte*, Range*> by_address;
  for (Range& range : ranges) {
    Range*& first = by_address.emplace(range.begin, &range).first->second;
    if (range.bytes > first->bytes) first = &range;
  }
  const std::byte* end = nullptr;
  for (const auto& [begin, range] : by_address) {
    if (begin < end) return {};
    end = begin + range->bytes;
    range->buffer = runtime::Buffer::foreign(host.heap().device(), begin, range->bytes, "given");
  }
  std::vector<runtime::Buffer> buffers;
  for (const Range& range : ranges) buffers.push_back(by_address.at(range.begin)->buffer);
  return buffers;
}

void CpuPlan::run_on(Accelerator& host, std::span<std::byte* const> given) {
  if (!runner_) {
    const std::span<const runtime::StreamId> streams = host.streams();
    runner_ = std::make_unique<runtime::PlanRunner>(
        built_.plan, built_.functions, host.heap(), host.executor(),
        std::vector<runtime::StreamId>(streams.begin(), streams.end()));
  }
  const std::vector<runtime::Buffer> buffers = lend(host, given);
  if (buffers.empty() && !given.empty()) {  // only the order of the plan is right
    GrowingMemory arena;
    return run(given, arena.at_least(arena_bytes()));
  }
  try {
    runner_->run(buffers);
  } catch (...) {
    host.drain();  // what was enqueued uses the caller's memory
    throw;
  }
  host.synchronize();
}

CpuPlanner::CpuPlanner(const ir::Fusion& fusion, const ir::Sizes& sizes, const CpuContext& context,
                       const CpuPlanOptions& options)
    : PlanBuilder(fusion, sizes, {}, options), context_(context), check_(options.check) {}

CpuPlanner::CpuPlanner(CpuKernels& kernels, const ir::Sizes& sizes, const CpuContext& context,
                       const CpuPlanOptions& options)
    : PlanBuilder(kernels.fusion(), sizes, kernels.compiled().segmented().in_place, options),
      context_(context),
      check_(options.check),
      kernels_(&kernels),
      generated_(true) {}

std::function<void(runtime::StreamHandle)> CpuPlanner::waiter() const {
  return [](runtime::StreamHandle) {};  // steps run in place
}

Ref CpuPlanner::compute(ir::ValId val) { return place(val, compute_type(dtype(val))); }

Ref CpuPlanner::scalar(DType dtype, double value) {
  const DType type = compute_type(dtype);
  Tensor tensor(dtype, {});
  tensor.set(0, value);
  tensor = tensor.to(type);  // rounded to a half first
  if (!constants_) constants_ = add_buffer(plan::BufferSpec::Kind::kConstant, "constants", 0);
  Ref ref{*constants_, type, contiguous({})};
  ref.layout.offset = static_cast<std::int64_t>(constant_bytes_.size() / size_of(type));
  constant_bytes_.resize(constant_bytes_.size() + kAlignment);
  std::copy_n(static_cast<const std::byte*>(tensor.data()), size_of(type),
              constant_bytes_.end() - kAlignment);
  return ref;
}

void CpuPlanner::copy(const Ref& from, const Ref& to, const char* what) {
  const Ref source = from.dtype != to.dtype ? packed(from) : from;
  add_step(
      {}, {source}, {to},
      [source, to](Run& run) {
        if (source.dtype == to.dtype) {
          engine::copy(run.pool, run.array(source), run.array(to));
        } else {
          convert_to_half(to.dtype, run.array(source).as<float>(), run.array(to).data,
                          to.layout.size());
        }
      },
      what);
}

StepOperands CpuPlanner::touched(std::span<const Ref> operands, std::span<const Ref> results,
                                 std::span<const Ref> workspaces) {
  StepOperands all;
  for (const Ref& ref : operands) all.read(ref);
  for (const Ref& ref : results) all.write(ref);
  for (const Ref& ref : workspaces) all.write(ref);
  return all;
}

void CpuPlanner::add_step(ir::ExprId expr, std::vector<Ref> operands, std::vector<Ref> results,
                          std::function<void(Run&)> go, std::string what,
                          std::span<const Ref> workspaces) {
  const StepOperands used = touched(operands, results, workspaces);
  if (what.empty()) what = expr.valid() ? name_of(expr) : "convert";
  if (options_.measure && !results.empty()) what += ' ' + to_string(results[0].layout.shape);
  if (check_ && expr.valid())
    go = [go = std::move(go), check = check_, expr, operands = std::move(operands),
          results = std::move(results)](Run& run) {
      go(run);
      check(expr, operands, results, run);
    };
  PlanBuilder::add_step(std::move(what), used,
                        [context = context_, buffers = StepBuffers(used), go = std::move(go)](
                            runtime::StreamHandle, std::span<std::byte* const> addresses) {
                          Run run{context.pool, context.semicrf, addresses, buffers};
                          go(run);
                        });
}

void CpuPlanner::round(ir::ExprId expr, ir::ValId val) {
  if (!is_half(dtype(val))) return;
  const Ref target = ref(val);
  if (generated_) {
    const Ref half = place(val);
    return add_step(expr, {target}, {half}, [target, half](Run& run) {
      convert_to_half(half.dtype, run.array(target).as<float>(), run.array(half).data,
                      half.layout.size());
    });
  }
  add_step(expr, {target}, {target}, [target, loop = round_loop(dtype(val))](Run& run) {
    const Array array = run.array(target);
    loop(array.data, {{array.data, nullptr, nullptr}, {1, 0, 0}}, target.layout.size());
  });
}

Ref CpuPlanner::widened(const Ref& ref) {
  if (!is_half(ref.dtype)) return ref;
  const Ref from = packed(ref);
  const Ref target = scratch(DType::kF32, from.layout.shape, "widened");
  add_step({}, {from}, {target}, [from, target](Run& run) {
    convert_half(from.dtype, run.array(from).data, run.array(target).as<float>(),
                 from.layout.size());
  });
  return target;
}

CpuPlan CpuPlanner::finish() {
  if (constants_) result_.plan.buffers[*constants_].bytes = constant_bytes_.size();
  return {std::move(result_), std::move(constant_bytes_)};
}

CpuPlan CpuPlanner::run(std::span<const Group> groups) {
  plan_inputs();
  for (const ir::Input& input : fusion_.inputs()) set_ref(input.val, widened(ref(input.val)));
  for (const Group& group : groups) plan_group(group);
  plan_outputs();
  return finish();
}

CpuPlan make_plan(const ir::Fusion& fusion, std::span<const Group> groups, const ir::Sizes& sizes,
                  const CpuContext& context, const CpuPlanOptions& options) {
  return CpuPlanner(fusion, sizes, context, options).run(groups);
}

}  // namespace segfuse::engine
