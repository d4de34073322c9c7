#pragma once
// Memory for arrays.

#include <cstddef>

namespace segfuse {

/// Uninitialised memory at a multiple of 64 bytes. Throws std::bad_alloc.
///
/// Arrays of 4 MiB or more lie in huge pages where the system has them, and their memory is kept
/// when they are freed: the first touch of fresh pages costs more than a kernel that fills them.
/// Kept memory is at most kMaxKept bytes in a process, serves later arrays of about the same size,
/// and goes back to the system when that needs memory (MADV_FREE). All of it goes back before an
/// allocation here fails.
void* allocate_array(std::size_t bytes);

/// Frees what allocate_array(bytes) returned. May be called by any thread.
void free_array(void* memory, std::size_t bytes) noexcept;

inline constexpr std::size_t kMaxKept = std::size_t{1} << 30;

/// How much memory of freed arrays is kept just now, in bytes.
std::size_t kept_array_bytes() noexcept;

}  // namespace segfuse
