#pragma once
// Registered buffers of any size, by address: the slabs behind prefetch, checkpoint and collective
// buffers. RegisteredPool is plain host memory; RegisteredResource is the same for work on streams,
// in the sense of runtime/memory/resource.h.

#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "runtime/memory/pinned.h"
#include "runtime/memory/resource.h"
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

/// A MemoryResource over a pool. Memory that comes back is handed out again when the host has seen
/// the work on its stream to be over; when there is no other, the host waits for that.
class RegisteredResource {
 public:
  RegisteredResource(RegisteredPool& pool, runtime::Timeline& timeline)
      : pool_(pool), timeline_(timeline) {}
  /// Waits for the work that may use what was freed. What is still live stays the pool's.
  ~RegisteredResource();
  RegisteredResource(const RegisteredResource&) = delete;
  RegisteredResource& operator=(const RegisteredResource&) = delete;

  std::byte* allocate(std::size_t bytes, runtime::StreamId stream, std::string_view label = {});
  void deallocate(std::byte* address, runtime::StreamId stream,
                  std::size_t bytes = runtime::kUnknownBytes);
  std::size_t bytes_of(const std::byte* address) const;

 private:
  struct Freed {
    std::byte* address;
    runtime::Frontier uses;
  };
  /// Gives back what is over; with `wait` one more. False: there was nothing to give.
  bool reclaim(bool wait);

  RegisteredPool& pool_;
  runtime::Timeline& timeline_;
  mutable Mutex mutex_;
  std::map<const std::byte*, std::size_t> live_ SEGFUSE_GUARDED_BY(mutex_);  ///< bytes as requested
  std::list<Freed> freed_ SEGFUSE_GUARDED_BY(mutex_);
};

static_assert(runtime::MemoryResource<RegisteredResource>);

}  // namespace segfuse::comm
