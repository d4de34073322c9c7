#pragma once
// The kernels that the emulator knows, by program and entry.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <type_traits>

namespace segfuse::testing {

struct EmulatedKernel {
  std::function<void(const void*)> run;
  std::size_t argument_bytes = 0;
};

std::map<std::string, EmulatedKernel>& emulated_kernels();

template <class Argument>
EmulatedKernel emulated(void (*kernel)(Argument)) {
  using Plain = std::remove_cvref_t<Argument>;
  return {[kernel](const void* argument) { kernel(*static_cast<const Plain*>(argument)); },
          sizeof(Plain)};
}

/// Add those of one stored type: of CudaEngine, and of CudaInference and CudaOnlineDecoder.
void add_float_kernels();
void add_double_kernels();
void add_half_kernels();
void add_bfloat16_kernels();
void add_float_scope_kernels();
void add_double_scope_kernels();

}  // namespace segfuse::testing
