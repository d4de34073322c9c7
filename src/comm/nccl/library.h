#pragma once
// Which NCCL is used. It is opened at run time: neither its header nor the library is needed to
// build.

#include <optional>
#include <string>

#include "comm/nccl/nccl_api.h"

namespace segfuse::comm {

/// NCCL, opened at the first call; one for the life of the process. SEGFUSE_NCCL may name its file;
/// else it is looked for by the loader, then under $CUDA_HOME and /usr/local/cuda. CommError, with
/// all that was tried, where there is none of 2.20 or later. Multicast over NVLink, whose order of
/// additions nobody promises, is turned off in the environment (NCCL_NVLS_ENABLE) unless that
/// variable is set.
const NcclApi& nccl();

/// The library of that name; nothing, with the reason, where it cannot be used.
std::optional<NcclApi> open_nccl(const std::string& file, std::string& reason);

}  // namespace segfuse::comm
