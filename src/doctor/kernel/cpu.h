#pragma once
// What the CPU's compiler makes of a C file: functions, and which loops became vectors.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "jit/cpu_compiler.h"
#include "segfuse/doctor/kernel.h"

namespace segfuse::doctor {

/// Compiles a C file as generated kernels are compiled, for this machine: vector types and builtins
/// of clang, no #include. DataError where it does not compile, DeviceError where there is no
/// compiler.
void read_c_file(KernelReport& report, const std::filesystem::path& file);

/// Adds functions and loops of one text. Throws jit::CompileError.
void add_c_text(KernelReport& report, const jit::CpuCompiler& compiler, const jit::CSource& source);
/// "C, compiled by clang 19.1.7 for znver5"
std::string source_of(const jit::CpuCompiler& compiler);

/// Lines "12: vectorized loop (...)"; those that are none, or are not about loops, are left out,
/// and equal ones but once.
std::vector<KernelLoop> parse_remarks(std::string_view remarks);

}  // namespace segfuse::doctor
