#include "engine/device/device_program.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/context/state.h"
#include "engine/executable.h"
#include "engine/plan/bad_index.h"
#include "ir/bind.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

constexpr std::size_t kMaxPlans = 256;  // shapes remembered

bool on_device(const Tensor& tensor) { return tensor.device_memory() != nullptr; }

}  // namespace

DeviceProgram::DeviceProgram(ir::Fusion fusion, std::shared_ptr<Accelerator> accelerator,
                             const Context& context, PlanOptions options, bool excess_precision)
    : program_(std::move(fusion)),
      accelerator_(std::move(accelerator)),
      context_(context),
      crf_(*accelerator_, context),
      fusion_(program_, accelerator_->kernels(), excess_precision, context.state().code),
      options_(options) {
  for (const ir::ExprId id : fusion_.fusion().live_exprs()) {
    const ir::Op op = fusion_.fusion().expr(id).op;
    has_crf_ = has_crf_ || op == ir::Op::semicrf_loss || op == ir::Op::semicrf_loss_grad;
  }
}

DeviceProgram::~DeviceProgram() {
  try {
    accelerator_->synchronize();  // kernels may use what the CRF keeps
  } catch (const std::exception&) {
    // A failure belongs to who waits for a result; there is nobody left.
  }
}

std::shared_ptr<DevicePlan> DeviceProgram::plan_for(std::span<const Tensor> inputs, Plans& plans,
                                                    const DevicePlanOptions& options) {
  std::vector<Shape> key;
  for (const Tensor& input : inputs) key.push_back(input.shape());
  const auto known = plans.find(key);
  if (known != plans.end()) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].dtype() != program_.val(program_.inputs()[i].val).dtype)
        static_cast<void>(ir::bind_inputs(program_, inputs));  // throws
    return known->second;
  }
  if (plans.size() >= kMaxPlans) {
    check();
    plans.clear();
  }
  // Passes may have left out what cannot run with these sizes.
  static_cast<void>(ir::bind_inputs(program_, inputs));
  auto plan =
      std::make_shared<DevicePlan>(make_device_plan(fusion_, *accelerator_, crf_, inputs, options));
  return plans.emplace(std::move(key), std::move(plan)).first->second;
}

std::vector<std::size_t> DeviceProgram::order_of_writes() const {
  const ir::Fusion& fusion = fusion_.fusion();
  const compiler::SegmentedFusion& segmented = fusion_.segmented();
  std::vector<std::size_t> order(fusion.inputs().size(), 0);
  for (const ir::Alias& alias : fusion.aliases()) {
    std::size_t input = 0;
    while (fusion.inputs()[input].val != alias.input) ++input;
    const bool by_group = std::ranges::find(segmented.in_place, alias) != segmented.in_place.end();
    order[input] = by_group ? segmented.group_of(fusion.val(alias.output).definition).index
                            : fusion_.groups().size();  // copied when all is done
  }
  return order;
}

void DeviceProgram::compile(std::span<const Tensor> inputs) {
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape());
  if (plans_.contains(shapes)) return;
  static_cast<void>(ir::bind_inputs(program_, inputs));
  ir::Sizes sizes;
  static_cast<void>(fusion_.prepare(shapes, sizes));
}

/// What is not the heap's belongs to the stream, which is ordered after all uses of it.
void DeviceProgram::enqueue(DevicePlan& plan, std::span<const runtime::Buffer> buffers,
                            runtime::StreamId stream, Milestones* milestones) {
  runtime::Executor& executor = accelerator_->executor();
  runtime::Timeline& timeline = executor.timeline();
  const auto join = [&] {
    for (const runtime::Buffer& buffer : buffers)
      if (buffer.is_foreign()) timeline.order_after(stream, executor.uses_of(buffer));
  };
  if (has_crf_) timeline.order_after(stream, last_run_);
  try {
    if (milestones == nullptr)
      plan.runner->run(buffers, stream);
    else
      milestones->over = std::make_shared<const std::vector<runtime::Frontier>>(
          plan.runner->run(buffers, stream, milestones->inputs));
  } catch (...) {
    join();
    throw;
  }
  join();
  if (!has_crf_) return;
  last_run_ = runtime::Frontier(timeline.tail(stream));
  timeline.order_after(accelerator_->streams()[0], last_run_);  // where check() looks
}

std::vector<Tensor> DeviceProgram::on_accelerator(std::span<const Tensor> inputs) const {
  std::vector<Tensor> given;
  for (const Tensor& input : inputs)
    given.push_back(on_device(input) ? input : accelerator_->upload(input, "input"));
  return given;
}

/// Before a run: what another plan's runs have found is looked at first.
void DeviceProgram::expect_check(const std::shared_ptr<DevicePlan>& plan) {
  if (unchecked_ != nullptr && unchecked_ != plan) check_status();
}

std::shared_ptr<DevicePlan> DeviceProgram::plan_in_order(std::span<const Tensor> inputs) {
  std::shared_ptr<DevicePlan> plan = plan_for(inputs, plans_, {options_});
  const bool alone = !has_crf_ && accelerator_->streams().size() == 1 && program_.aliases().empty();
  return alone ? plan : nullptr;
}

void DeviceProgram::run_in_order(const std::shared_ptr<DevicePlan>& plan,
                                 std::span<std::byte* const> addresses, runtime::StreamId stream) {
  expect_check(plan);
  last_plan_ = plan;
  if (plan->checks.empty()) {
    plan->runner->run_in_order(addresses, stream);
    return;
  }
  runtime::Executor& executor = accelerator_->executor();
  std::vector<std::byte*> given(addresses.begin(), addresses.end());
  given.push_back(plan->status.address());
  executor.timeline().order_after(stream, executor.uses_of(plan->status));
  unchecked_ = plan;
  last_inputs_.assign(program_.inputs().size(), Tensor());  // their memory is not ours
  executor.note_write(plan->status, plan->runner->run_in_order(given, stream));
}

std::vector<Tensor> DeviceProgram::start(const std::shared_ptr<DevicePlan>& of,
                                         const std::vector<Tensor>& given, const DeviceRun& how) {
  DevicePlan& plan = *of;
  const runtime::StreamId stream = how.stream.value_or(accelerator_->streams()[0]);
  std::vector<runtime::Buffer> buffers;
  for (const Tensor& input : given) buffers.push_back(accelerator_->buffer(input));
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < plan.output_shapes.size(); ++i) {
    if (plan.in_place[i]) {
      outputs.push_back(given[*plan.in_place[i]]);
      continue;
    }
    outputs.push_back(!how.outputs.empty()
                          ? how.outputs[i]
                          : accelerator_->empty(program_.val(program_.outputs()[i].val).dtype,
                                                plan.output_shapes[i], "output", stream));
    buffers.push_back(accelerator_->buffer(outputs.back()));
  }
  if (!plan.looked_at.empty()) buffers.push_back(plan.words);
  for (const auto& [val, buffer] : plan.kept) buffers.push_back(buffer);
  if (!plan.checks.empty()) buffers.push_back(plan.status);
  expect_check(of);
  enqueue(plan, buffers, stream, how.milestones);
  if (!plan.checks.empty()) {
    unchecked_ = of;
    last_inputs_ = given;
    for (Tensor& input : last_inputs_)  // somebody else's memory may be freed when it is looked at
      if (accelerator_->buffer(input).is_foreign()) input = Tensor();
  }
  return outputs;
}

std::vector<Tensor> DeviceProgram::run(std::span<const Tensor> inputs, const DeviceRun& how) {
  const std::shared_ptr<DevicePlan> plan = plan_for(inputs, plans_, {options_});
  last_plan_ = plan;
  const bool host = how.waits && std::none_of(inputs.begin(), inputs.end(), on_device);
  const std::vector<Tensor> given = on_accelerator(inputs);
  std::vector<Tensor> outputs = start(plan, given, how);
  if (host) check();
  write_back(inputs, given);
  if (!host) return outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    outputs[i] = plan->in_place[i] ? inputs[*plan->in_place[i]] : outputs[i].to_host();
  return outputs;
}

/// Inputs on the host that are overwritten.
void DeviceProgram::write_back(std::span<const Tensor> inputs,
                               const std::vector<Tensor>& given) const {
  for (const ir::Alias& alias : program_.aliases()) {
    std::size_t to = 0;
    while (program_.inputs()[to].val != alias.input) ++to;
    if (on_device(inputs[to]) || inputs[to].bytes() == 0) continue;
    Tensor target = inputs[to];
    given[to].device_memory()->copy_to_host(target.data(), target.bytes());
  }
}

void DeviceProgram::check_status() {
  Tensor words(DType::kI32, {static_cast<std::int64_t>(unchecked_->checks.size())});
  accelerator_->download(unchecked_->status, words);
  const std::shared_ptr<DevicePlan> plan = std::exchange(unchecked_, nullptr);
  const std::vector<Tensor> inputs = std::move(last_inputs_);
  last_inputs_.clear();
  for (std::size_t i = 0; i < plan->checks.size(); ++i) {
    const std::int32_t word = words.span<std::int32_t>()[i];
    if (word == 0) continue;
    accelerator_->executor().fill(accelerator_->streams()[0], plan->status, 0);
    explain(BadIndex(plan->checks[i].at(static_cast<std::size_t>(word - 1))), program_, inputs);
  }
}

std::vector<StepTime> DeviceProgram::step_times() const {
  std::vector<StepTime> all;
  if (last_plan_ != nullptr)
    for (const std::shared_ptr<StepTime>& time : last_plan_->times) all.push_back(*time);
  return all;
}

void DeviceProgram::check() {
  if (unchecked_ != nullptr) check_status();
  if (!has_crf_) return;
  runtime::Timeline& timeline = accelerator_->executor().timeline();
  for (const runtime::StreamId stream : accelerator_->streams()) timeline.synchronize(stream);
  crf_.check(timeline.handle(accelerator_->streams()[0]));
}

}  // namespace segfuse::engine
