#pragma once
// The kernels' text, built into the library.

#include <string>
#include <string_view>

namespace segfuse::semicrf::gpu {

/// A file of cuda/kernels by name, without its include guard.
std::string kernel_source(std::string_view name);

}  // namespace segfuse::semicrf::gpu
