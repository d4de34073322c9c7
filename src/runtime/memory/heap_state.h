#pragma once
// What a heap holds; shared by the files that implement it.

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/magazine.h"

namespace segfuse::runtime {

struct Heap::State {
  State(Heap* heap, Device& device, Timeline& timeline, HeapOptions options);

  struct Request {
    std::size_t bytes = 0;
    StreamId stream;
    std::string_view label;
  };
  /// The steps of an allocation, from the cheapest to the last. Returns a live block. `bytes` are
  /// those of the request, rounded up.
  Block* obtain(std::size_t bytes, const Request& request);

  Arena& arena_for(std::size_t bytes) { return *arenas[bytes <= kSmallBytes ? 0 : 1]; }
  Arena& other_arena(std::size_t bytes) { return *arenas[bytes <= kSmallBytes ? 1 : 0]; }
  std::size_t mapped() const SEGFUSE_REQUIRES(mutex);
  std::size_t taken() const SEGFUSE_REQUIRES(mutex);  ///< live or cached
  std::size_t soft_limit(std::size_t more) const SEGFUSE_REQUIRES(mutex);
  /// Gives the content of magazines to the arenas; whether there was any. Under the lock.
  bool flush(Magazine& magazine) SEGFUSE_REQUIRES(mutex);
  bool flush_all() SEGFUSE_REQUIRES(mutex);
  Block* take(Arena& arena, const Arena::Run& run, std::size_t bytes) SEGFUSE_REQUIRES(mutex);
  std::optional<Arena::Growth> growth(Arena& arena, std::size_t bytes, StreamId stream,
                                      std::size_t limit) const SEGFUSE_REQUIRES(mutex);
  /// These let go of the lock for their device calls.
  bool map(Arena& arena, const Arena::Growth& growth) SEGFUSE_REQUIRES(mutex);
  std::size_t unmap_idle(std::size_t bytes) SEGFUSE_REQUIRES(mutex);
  bool move_idle(std::size_t bytes) SEGFUSE_REQUIRES(mutex);
  /// Uses to wait for so that `bytes` can be unmapped; empty when even all would not do.
  Frontier worth_waiting_for(std::size_t bytes) const SEGFUSE_REQUIRES(mutex);

  bool remembers() const { return history_on.load(std::memory_order_relaxed); }
  void remember(HeapEvent::Kind kind, Block& block, std::uint32_t stream, bool cached = false);
  void remember(HeapEvent event);
  std::string out_of_memory(const Request& request, std::size_t bytes, const Frontier* awaited)
      SEGFUSE_REQUIRES(mutex);

  Heap* heap;
  Device& device;
  Timeline& timeline;
  HeapOptions options;
  std::size_t step;  ///< least growth
  std::array<std::byte*, 2> reserved{};
  std::size_t reserved_bytes = 0;

  mutable Mutex mutex;  ///< of what follows; taken before a magazine's lock
  std::array<std::unique_ptr<Arena>, 2> arenas;
  HeapStatistics counts SEGFUSE_GUARDED_BY(mutex);  ///< the members that only grow, and peaks
  mutable std::array<Magazine, kMaxStreams> magazines;

  std::atomic<bool> history_on{false};
  mutable Mutex history_mutex;
  std::size_t history_size SEGFUSE_GUARDED_BY(history_mutex) = 0;
  std::uint64_t serials SEGFUSE_GUARDED_BY(history_mutex) = 0;
  std::deque<HeapEvent> history SEGFUSE_GUARDED_BY(history_mutex);
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
};

}  // namespace segfuse::runtime
