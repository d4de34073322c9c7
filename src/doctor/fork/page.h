#pragma once

#include <cstdint>

#include "comm/registered/mapping.h"

namespace segfuse::doctor {

/// Bytes of a page of this machine: 4 KiB on x86-64, 4, 16 or 64 KiB on aarch64.
inline const std::uint64_t kPage = comm::page_bytes();

inline std::uint64_t page_begin(std::uint64_t address) { return address & ~(kPage - 1); }

}  // namespace segfuse::doctor
