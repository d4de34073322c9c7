#include "engine/exec/cpu_program.h"

#include "engine/device/accelerator.h"
#include "ir/bind.h"

namespace segfuse::engine {
namespace {

constexpr std::size_t kMaxPlans = 64;  // shapes remembered

}  // namespace

CpuProgram::CpuProgram(const BackendSetup& setup, Planner planner, StepCheck check)
    : host_(setup.options.host),
      fusion_(setup.fusion),
      pool_(setup.pool),
      semicrf_(setup.pool),
      planner_(std::move(planner)),
      options_{{.measure = setup.options.profile, .poison = setup.options.poison},
               std::move(check)} {}

CpuPlan& CpuProgram::plan_for(std::span<const Tensor> inputs) {
  std::vector<Shape> key;
  for (const Tensor& input : inputs) key.push_back(input.shape());
  const auto known = plans_.find(key);
  if (known != plans_.end() && inputs.size() == fusion_.inputs().size()) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].dtype() != fusion_.val(fusion_.inputs()[i].val).dtype)
        static_cast<void>(ir::bind_inputs(fusion_, inputs));  // throws
    return known->second;
  }
  // Passes may have left out what cannot run with these sizes.
  static_cast<void>(ir::bind_inputs(fusion_, inputs));
  CpuPlan plan = planner_(inputs, CpuContext{pool_, semicrf_}, options_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  last_plan_ = nullptr;
  return plans_.emplace(std::move(key), std::move(plan)).first->second;
}

std::vector<Tensor> CpuProgram::run(std::span<const Tensor> inputs) {
  CpuPlan& plan = plan_for(inputs);
  last_plan_ = &plan;
  given_.clear();
  for (Tensor input : inputs) given_.push_back(static_cast<std::byte*>(input.data()));
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < plan.output_shapes().size(); ++i) {
    if (plan.in_place()[i]) {
      outputs.push_back(inputs[*plan.in_place()[i]]);
    } else {
      outputs.emplace_back(fusion_.val(fusion_.outputs()[i].val).dtype, plan.output_shapes()[i]);
      given_.push_back(static_cast<std::byte*>(outputs.back().data()));
    }
  }
  if (host_)
    plan.run_on(*host_, given_);
  else
    plan.run(given_, arena_.at_least(plan.arena_bytes()));
  return outputs;
}

std::vector<StepTime> CpuProgram::step_times() const {
  std::vector<StepTime> all;
  if (last_plan_ != nullptr)
    for (const std::shared_ptr<StepTime>& time : last_plan_->times()) all.push_back(*time);
  return all;
}

}  // namespace segfuse::engine
