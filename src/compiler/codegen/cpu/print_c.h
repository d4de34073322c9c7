#pragma once
// C text of a kernel.

#include <string>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cpu {

/// A complete C11 text with one function, called as loop/kernel.h says; it compiles with any C
/// compiler (docs/codegen.md). Equal kernels give equal texts.
std::string print_c(const loop::Kernel& kernel);

}  // namespace segfuse::compiler::cpu
