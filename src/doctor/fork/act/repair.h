#pragma once
// Giving children back what a library took from them.

#include <cstdint>

#include "comm/registered/copy_on_fork.h"
#include "segfuse/doctor/fork.h"

namespace segfuse::doctor {

/// repair_fork() with what is known about this kernel.
ForkRepair repair_knowing(int pid, std::uint64_t address, const comm::CopyOnForkProof& proof);

}  // namespace segfuse::doctor
