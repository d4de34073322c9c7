#pragma once
// Small objects in a slab: flags, mailboxes, words to flush. What is where stands outside the slab,
// so that losing the slab in a child loses no list.

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "comm/registered/registry.h"

namespace segfuse::comm {

inline constexpr std::size_t kCacheLine = 64;

/// The smallest free range that fits, the lowest of equals: addresses depend on the calls alone.
/// Any thread. All of it is gone, or forgotten, when this object goes.
class SubAllocator {
 public:
  /// `registered_whole`: whoever made this holds one registration of the whole slab.
  explicit SubAllocator(Slab slab, bool registered_whole = false);
  SubAllocator(const SubAllocator&) = delete;
  SubAllocator& operator=(const SubAllocator&) = delete;

  /// Whole cache lines of its own, at a multiple of `alignment` (a power of two); null when nothing
  /// fits. UsageError for 0 bytes.
  std::byte* allocate(std::size_t bytes, std::size_t alignment = kCacheLine);
  /// UsageError, and nothing changes, for an address that is not live, and for memory of which a
  /// byte is registered (once more than as a whole).
  void deallocate(std::byte* address);
  /// As asked for. UsageError unless it is live.
  std::size_t bytes_of(const std::byte* address) const;
  bool owns(const std::byte* address) const;
  bool empty() const;
  std::size_t live_bytes() const;  ///< with rounding

  Registration register_object(std::byte* address);
  Slab& slab() { return slab_; }

 private:
  struct Block {
    std::size_t held = 0;   ///< with rounding
    std::size_t asked = 0;  ///< by the caller
  };
  using Live = std::map<std::size_t, Block>;
  Live::const_iterator find(const char* call, const std::byte* address) const;
  void add_free(std::size_t offset, std::size_t bytes);
  void remove_free(std::size_t offset);
  void resize_free(std::size_t offset, std::size_t bytes);

  Slab slab_;
  std::byte* base_;
  std::uint32_t forbidden_;  ///< registrations of what is freed
  mutable std::mutex mutex_;
  Live live_;
  std::map<std::size_t, std::size_t> free_;                ///< bytes by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  ///< bytes, offset
  std::size_t live_bytes_ = 0;
};

}  // namespace segfuse::comm
