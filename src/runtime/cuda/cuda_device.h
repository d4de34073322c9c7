#pragma once
// A CUDA device behind the runtime's interface, on the driver opened at run time.

#include <cstddef>
#include <memory>

#include "runtime/device.h"

namespace segfuse::runtime {

namespace cuda {
struct Driver;
}

struct CudaDeviceOptions {
  /// At least this, rounded up to what the device maps at once. Memory is created granule by
  /// granule, so that any of them can be given back: large ones cost fewer calls.
  std::size_t granule = std::size_t{2} << 20;
  std::size_t limit = 0;  ///< bytes that may be mapped; 0: all there are
};

/// The device with this ordinal. Throws DeviceError that says what is missing, UsageError for an
/// ordinal that does not exist.
std::unique_ptr<Device> open_cuda_device(int ordinal, CudaDeviceOptions options = {});
/// The same through another driver, for tests; it must outlive the device.
std::unique_ptr<Device> open_cuda_device(const cuda::Driver& driver, int ordinal,
                                         CudaDeviceOptions options);

}  // namespace segfuse::runtime
