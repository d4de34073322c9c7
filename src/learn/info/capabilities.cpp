#include <fmt/core.h>
#include <sndfile.h>

#include "base/console/printable.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "comm/nccl/library.h"
#include "engine/executable.h"
#include "segfuse/capabilities.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_cuda.h"

namespace segfuse {

namespace {

Capability cuda_capability() {
  std::string detail = semicrf::CudaEngine::describe_device();
  const bool available = detail.rfind("CUDA:", 0) != 0;
  if (available) detail += ", " + engine::device_matmul_library();
  return {"CUDA", available, detail};
}

Capability jit_capability() {
  std::string reason;
  const std::string compiler = engine::cpu_compiler_name(&reason);
  if (compiler.empty()) return {"CPU JIT", false, reason + "; programs run on built-in loops"};
  return {"CPU JIT", true, compiler};
}

Capability nccl_capability() {
  try {
    const comm::NcclApi& nccl = comm::nccl();
    return {"NCCL", true, fmt::format("{} ({})", nccl.version, nccl.where)};
  } catch (const CommError& error) {
    return {"NCCL", false, error.what()};
  }
}

}  // namespace

std::vector<Capability> capabilities() {
  const int cores = available_cores();
  return {
      {"CPU", true, fmt::format("{} core{}", cores, cores == 1 ? "" : "s")},
      {"audio", true, sf_version_string()},
      {"FFT", true, "built in, single precision"},
      jit_capability(),
      cuda_capability(),
      {"ranks", true, "TCP here and by torchrun; the launcher's MPI by mpirun or srun"},
      nccl_capability(),
  };
}

std::string terminal_text(std::string_view text) { return printable(text); }
std::string terminal_line(std::string_view text) { return printable_line(text); }

std::string command_suggestion(const std::string& name, const std::vector<std::string>& known) {
  return suggestion(name, known);
}

}  // namespace segfuse
