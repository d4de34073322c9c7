#pragma once
// Registered buffers of any size in host memory, by address.

#include <cstddef>
#include <list>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "runtime/memory/pinned.h"
#include "segfuse/registered.h"

namespace segfuse::comm {

struct PoolOptions {
  std::string owner = "buffers";
  std::size_t slab_bytes = std::size_t{16} << 20;  ///< larger buffers get a slab of their own
  std::size_t limit = std::size_t{1} << 30;        ///< of slabs
  bool huge = false;
};

/// Any thread. All its slabs are registered as long as they exist, so every address in them can be
/// used by the back end's device at once. Slabs without buffers are given back, but for one.
class RegisteredPool {
 public:
  RegisteredPool(Registry& registry, PoolOptions options = {});
  RegisteredPool(const RegisteredPool&) = delete;
  RegisteredPool& operator=(const RegisteredPool&) = delete;

  /// DeviceError when the limit or the system does not allow it.
  std::byte* allocate(std::size_t bytes, std::size_t alignment = kCacheLine);
  /// Null where allocate() would exceed the limit.
  std::byte* try_allocate(std::size_t bytes, std::size_t alignment = kCacheLine);
  /// UsageError for an address that is not live.
  void deallocate(std::byte* address);
  std::size_t bytes_of(const std::byte* address) const;
  /// The pin of the slab that holds a live address, and how far behind its beginning that is.
  const Pin& pin_of(const std::byte* address) const;
  std::size_t offset_of(const std::byte* address) const;

  std::size_t held_bytes() const;
  std::size_t live_bytes() const;

 private:
  struct One {
    explicit One(Slab slab) : allocator(std::move(slab), true) {
      whole = allocator.slab().register_range(0, allocator.slab().bytes());
    }
    SubAllocator allocator;
    Registration whole;
  };
  using Slabs = std::list<One>;
  Slabs::iterator find(const char* call, const std::byte* address) const SEGFUSE_REQUIRES(mutex_);

  Registry& registry_;
  PoolOptions options_;
  mutable Mutex mutex_;
  mutable Slabs slabs_ SEGFUSE_GUARDED_BY(mutex_);
  std::size_t held_ SEGFUSE_GUARDED_BY(mutex_) = 0;
};

/// The pool's memory for a PinnedPool: staging buffers that no forked child can hurt. The pool
/// outlives the options and who uses them.
runtime::PinnedOptions staging_from(RegisteredPool& pool, std::size_t limit);

}  // namespace segfuse::comm
