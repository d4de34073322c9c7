#pragma once
// Runs a segmented Fusion group by group through its kernels, by the interpreter of loop IR.

#include <functional>
#include <vector>

#include "compiler/lower/lower.h"

namespace segfuse::testing {

using ScheduleFor = std::function<compiler::Schedule(const compiler::Space&)>;

/// What runs a kernel, as loop::interpret does, and returns its status.
using KernelRunner =
    std::function<int(const compiler::loop::Kernel& kernel, std::span<Tensor> globals,
                      const std::function<std::int64_t(const ir::Extent&)>& size)>;

/// Outputs as f64 or i64. `seen` gets every kernel; they are run by `runner`, or interpreted.
std::vector<Tensor> run_groups(
    const compiler::SegmentedFusion& segmented, std::span<const Tensor> inputs,
    const ScheduleFor& schedule,
    const std::function<void(const compiler::Space&, const compiler::LoweredGroup&)>& seen = {},
    const KernelRunner& runner = {});

}  // namespace segfuse::testing
