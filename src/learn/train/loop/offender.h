#pragma once
// Why a step's loss or gradient is not finite.

#include <string>
#include <vector>

#include "ir/fusion.h"
#include "segfuse/context.h"
#include "segfuse/tensor.h"

namespace segfuse::learn {

/// The first element of an input that is not finite, in words; empty: there is none. Limits of
/// durations may be -inf.
std::string name_bad_input(const ir::Fusion& fusion, const std::vector<Tensor>& inputs);

/// Runs the step's program again on the CPU, operation by operation, and names the first input or
/// operation that is to blame, with element, operands and usual cause. Nothing is changed. Empty
/// where each operation by itself is fine.
std::string name_offender(const ir::Fusion& fusion, const std::vector<Tensor>& inputs,
                          const Context& context);

}  // namespace segfuse::learn
