// Replaces operator new for this program, and poisons what it returns. Apart from the tests: the
// compiler should not see both ends of an allocation.

#include "allocation_counter.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace segfuse::semicrf::testing {
std::atomic<std::int64_t> allocations{0};
}

namespace {

void* try_allocate(std::size_t size, std::size_t alignment) noexcept {
  ++segfuse::semicrf::testing::allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded);
  return p == nullptr ? p : std::memset(p, 0xFF, rounded);  // NaN in every double nobody sets
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (void* p = try_allocate(size, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
// Sanitizers bring their own of this one, which would not fit the delete below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return try_allocate(size, alignof(std::max_align_t));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
