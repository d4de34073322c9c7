// PTX, cubins, and what Triton writes beside them.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "doctor/kernel/cubin.h"
#include "doctor/kernel/ptx.h"
#include "doctor/kernel/triton.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    for (const segfuse::KernelInfo& kernel : segfuse::doctor::read_cubin(bytes, "x"))
      if (kernel.name.empty() && kernel.architecture.empty()) std::abort();
  } catch (const segfuse::DataError&) {
  }
  try {
    for (const segfuse::KernelInfo& kernel : segfuse::doctor::read_ptx(bytes, "x"))
      if (kernel.name.empty() || kernel.barriers.value_or(0) > 16) std::abort();
  } catch (const segfuse::DataError&) {
  }
  try {
    if (segfuse::doctor::read_triton_launch(bytes, "x").threads > 4096) std::abort();
  } catch (const segfuse::DataError&) {
  }
  return 0;
}
