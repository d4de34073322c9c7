#pragma once
// Reverse-mode differentiation, Fusion to Fusion.

#include <span>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::compiler {

/// Adds to `fusion` the vector-Jacobian product: for each value of `wrt` the sum over i of
/// cotangents[i] times d outputs[i] / d wrt, with the shape and type of that value. A cotangent has
/// the shape and type of its output. A value that no output depends on gets zeros. Only floating
/// point values carry gradients; operations without a gradient (comparisons, rounding, argmax) pass
/// none. Expressions are added in one order for one fusion, so equal programs get equal gradients.
/// The result can be differentiated again where the rules are differentiable; semicrf_loss can be
/// differentiated once (UsageError).
std::vector<ir::ValId> vjp(ir::Fusion& fusion, std::span<const ir::ValId> outputs,
                           std::span<const ir::ValId> cotangents, std::span<const ir::ValId> wrt);

/// The gradients of a scalar.
std::vector<ir::ValId> gradients(ir::Fusion& fusion, ir::ValId scalar,
                                 std::span<const ir::ValId> wrt);

}  // namespace segfuse::compiler
