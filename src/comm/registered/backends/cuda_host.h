#pragma once
// Slabs that a GPU copies from and to directly.

#include <memory>

#include "runtime/cuda/driver.h"
#include "segfuse/registered.h"

namespace segfuse::comm {

/// Memory is registered with the driver for all contexts. `context` is made current for the calls;
/// it and the driver outlive the back end. Throws DeviceError.
std::shared_ptr<Backend> make_cuda_host_backend(const runtime::cuda::Driver& driver,
                                                runtime::cuda::Context context);
/// The driver of this machine and the primary context of a device. Throws DeviceError without one.
std::shared_ptr<Backend> make_cuda_host_backend(int device = 0);

}  // namespace segfuse::comm
