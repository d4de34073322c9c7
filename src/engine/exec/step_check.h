#pragma once
// Looks at what each step of a plan in built-in loops has made.

#include "engine/exec/plan.h"

namespace segfuse::engine {

/// Throws a DataError at the first NaN, or the first infinity made of finite operands; it names
/// operation, value and element, says what the operands were, and what usually causes it. `fusion`
/// outlives the check.
StepCheck check_steps(const ir::Fusion& fusion);

}  // namespace segfuse::engine
