#pragma once
// The gradient rule of each operation; elementwise ones come from ops.def.

#include <vector>

#include "ir/builder.h"

namespace segfuse::compiler {

/// Cotangents of the operands of `id`, given those of its results (an invalid id stands for zero;
/// so it does in the answer). `wanted[i]` says whether operand i needs one. Adds expressions to the
/// builder's Fusion.
std::vector<ir::ValId> operand_cotangents(ir::Builder& builder, ir::ExprId id,
                                          const std::vector<ir::ValId>& result_cotangents,
                                          const std::vector<bool>& wanted);

/// The same for a scan. Where carries are needed, the forward scan is written again, so that it
/// gives those that each step began with, and all uses of its results are of the new one's.
std::vector<ir::ValId> scan_cotangents(ir::Builder& builder, ir::ExprId id,
                                       const std::vector<ir::ValId>& cotangents,
                                       const std::vector<bool>& wanted);

}  // namespace segfuse::compiler
