#pragma once
// Ranks as threads of this process: for tests, and what other engines are compared with.

#include <functional>

#include "comm/group.h"

namespace segfuse::comm {

/// Runs work(group) for `ranks` ranks, each on a thread of its own, and finishes their groups. A
/// rank that throws aborts the others, whose calls end with a CommError that names it and its
/// message; what it threw is thrown here when all have ended. So is a CommError where ranks make
/// different calls: here it is noticed, which no launcher's engine does.
void run_ranks(int ranks, const std::function<void(Group&)>& work);

}  // namespace segfuse::comm
