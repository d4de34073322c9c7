#pragma once
// What the compiler makes of a program, for people to read.

#include <map>
#include <string>
#include <string_view>

#include "compiler/compile.h"
#include "ir/fusion.h"
#include "runtime/cuda/nvrtc.h"
#include "segfuse/context.h"

namespace segfuse::engine {

/// Groups, and the schedule and kernels that each gets: a few lines a group.
std::string describe_plan(const ir::Fusion& fusion, const compiler::CompileOptions& how);
/// The loop IR of all kernels.
std::string print_loops(const ir::Fusion& fusion, const compiler::CompileOptions& how);
/// Their texts in the target's language one after the other, each complete.
std::string print_kernels(const ir::Fusion& fusion, const compiler::CompileOptions& how);
/// All kernels of a Target::kCuda as one text, equal ones once.
struct CudaUnit {
  std::string text;
  /// By the text that print_cuda() gives of a kernel: its name here, which no other has.
  std::map<std::string, std::string> names;
};
CudaUnit print_cuda_unit(const ir::Fusion& fusion, const compiler::CompileOptions& how);
/// That text compiled for "sm_90" or the like. DeviceError without NVRTC.
runtime::cuda::Compiled compile_kernels(const ir::Fusion& fusion,
                                        const compiler::CompileOptions& how,
                                        std::string_view architecture);
/// All kernels made ready as for a run: by the compiler of the context; by NVRTC, each text once.
/// DeviceError where that is missing.
void make_cpu_kernels(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                      const Context& context);
void make_cuda_kernels(const ir::Fusion& fusion, const compiler::SizeHints& sizes,
                       std::string_view architecture);
/// The whole program in C, its function called `name` (empty: after the program).
compiler::cpu::CProgram print_program(const ir::Fusion& fusion, const compiler::CompileOptions& how,
                                      std::string_view name = {});

}  // namespace segfuse::engine
