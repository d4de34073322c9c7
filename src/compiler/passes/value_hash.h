#pragma once
// Numbers for values that depend on what they mean and not on ids.

#include <cstdint>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::compiler {

/// By ValId: a hash of how the value is computed from the inputs (by position). Values computed in
/// the same way have the same hash, whatever the order of insertion. O(size of the Fusion).
std::vector<std::uint64_t> value_hashes(const ir::Fusion& fusion);

}  // namespace segfuse::compiler
