#pragma once
// What a cubin says of its kernels: the resources that the assembler wrote down.

#include <string>
#include <string_view>
#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// By name. Spilled bytes are those of the instructions that the assembler lists as spills, as
/// `ptxas -v` counts them. DataError where it is no cubin, or a damaged one.
std::vector<KernelInfo> read_cubin(std::string_view bytes, const std::string& file);

}  // namespace segfuse::doctor
