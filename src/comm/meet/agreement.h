#pragma once
// Whether all ranks were started with the same things.

#include <optional>

#include "comm/meet/roster.h"

namespace segfuse::comm::meet {

/// One sentence where the values of the ranks differ: who differs from most others in what. All
/// ranks are here.
std::optional<Failure> difference_in(const Roster& roster);

}  // namespace segfuse::comm::meet
