#pragma once
// The compiler's work on a program as one page: no network, no script.

#include <string>

#include "compiler/compile.h"
#include "ir/fusion.h"
#include "segfuse/program.h"

namespace segfuse::engine {

/// Groups as a graph, their bytes against the least possible, plans, kernels with their texts in C
/// and CUDA, and what stays apart and why. With `how.resources` and NVRTC also what the kernels
/// need of a GPU; without NVRTC the page says why it is missing.
std::string describe_html(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                          const EmitOptions& how);

}  // namespace segfuse::engine
