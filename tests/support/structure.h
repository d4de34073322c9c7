#pragma once
// Equality of Fusions by what their outputs mean.

#include <cstdint>

#include "ir/fusion.h"

namespace segfuse::ir {

/// A hash of the definition: the types of all inputs in order, and how the outputs, in order, and
/// the aliases are computed from them. Equal definitions have equal hashes whatever the order of
/// insertion, ids, dead expressions, expressions that stand twice, and the names of the Fusion, its
/// sizes, inputs and outputs. What dead expressions demanded of sizes stays part of the definition:
/// it restricts the inputs. The same on every machine; O(size of the Fusion).
std::uint64_t structural_hash(const Fusion& fusion);

/// Whether two definitions are equal, exactly. With hundreds of sizes that stand in like places
/// only it may give up and answer false.
bool structurally_equal(const Fusion& a, const Fusion& b);

}  // namespace segfuse::ir
