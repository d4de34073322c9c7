#pragma once
// What PTX says of its kernels before an assembler has seen it.

#include <string>
#include <string_view>
#include <vector>

#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// By name, with what functions that a kernel calls add to it. Registers are those that are
/// declared, which an assembler maps to fewer. DataError "FILE:line: ..." where it is no PTX.
std::vector<KernelInfo> read_ptx(std::string_view text, const std::string& file);

}  // namespace segfuse::doctor
