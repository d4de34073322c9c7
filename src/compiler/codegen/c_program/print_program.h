#pragma once
// A whole program in C: its kernels, and a function that runs them, for programs that know nothing
// of segfuse.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/segment/segmented_fusion.h"

namespace segfuse::compiler::cpu {

/// A group in run order; `lowered` is empty for views and library calls.
struct ProgramGroup {
  SegmentedGroup group;
  GroupKind kind = GroupKind::kPointwise;
  LoweredGroup lowered;
};

struct CProgram {
  std::string function;  ///< its name in C
  std::string header;    ///< C11 and C++: the functions, and how they are called
  std::string source;    ///< C11, complete in itself; it holds the header's text
};

/// `fusion` is the one that the groups were cut from, with all sizes that kernels need; `source` is
/// what it was before all passes, whose sizes are checked. Views are the memory of what they view;
/// library calls are plain loops. The function is called `name`, or after the Fusion where that is
/// empty. UsageError for a name that C cannot have, and for operations that have no form in C.
CProgram print_program(const ir::Fusion& source, const ir::Fusion& fusion,
                       std::span<const ProgramGroup> groups, std::span<const ir::Alias> in_place,
                       std::string_view name = {});

}  // namespace segfuse::compiler::cpu
