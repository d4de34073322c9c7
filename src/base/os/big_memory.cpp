#include "base/os/big_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace segfuse {

void* allocate_array(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  constexpr std::size_t kSmall = 2 * kHugePage;
  const std::size_t alignment = bytes >= kSmall ? kHugePage : 64;
  const std::size_t padded =
      (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const memory = padded < bytes ? nullptr : std::aligned_alloc(alignment, padded);
  if (memory == nullptr) throw std::bad_alloc();
  // A wish: without it everything works as before.
  if (alignment == kHugePage) (void)madvise(memory, padded, MADV_HUGEPAGE);
  return memory;
}

}  // namespace segfuse
