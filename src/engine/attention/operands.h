#pragma once
// The operands of attention and of its gradients, as the plans of all targets have them.

#include <span>

#include "engine/attention/attention.h"
#include "engine/plan/step_operands.h"
#include "ir/bind.h"

namespace segfuse::engine {

/// Of operands as PlanBuilder::attention_operands() gives them.
AttentionPlan attention_plan(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                             std::span<const Ref> operands);

}  // namespace segfuse::engine
