#pragma once
// The passes, one function each. Every one keeps what the outputs mean, bit for bit when values are
// rounded to their types (NaN stays NaN, infinities and the signs of zeros stay), and is
// idempotent. A pass returns whether it changed the Fusion. None changes inputs, the number or
// order of outputs, or the stream of a random number.

#include "ir/fusion.h"

namespace segfuse::compiler {

/// Removes what no output needs. After: every expression is live. An expression with one live
/// result stays with all of them; inputs stay, used or not.
bool remove_dead_code(ir::Fusion& fusion);

// All below need and keep a Fusion without dead code.

/// Writes every size over representatives. After: sizes that are known to be equal are equal
/// objects, and sizes that are numbers stand as numbers.
bool unify_extents(ir::Fusion& fusion);

/// Replaces what is known to have no elements by a broadcast constant, drops empty parts of a
/// concat, and replaces what is made of nothing (a sum over an empty axis, padding around nothing)
/// by the constant it is. An argmax over an empty axis stays, to be refused when it is run.
bool remove_empty_tensors(ir::Fusion& fusion);

/// Folds expressions of constants and applies algebraic identities. Only formulas that IEEE 754
/// rounds once are folded, in the type of the value: no exp, no pow. Only identities that hold for
/// NaN, infinities and both zeros are used: x * 1, x - 0 and x + (-0) are x; x + 0, x * 0 and x - x
/// are not touched for floats. After: a movement of a constant is one broadcast of a scalar.
bool fold_constants(ir::Fusion& fusion);

/// Joins two casts when the first loses nothing, and drops a cast to the type that a value has.
bool clean_casts(ir::Fusion& fusion);

/// Joins and cancels broadcast and squeeze, and computes elementwise expressions before the
/// broadcast when all operands are broadcast in the same way. After: no broadcast of a broadcast,
/// no squeeze of a squeeze or broadcast.
bool clean_broadcasts(ir::Fusion& fusion);

/// Joins and cancels permute, reshape and slice; a reshape that only adds or drops axes of size 1
/// becomes squeeze and broadcast; a permute that one elementwise expression uses moves behind it,
/// where it may meet its inverse; so does a reshape of what follows a reduction, whatever other
/// operands there are, so that these are read along the axes that the reduction had. A product
/// whose operand is a transposed matrix reads the matrix by columns.
bool clean_movement(ir::Fusion& fusion);

/// Merges expressions with the same operation, operands and attributes; add, mul, eq, ne and the
/// logical operations also with exchanged operands. Random numbers are merged only if seed, shape
/// and stream are the same, that is, if they are the same numbers.
bool merge_common_expressions(ir::Fusion& fusion);

/// Drops aliases of an input onto itself. After: an alias writes something.
bool prepare_aliases(ir::Fusion& fusion);

}  // namespace segfuse::compiler
