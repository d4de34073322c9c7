#pragma once
// NVRTC, the run-time compiler for CUDA C++, opened at run time.

#include <string>
#include <string_view>
#include <vector>

namespace segfuse::runtime::cuda {

/// "13.0"; throws DeviceError when the library cannot be found. SEGFUSE_NVRTC may name its file;
/// else it is looked for by its plain names, then under $CUDA_HOME and /usr/local/cuda.
std::string nvrtc_version();

struct Compiled {
  std::string cubin;   ///< machine code
  std::string report;  ///< what the assembler says of registers, shared memory and spills
  std::string ptx;     ///< what it was assembled from; empty where this NVRTC does not keep it
};

/// Compiles for an architecture like "sm_90". Throws InternalError with the compiler's log when the
/// source does not compile, DeviceError when the architecture is not known to it. Headers are
/// looked for in `include_folders`.
Compiled compile_cubin(std::string_view name, const std::string& source,
                       const std::vector<std::string>& defines, std::string_view architecture,
                       const std::vector<std::string>& include_folders = {});

}  // namespace segfuse::runtime::cuda
