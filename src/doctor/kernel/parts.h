#pragma once
// The parts of reports about kernels.

#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// Adds facts that only the text has to the kernels of the machine code.
void add_text(std::vector<KernelInfo>& kernels, const std::vector<KernelInfo>& texts);
/// For kernels whose registers are known.
void add_occupancy(KernelReport& report, const KernelOptions& options);
/// The limits of the report.
void add_notes(KernelReport& report);

}  // namespace segfuse::doctor
