#pragma once

#include <string>
#include <string_view>

namespace segfuse::doctor {

/// The text of a file in kernels/, with what it includes.
std::string magnitude_kernel_source(std::string_view file);

}  // namespace segfuse::doctor
