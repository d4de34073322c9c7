#pragma once
// What the CPU's compiler makes of a C file: functions, and which loops became vectors.

#include <filesystem>
#include <string_view>
#include <vector>

#include "segfuse/doctor.h"

namespace segfuse::doctor {

/// Compiles a C file as generated kernels are compiled, for this machine: vector types and builtins
/// of clang, no #include. DataError where it does not compile, DeviceError where there is no
/// compiler.
void read_c_file(KernelReport& report, const std::filesystem::path& file);

/// Lines "12: vectorized loop (...)"; those that are none are left out.
std::vector<KernelLoop> parse_remarks(std::string_view remarks);

}  // namespace segfuse::doctor
