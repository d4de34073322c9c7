#pragma once
// What follows from the columns of ops.def.

#include "ir/op.h"

namespace segfuse::compiler {

/// Whether IEEE 754 fixes every bit of the formula over floats: it is exact or rounded once, so
/// that double precision, rounded to the type, gives what kernels give. Integers and bools are
/// always exact.
bool rounds_once(ir::Op op);

/// Whether an elementwise operation gives one of its operands, or a number that every type has.
bool keeps_precision(ir::Op op);

/// Whether computing the result again costs more than loading it again from where a kernel holds
/// it: a cache, a register.
bool costs_more_than_a_load(ir::Op op);
/// Whether computing the result again, from a value that is in memory, costs less than writing it
/// there and reading it back.
bool costs_less_than_memory(ir::Op op);

/// Whether a movement leaves every element at the position that it had along every axis: permute,
/// squeeze, broadcast.
bool keeps_positions(ir::Op op);

/// Whether a reduction is a single walk with a single state, which is its result.
bool is_monoid(ir::Op op);
/// The values that a walk of a reduction carries at most.
int carried_values(ir::Op op);

}  // namespace segfuse::compiler
