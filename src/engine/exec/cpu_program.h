#pragma once
// A Fusion on the CPU: its plans by input shapes, and the memory they run in.

#include <functional>
#include <map>
#include <vector>

#include "engine/backend.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/plan.h"
#include "engine/exec/semicrf_ops.h"

namespace segfuse::engine {

class CpuProgram final : public Backend {
 public:
  /// Makes the plan for inputs of these types and shapes; UsageError for inputs that do not fit.
  using Planner = std::function<CpuPlan(std::span<const Tensor> inputs, const CpuContext& context,
                                        const CpuPlanOptions& options)>;
  CpuProgram(const BackendSetup& setup, Planner planner, StepCheck check = {});

  std::vector<Tensor> run(std::span<const Tensor> inputs) override;
  std::vector<StepTime> step_times() const override;
  std::size_t workspace_bytes() const override { return arena_.size(); }

 private:
  CpuPlan& plan_for(std::span<const Tensor> inputs);

  std::shared_ptr<Accelerator> host_;  ///< outlives the plans
  const ir::Fusion& fusion_;
  ThreadPool& pool_;
  SemicrfOps semicrf_;
  Planner planner_;
  CpuPlanOptions options_;
  std::map<std::vector<Shape>, CpuPlan> plans_;
  const CpuPlan* last_plan_ = nullptr;
  std::vector<std::byte*> given_;  ///< to the run at hand
  GrowingMemory arena_;
};

}  // namespace segfuse::engine
