#pragma once
// C text of a kernel.

#include <string>
#include <string_view>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cpu {

/// A complete C11 text with one function, called as loop/kernel.h says; it compiles with any C
/// compiler (docs/codegen.md). Equal kernels give equal texts.
std::string print_c(const loop::Kernel& kernel);
/// The function alone, called `name`: it needs prelude_for() before it.
std::string print_c_function(const loop::Kernel& kernel, std::string_view name);

}  // namespace segfuse::compiler::cpu
