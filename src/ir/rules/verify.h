#pragma once
// Checks of everything a Fusion promises; run after every pass in debug builds and in all tests.

#include "ir/fusion.h"

namespace segfuse::ir {

/// Throws InternalError that names the first broken rule. Checked: every id is of a live statement;
/// definitions and results name each other; uses are exactly the Exprs that have the value as an
/// operand, ascending, each once; inputs, outputs, aliases and the table of constants agree with
/// the statements; sizes are in normal form; no value depends on itself; types, shapes and
/// attributes are those that the operation's rule gives, with nothing left to learn about sizes.
/// Changes nothing. O(size of the Fusion).
void verify(const Fusion& fusion);

}  // namespace segfuse::ir
