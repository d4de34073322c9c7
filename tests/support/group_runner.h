#pragma once
// Runs a segmented Fusion group by group through its kernels, by the interpreter of loop IR.

#include <functional>
#include <vector>

#include "compiler/lower/lower.h"

namespace segfuse::testing {

using ScheduleFor = std::function<compiler::Schedule(const compiler::Space&)>;

/// Outputs as f64 or i64. `seen` gets every kernel.
std::vector<Tensor> run_groups(
    const compiler::SegmentedFusion& segmented, std::span<const Tensor> inputs,
    const ScheduleFor& schedule,
    const std::function<void(const compiler::Space&, const compiler::LoweredGroup&)>& seen = {});

}  // namespace segfuse::testing
