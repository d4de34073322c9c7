#pragma once
// RDMA verbs: libibverbs is opened at run time.

#include <memory>
#include <string>

#include "comm/registered/backends/backend.h"

namespace segfuse::comm {

/// The first device, or the one with this name. Throws DeviceError without the library or a device,
/// which is ordinary. Warns when the environment asks libibverbs to keep single pages from children
/// (RDMAV_FORK_SAFE), which slabs make unnecessary and which breaks other memory.
std::shared_ptr<Backend> make_verbs_backend(const std::string& device = {});

}  // namespace segfuse::comm
