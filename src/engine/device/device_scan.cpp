// scan on a device: the body has a plan of its own, whose steps are enqueued once a step, one after
// the other. Its inputs and outputs are where the scan's are: one step of a sequence, one step of a
// stacked result, and for carries two buffers in turn. Kernels and products want memory that begins
// at a multiple of 256 bytes, so steps that do not are copied.

#include <algorithm>
#include <array>

#include "engine/device/device_planner.h"
#include "engine/plan/loop_steps.h"
#include "plan/placement.h"
#include "segfuse/error.h"

namespace segfuse::engine {

struct DevicePlanner::BodyPlan {
  plan::Plan plan;
  std::vector<runtime::PlanFunction> functions;
  plan::Placement placement;
  std::vector<DeviceCheck> checks;

  /// Enqueues one run. `given`: the buffers that are not scratch, in their order.
  void enqueue(runtime::StreamHandle stream, std::span<std::byte* const> given,
               std::byte* arena) const {
    std::vector<std::byte*> buffers;
    std::size_t next = 0;
    for (std::size_t b = 0; b < plan.buffers.size(); ++b)
      buffers.push_back(plan.buffers[b].kind == plan::BufferSpec::Kind::kScratch
                            ? arena + placement.offsets[b]
                            : given[next++]);
    std::vector<std::byte*> addresses;
    for (const plan::Step& step : plan.steps) {
      if (step.kind != plan::Step::Kind::kCall) continue;  // see run_body()
      addresses.clear();
      for (const plan::BufferId id : step.reads) addresses.push_back(buffers[id.index]);
      for (const plan::BufferId id : step.writes) addresses.push_back(buffers[id.index]);
      functions[step.function](stream, addresses);
    }
  }
};

namespace {

/// What the body's plan gets for one of its inputs or outputs.
struct StepMemory {
  StepAddress at;
  std::size_t step_bytes = 0;          ///< from one step to the next
  std::optional<StepAddress> aligned;  ///< where its kernels have it, if that is another place
  std::size_t copy = 0;                ///< then: the function that copies one step

  std::byte* in(std::span<std::byte* const> addresses, std::size_t step) const {
    return at.in(addresses) + step * step_bytes;
  }
};

using Copy = std::function<void(runtime::StreamHandle, std::byte* from, std::byte* to)>;
constexpr std::size_t kAlignment = 256;  // of what kernels and products are given

struct Steps : LoopSteps<StepAddress> {
  std::vector<StepMemory> given;  ///< sequences and constants
  std::vector<StepMemory> stacked;
  std::vector<StepAddress> status;  ///< one, or none
  std::optional<StepAddress> arena;
  std::vector<Copy> copies;
};

template <class Body>
void enqueue_steps(runtime::StreamHandle stream, std::span<std::byte* const> addresses,
                   const Steps& steps, const Body& body) {
  std::byte* const arena = steps.arena ? steps.arena->in(addresses) : nullptr;
  std::vector<std::byte*> memory;
  for (std::int64_t i = 0; i < steps.length; ++i) {
    const std::size_t t = steps.element(i);
    memory.clear();
    for (std::size_t c = 0; c < steps.first.size(); ++c)
      memory.push_back(steps.read(c, i).in(addresses));
    for (const StepMemory& given : steps.given) {
      memory.push_back(given.aligned ? given.aligned->in(addresses) : given.in(addresses, t));
      if (given.aligned) steps.copies[given.copy](stream, given.in(addresses, t), memory.back());
    }
    for (std::size_t c = 0; c < steps.first.size(); ++c)
      memory.push_back(steps.written(c, i).in(addresses));
    for (const StepMemory& stacked : steps.stacked)
      memory.push_back(stacked.aligned ? stacked.aligned->in(addresses) : stacked.in(addresses, t));
    for (const StepAddress& status : steps.status) memory.push_back(status.in(addresses));
    body.enqueue(stream, memory, arena);
    for (const StepMemory& stacked : steps.stacked)
      if (stacked.aligned)
        steps.copies[stacked.copy](stream, stacked.aligned->in(addresses),
                                   stacked.in(addresses, t));
  }
}

}  // namespace

DevicePlanner::BodyPlan DevicePlanner::run_body(std::span<const DeviceGroup> groups) {
  codes_ = groups;
  plan_inputs();
  plan_groups(compiled_);
  plan_outputs();
  plan::verify(result_.plan);
  // What is no call is left out: memories of nothing that count as written. A sum of nothing is
  // not.
  for (const plan::Step& step : result_.plan.steps)
    if (step.kind != plan::Step::Kind::kCall &&
        result_.plan.buffers[step.writes.at(0).index].bytes > 1)
      throw UsageError(
          "scan: found a matrix product over no elements within a loop, which runs on the CPU "
          "only; expected device \"cpu\"");
  plan::Placement placement = plan::place(result_.plan, 1);
  return {std::move(result_.plan), std::move(result_.functions), std::move(placement),
          std::move(made_.checks)};
}

DevicePlanner::BodyPlan DevicePlanner::plan_body(ir::ExprId id, std::span<const Shape> shapes) {
  DeviceKernels& kernels = kernels_.body(id);
  ir::Sizes sizes;
  const std::vector<DeviceGroup> groups = kernels.prepare(shapes, sizes);
  DevicePlanOptions options;
  options.tf32 = device_options_.tf32;
  return DevicePlanner(kernels, sizes, accelerator_, crf_, options).run_body(groups);
}

std::optional<Ref> DevicePlanner::status_words(const std::vector<DeviceCheck>& checks) {
  std::optional<Ref> first;
  for (const DeviceCheck& check : checks) {
    const Ref word = status_word(check);
    if (!first) first = word;
  }
  return first;
}

std::function<void(runtime::StreamHandle, std::byte*, std::byte*)> DevicePlanner::copier(
    std::size_t element_bytes, std::int64_t elements) const {
  LibraryLaunch library = copy_view_launch(element_bytes, {elements}, {1});
  library.program.store = store_;
  const std::shared_ptr<runtime::KernelLoader> kernels = accelerator_.kernels();
  const runtime::GpuKernel kernel = kernels->kernel(library.program, library.entry);
  return [kernels, kernel, library = std::move(library)](runtime::StreamHandle stream,
                                                         std::byte* from, std::byte* to) {
    std::vector<std::uint64_t> words = library.words;
    words[0] = reinterpret_cast<std::uintptr_t>(from);
    words[1] = reinterpret_cast<std::uintptr_t>(to);
    kernels->launch(stream, kernel, {library.grid, library.block}, words.data(),
                    words.size() * sizeof(words[0]));
  };
}

void DevicePlanner::add_steps(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  const auto carries = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "carries"));
  const auto sequences = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "sequences"));
  Steps steps;
  steps.length = sizes_.of(fusion_.attr<ir::Extents>(id, "length")[0]);
  steps.reverse = fusion_.attr<std::int64_t>(id, "reverse") != 0;

  StepOperands touched;
  std::vector<Ref> operands;
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < expr.operands.size(); ++i) {
    operands.push_back(packed(ref(expr.operands[i])));
    touched.read(operands.back());
    shapes.push_back(operands.back().layout.shape);
    if (i >= carries && i < carries + sequences) shapes.back().erase(shapes.back().begin());
  }
  const auto body = std::make_shared<const BodyPlan>(plan_body(id, shapes));

  std::vector<Ref> results;
  std::vector<std::array<Ref, 2>> between;
  std::vector<bool> seen;
  for (std::size_t r = 0; r < expr.results.size(); ++r) {
    const ir::ValId result = expr.results[r];
    Shape one = shape(result);
    if (r >= carries) one.erase(one.begin());
    seen.push_back(r < carries || wanted(result));
    results.push_back(seen[r] ? place(result) : scratch(dtype(result), one, "unused"));
    touched.write(results.back());
    if (num_elements(results.back().layout.shape) == 0) touch(results.back());
    if (r >= carries) continue;
    between.push_back({scratch(dtype(result), one, "carry"), scratch(dtype(result), one, "carry")});
    for (const Ref& carry : between.back()) touched.write(carry);
  }
  if (steps.length == 0) {  // carries pass
    for (std::size_t c = 0; c < carries; ++c) copy(operands[c], results[c], "carry");
    return;
  }

  std::vector<std::optional<Ref>> aligned;
  for (std::size_t i = carries; i < operands.size() + results.size(); ++i) {
    if (i >= operands.size() && i < operands.size() + carries) continue;
    const bool operand = i < operands.size();
    const Ref& all = operand ? operands[i] : results[i - operands.size()];
    const bool stepped = operand ? i < carries + sequences : bool(seen[i - operands.size()]);
    Shape one = all.layout.shape;
    if (stepped) one.erase(one.begin());
    const std::size_t bytes = stepped ? bytes_of(all.dtype, one) : 0;
    aligned.emplace_back();
    if (bytes % kAlignment != 0) {
      aligned.back() = scratch(all.dtype, one, "one step");
      touched.write(*aligned.back());
    }
    StepMemory memory{{}, bytes, {}, 0};
    if (aligned.back()) {
      memory.copy = steps.copies.size();
      steps.copies.push_back(copier(size_of(all.dtype), num_elements(one)));
    }
    (operand ? steps.given : steps.stacked).push_back(memory);
  }
  const std::optional<Ref> status = status_words(body->checks);
  if (status) touched.write(*status);
  std::optional<Ref> arena;
  if (const auto bytes = static_cast<std::int64_t>(body->placement.arena_bytes); bytes > 0) {
    arena = scratch(DType::kBool, {bytes}, "a step");
    touched.write(*arena);
  }

  // All operands are known now, and so are their places among the step's addresses.
  for (std::size_t c = 0; c < carries; ++c) {
    steps.first.push_back(touched.of(operands[c]));
    steps.between.push_back({touched.of(between[c][0]), touched.of(between[c][1])});
    steps.last.push_back(touched.of(results[c]));
  }
  std::size_t next = 0;
  const auto place_memory = [&](StepMemory& memory, const Ref& all) {
    memory.at = touched.of(all);
    if (aligned[next]) memory.aligned = touched.of(*aligned[next]);
    ++next;
  };
  for (std::size_t i = 0; i < steps.given.size(); ++i)
    place_memory(steps.given[i], operands[carries + i]);
  for (std::size_t i = 0; i < steps.stacked.size(); ++i)
    place_memory(steps.stacked[i], results[carries + i]);
  if (status) steps.status.push_back(touched.of(*status));
  if (arena) steps.arena = touched.of(*arena);
  add_step(name_of(id), touched,
           [steps = std::move(steps), body](runtime::StreamHandle stream,
                                            std::span<std::byte* const> addresses) {
             enqueue_steps(stream, addresses, steps, *body);
           });
}

}  // namespace segfuse::engine
