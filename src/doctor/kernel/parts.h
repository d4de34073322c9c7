#pragma once
// What reports about kernels are put together from.

#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// What only the text tells goes to the kernels of the machine code.
void add_text(std::vector<KernelInfo>& kernels, const std::vector<KernelInfo>& texts);
/// For kernels whose registers are known.
void add_occupancy(KernelReport& report, const KernelOptions& options);
/// What the report cannot tell.
void add_notes(KernelReport& report);

}  // namespace segfuse::doctor
