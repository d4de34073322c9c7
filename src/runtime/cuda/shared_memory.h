#pragma once
// Memory of a CUDA device that other devices of the machine reach: those of this process by its
// address, other processes' by a handle of the driver (CUDA IPC).

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/cuda/driver.h"

namespace segfuse::runtime::cuda {

/// The calls need `context`, of `device`, to be current, and `driver` to outlive the memory. See
/// Device::allocate_shared(), share() and reach_shared().
std::shared_ptr<std::byte> allocate_shared(const Driver& driver, Context context,
                                           std::size_t bytes);
std::string share(const Driver& driver, Device device, const std::shared_ptr<std::byte>& memory);
std::shared_ptr<std::byte> reach_shared(const Driver& driver, Context context, Device device,
                                        const std::string& shared);

}  // namespace segfuse::runtime::cuda
