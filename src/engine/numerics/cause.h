#pragma once
// Texts about the usual causes of wrong numbers.

#include <span>
#include <string>

#include "ir/op.h"
#include "segfuse/doctor/numerics.h"

namespace segfuse::engine::numerics {

/// Of a NaN or infinity. `operands`: the elements that the result was made of, or nothing where an
/// operation reads many.
std::string cause_of(ir::Op op, DType dtype, bool nan, std::span<const double> operands);
/// The same when the operation's derivative made it.
std::string cause_of_gradient(ir::Op op, DType dtype, bool nan, std::span<const double> operands);
/// The cause of any other fault.
std::string cause_of(NumericsFault fault, ir::Op op);

}  // namespace segfuse::engine::numerics
