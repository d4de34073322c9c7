#pragma once
// Checks of what a run gets. Shared by all evaluators, so that they refuse with the same words.

#include <span>

#include "ir/bind.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::compiler {

/// Checks number and types of `inputs` and binds the sizes (ir::bind). UsageError otherwise.
ir::Sizes bind_inputs(const ir::Fusion& fusion, std::span<const Tensor> inputs);

/// UsageError naming the operation, the index and the size unless 0 <= index < size.
void check_index(ir::Op op, std::int64_t index, std::int64_t size);

}  // namespace segfuse::compiler
