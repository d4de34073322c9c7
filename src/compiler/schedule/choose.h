#pragma once
// Which schedule a group gets, for a target and the lengths of this run. One function a target: a
// place for tables and tuning, too. Schedules depend on classes of lengths only, so that other
// lengths of a class find kernels that are there.

#include <cstdint>
#include <span>

#include "compiler/lower/lower.h"

namespace segfuse::compiler {

/// `lengths` are those of space.axes. The number of threads plays no part: results have the same
/// bits for any.
Schedule choose_cpu(const Space& space, std::span<const std::int64_t> lengths);
/// Leaves `vector`, `narrow` and `filled` as they are: they are known when there are kernels
/// (cuda::fit_to_sizes).
Schedule choose_cuda(const Space& space, std::span<const std::int64_t> lengths);

}  // namespace segfuse::compiler
