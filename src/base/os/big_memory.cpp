#include "base/os/big_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace segfuse {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kBig = 2 * kHugePage;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;  // the sanitizer has to see that freed memory is not used
#else
constexpr bool kKeeps = true;
#endif

/// A kept block in one word: its address, which is a multiple of kHugePage, and in the bits below
/// that its number of huge pages. 0: none.
using Block = std::uintptr_t;
constexpr std::size_t kMaxPages = kHugePage - 1;

std::size_t pages_of(Block block) { return block & (kHugePage - 1); }
void* memory_of(Block block) {
  return reinterpret_cast<void*>(block & ~(kHugePage - 1));  // NOLINT(performance-no-int-to-ptr)
}
Block block_of(void* memory, std::size_t pages) {
  return reinterpret_cast<std::uintptr_t>(memory) | pages;
}

void give_back(Block block) noexcept { munmap(memory_of(block), pages_of(block) * kHugePage); }

/// What is kept. Words that are exchanged, not a lock: a forked child may allocate while another
/// thread of its parent was in here.
class Kept {
 public:
  /// A block of so many pages; 0 if there is none.
  Block take(std::size_t pages) {
    for (std::atomic<Block>& slot : slots_) {
      Block block = slot.load(std::memory_order_acquire);
      if (pages_of(block) != pages) continue;
      if (!slot.compare_exchange_strong(block, 0, std::memory_order_acq_rel)) continue;
      bytes_.fetch_sub(pages * kHugePage, std::memory_order_relaxed);
      return block;
    }
    return 0;
  }

  /// False if there is no room.
  bool keep(Block block) {
    const std::size_t size = pages_of(block) * kHugePage;
    if (bytes_.fetch_add(size, std::memory_order_relaxed) + size <= kMaxKept)
      for (std::atomic<Block>& slot : slots_) {
        Block none = 0;
        if (slot.compare_exchange_strong(none, block, std::memory_order_acq_rel)) return true;
      }
    bytes_.fetch_sub(size, std::memory_order_relaxed);
    return false;
  }

  void give_all_back() {
    for (std::atomic<Block>& slot : slots_)
      if (const Block block = slot.exchange(0, std::memory_order_acq_rel)) {
        bytes_.fetch_sub(pages_of(block) * kHugePage, std::memory_order_relaxed);
        give_back(block);
      }
  }

  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<Block>, 64> slots_{};
  std::atomic<std::size_t> bytes_{0};
};

constinit Kept kept;

/// Fresh memory at a multiple of kHugePage; null if the system refuses it.
void* map(std::size_t bytes) {
  const std::size_t room = bytes + kHugePage;
  void* const mapped =
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  const std::size_t before = offset == 0 ? 0 : kHugePage - offset;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
  // A wish: without it everything works as before.
  (void)madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

bool is_kept(std::size_t bytes) { return kKeeps && bytes >= kBig; }

/// Rounded up, by an eighth at most, so that arrays of about the same size can take each other's
/// place. Pages that nobody touches take no memory.
std::size_t pages_for(std::size_t bytes) {
  const std::size_t pages = (bytes + kHugePage - 1) / kHugePage;
  const std::size_t step = std::bit_floor(pages) / 8;
  return step < 2 ? pages : (pages + step - 1) / step * step;
}

/// Says how much was asked for. It holds its text, since there is no memory for another.
class NoMemoryForArray : public std::bad_alloc {
 public:
  explicit NoMemoryForArray(std::size_t bytes) {
    std::snprintf(text_.data(), text_.size(),
                  "an array of %zu bytes: the system has no memory left for it", bytes);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_.data(); }

 private:
  std::array<char, 96> text_{};
};

void* allocate_small(std::size_t bytes) {
  const std::size_t alignment = bytes >= kBig ? kHugePage : 64;
  const std::size_t padded =
      (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const memory = padded < bytes ? nullptr : std::aligned_alloc(alignment, padded);
  if (memory == nullptr) throw NoMemoryForArray(bytes);
  return memory;
}

}  // namespace

void* allocate_array(std::size_t bytes) {
  if (bytes > kMaxPages * kHugePage / 2) throw NoMemoryForArray(bytes);
  if (!is_kept(bytes)) return allocate_small(bytes);
  const std::size_t pages = pages_for(bytes);
  if (const Block block = kept.take(pages)) return memory_of(block);
  void* memory = map(pages * kHugePage);
  if (memory == nullptr) {
    kept.give_all_back();
    memory = map(pages * kHugePage);
  }
  if (memory == nullptr) throw NoMemoryForArray(bytes);
  return memory;
}

void free_array(void* memory, std::size_t bytes) noexcept {
  if (!is_kept(bytes)) {
    std::free(memory);
    return;
  }
  const Block block = block_of(memory, pages_for(bytes));
  // Before it can be taken by another thread, whose values would go otherwise.
  (void)madvise(memory, pages_of(block) * kHugePage, MADV_FREE);
  if (!kept.keep(block)) give_back(block);
}

std::size_t kept_array_bytes() noexcept { return kept.bytes(); }

}  // namespace segfuse
