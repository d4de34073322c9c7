#pragma once
// CUDA engines on any device that is open, with memory from where it says.

#include <vector>

#include "runtime/memory/stream_memory.h"
#include "segfuse/semicrf_cuda.h"

namespace segfuse::semicrf {

struct OverDevice {
  /// A CudaEngine or a CudaInference.
  template <class Made>
  static Made make(const runtime::DeviceAccess& device, const CudaOptions& options = {});
  static SplitCudaEngine split(const std::vector<runtime::DeviceAccess>& devices,
                               const CudaOptions& options = {});
  template <class T>
  static CudaOnlineDecoder online(const runtime::DeviceAccess& device, const Potentials<T>& shared,
                                  const OnlineOptions& options = {},
                                  const View<const double, 1>& tail = {}, void* stream = nullptr,
                                  const Context& context = {});
};
template <>
CudaEngine OverDevice::make(const runtime::DeviceAccess& device, const CudaOptions& options);
template <>
CudaInference OverDevice::make(const runtime::DeviceAccess& device, const CudaOptions& options);

}  // namespace segfuse::semicrf
