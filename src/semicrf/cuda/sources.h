#pragma once
// The kernels' text, built into the library.

#include <string>
#include <string_view>

namespace segfuse::semicrf::gpu {

/// A file by its path in cuda/kernels, after the files that it includes, each once: text without
/// includes.
std::string kernel_source(std::string_view name);

}  // namespace segfuse::semicrf::gpu
