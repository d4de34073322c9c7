#pragma once
// What is known of elementwise operations beside their rows in ops.def. An operation that is not
// named here has several roundings and costs little: a new one is right, if not as fast as it could
// be.

#include "ir/op.h"

namespace segfuse::compiler {

/// Whether IEEE 754 fixes every bit of the formula over floats: it is exact or rounded once, so
/// that double precision, rounded to the type, gives what kernels give. Integers and bools are
/// always exact.
bool rounds_once(ir::Op op);

/// Instructions for one element of the result, about: the one list that decisions to compute a
/// value again rest on.
int instructions_of(ir::Op op);
/// Whether computing the result again costs more than loading it again from where a kernel holds
/// it: a cache, a register.
bool costs_more_than_a_load(ir::Op op);
/// Whether computing the result again, from a value that is in memory, costs less than writing it
/// there and reading it back.
bool costs_less_than_memory(ir::Op op);

}  // namespace segfuse::compiler
