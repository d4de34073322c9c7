#pragma once
// What the compiler makes of a program, for people to read.

#include <string>

#include "compiler/schedule/schedule.h"
#include "compiler/segment/context.h"
#include "ir/fusion.h"

namespace segfuse::engine {

/// A target, and sizes like those to come.
struct EmitFor {
  compiler::Target target = compiler::Target::kCpu;
  compiler::SizeHints sizes;
};

/// Groups, and the schedule and kernels that each gets: a few lines a group.
std::string describe_plan(const ir::Fusion& fusion, const EmitFor& how);
/// The loop IR of all kernels.
std::string print_loops(const ir::Fusion& fusion, const EmitFor& how);
/// Their texts in the target's language one after the other, each complete.
std::string print_kernels(const ir::Fusion& fusion, const EmitFor& how);

}  // namespace segfuse::engine
