#pragma once
// Device memory by address, for code that knows no buffers: libraries with allocator callbacks,
// other people's containers. What a buffer does by itself its user has to do here: free once, and
// only after all work that uses the memory was enqueued on, or ordered before the tail of, the
// stream named when it is freed.
//
// Adaptors (adaptors.h) put something around a resource and are resources themselves.

#include <concepts>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "runtime/memory/heap.h"

namespace segfuse::runtime {

/// "I do not know how many bytes these were."
inline constexpr std::size_t kUnknownBytes = static_cast<std::size_t>(-1);

/// allocate() throws OutOfDeviceMemory, or UsageError for a stream of another device. deallocate()
/// throws UsageError, and changes nothing, for an address that is not live, sizes that differ from
/// what was requested, and streams of another device. bytes_of() is what was requested at a live
/// address; it throws as deallocate() does. All may be called from any thread.
template <class R>
concept MemoryResource =
    requires(R& r, std::byte* address, std::size_t bytes, StreamId stream, std::string_view label) {
      { r.allocate(bytes, stream, label) } -> std::same_as<std::byte*>;
      { r.deallocate(address, stream, bytes) } -> std::same_as<void>;
      { r.bytes_of(address) } -> std::same_as<std::size_t>;
    };

/// A heap's memory by address.
class HeapResource {
 public:
  explicit HeapResource(Heap& heap) : heap_(&heap) {}
  HeapResource(const HeapResource&) = delete;
  HeapResource& operator=(const HeapResource&) = delete;

  /// Work enqueued on `stream` from now on may use the memory. `label` lives as long as the heap.
  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {});
  /// Work enqueued on `stream` so far may still use it.
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes);
  std::size_t bytes_of(const std::byte* address) const;

  /// The buffer at a live address, for the executor.
  Buffer buffer(const std::byte* address) const;
  std::size_t live() const;

 private:
  struct Freed {
    const std::byte* address = nullptr;
    std::size_t bytes = 0;
    std::string_view label;
  };
  using Live = std::map<const std::byte*, Buffer>;

  Live::const_iterator find(const char* call, const std::byte* address) const
      SEGFUSE_REQUIRES(mutex_);
  [[noreturn]] void refuse(const char* call, const std::byte* address) const
      SEGFUSE_REQUIRES(mutex_);

  Heap* heap_;
  mutable Mutex mutex_;
  Live live_ SEGFUSE_GUARDED_BY(mutex_);
  std::deque<Freed> freed_
      SEGFUSE_GUARDED_BY(mutex_);  ///< the last ones, to tell a double free from a foreign address
};

static_assert(MemoryResource<HeapResource>);

}  // namespace segfuse::runtime
