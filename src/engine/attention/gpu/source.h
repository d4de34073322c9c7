#pragma once

#include <string>
#include <string_view>

namespace segfuse::engine {

/// The text of a file in kernels/, with what it includes.
std::string attention_kernel_source(std::string_view file);

}  // namespace segfuse::engine
