#include <fmt/core.h>
#include <sndfile.h>

#include "base/thread_pool.h"
#include "engine/executor.h"
#include "segfuse/device.h"

namespace segfuse {

std::string version() { return SEGFUSE_VERSION; }

std::vector<Capability> capabilities() {
  const int cores = available_cores();
  return {
      {"CPU", true, fmt::format("{} core{}", cores, cores == 1 ? "" : "s")},
      {"BLAS", engine::matmul_library() != "built-in loops", std::string(engine::matmul_library())},
      {"audio", true, sf_version_string()},
      {"FFT", true, "KISS FFT, single precision"},
      {"CPU JIT", false, "not written yet: programs run operation by operation"},
      {"CUDA", false, "not written yet: everything runs on the CPU"},
      {"MPI, NCCL", false, "not written yet: one process"},
  };
}

}  // namespace segfuse
