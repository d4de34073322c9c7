#pragma once
// A connection between each two ranks of a meeting.

#include <chrono>
#include <vector>

#include "base/os/descriptor.h"
#include "comm/meet/meeting.h"

namespace segfuse::comm {

/// By rank; none (-1) at the own place. Both sides of each have proved the meeting's key, and
/// nothing is on its way. All ranks call it. CommError where somebody does not come.
std::vector<Descriptor> link_ranks(meet::Meeting& meeting);

}  // namespace segfuse::comm
