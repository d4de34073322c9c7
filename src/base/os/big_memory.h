#pragma once
// Memory for arrays.

#include <cstddef>

namespace segfuse {

/// At a multiple of 64 bytes, of std::free. Some megabytes or more are asked of the system in huge
/// pages where it has them: the first touch of small ones costs more than a kernel that fills them.
/// Throws std::bad_alloc.
void* allocate_array(std::size_t bytes);

}  // namespace segfuse
