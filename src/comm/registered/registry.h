#pragma once
// The interface by which the fork guard queries all registries of the process.

#include <cstddef>
#include <cstdint>

#include "segfuse/registered.h"

namespace segfuse::comm {

/// Bytes that the kernel counts as pinned and that fork() does not copy.
std::size_t safely_pinned_bytes() noexcept;
/// Whether a slab has a byte of the range.
bool in_some_slab(std::uintptr_t begin, std::uintptr_t end);

}  // namespace segfuse::comm
