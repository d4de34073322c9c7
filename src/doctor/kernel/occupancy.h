#pragma once
// How many blocks of a kernel fit a multiprocessor at once.

#include <optional>
#include <string>

#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// Nothing for an architecture whose sizes are not in the table, or a block that cannot start.
std::optional<KernelOccupancy> occupancy_of(const std::string& architecture,
                                            std::uint64_t registers, std::uint64_t shared_bytes,
                                            std::uint64_t block);

/// "sm_70, sm_75": those in the table.
std::string known_architectures();

}  // namespace segfuse::doctor
