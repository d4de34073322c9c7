#pragma once
// What fork() would do to a process: how long, how much memory, and whether it fails.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/fork/read/pins.h"
#include "doctor/fork/read/process.h"
#include "doctor/fork/read/smaps.h"
#include "segfuse/doctor/fork.h"

namespace segfuse::doctor {

/// Processor time to make and fill a copy of a GiB in pages of 4 KiB, measured on a few MiB of our
/// own: between memory that the machine may use for the first time (a guest's, several times as
/// slow) and memory that it has just used, since nobody knows which of them a fork() will get.
double measured_copy_seconds_per_gib();
/// Processor time of a fork() for each GiB that the process has in pages of 4 KiB, measured on a
/// few MiB of our own: by children that end at once, without a signal and without running anything.
/// Nothing where no child can be made.
std::optional<double> measured_table_seconds_per_gib();

/// `pins` by address, `pinned` as the kernel counts them.
ForkForecast forecast_fork(const Process& process, const std::vector<Vma>& vmas,
                           const std::vector<Pin>& pins, std::uint64_t pinned);

/// How long copying takes, for one region's finding.
double copy_seconds(std::uint64_t bytes, std::uint64_t huge_bytes, double seconds_per_gib);

}  // namespace segfuse::doctor
