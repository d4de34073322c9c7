#pragma once
// Enqueues all work. It sees every use of a buffer, so it knows which waits are needed, and the
// heap knows when memory is free; users need not track either.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "runtime/device.h"
#include "runtime/memory/buffer.h"
#include "runtime/timeline.h"

namespace segfuse::runtime {

/// A buffer that a piece of work reads or writes (also: reads and writes).
struct Use {
  Use(const Buffer& used, bool writes) : buffer(&used), write(writes) {}
  const Buffer* buffer;
  bool write;
};
inline Use reads(const Buffer& buffer) { return {buffer, false}; }
inline Use writes(const Buffer& buffer) { return {buffer, true}; }

/// Orders work by its uses: a read comes after the last write, a write after all earlier uses, also
/// those by earlier owners of the memory. Waits are added where the clocks show that one is
/// missing, and nowhere else. Buffers may be dropped as soon as a call returns. Any thread; work
/// that two threads enqueue at once on one buffer is memory-safe, but its order is undefined.
class Executor {
 public:
  explicit Executor(Timeline& timeline) : timeline_(&timeline) {}
  Timeline& timeline() const { return *timeline_; }

  /// Enqueues `work` on `stream`. UsageError when a buffer is empty or of another device.
  StreamTick launch(StreamId stream, Work work, std::span<const Use> uses);
  StreamTick launch(StreamId stream, Work work, std::initializer_list<Use> uses) {
    return launch(stream, std::move(work), std::span(uses.begin(), uses.size()));
  }
  /// The same after `needed` alone, in place of the uses so far: for parts of memory while others
  /// use the rest of it.
  StreamTick launch(StreamId stream, Work work, std::span<const Use> uses, const Frontier& needed);
  /// Copies bytes; one side may be of another device. Offsets in bytes.
  StreamTick copy(StreamId stream, const Buffer& to, std::size_t to_offset, const Buffer& from,
                  std::size_t from_offset, std::size_t bytes);
  /// Between a buffer and pinned host memory, which stays as it is until the copy is over.
  StreamTick copy_in(StreamId stream, const Buffer& to, std::size_t to_offset,
                     const std::byte* from, std::size_t bytes);
  StreamTick copy_out(StreamId stream, std::byte* to, const Buffer& from, std::size_t from_offset,
                      std::size_t bytes);
  StreamTick fill(StreamId stream, const Buffer& buffer, std::uint8_t value);
  /// The host waits until the buffer's content is there (its last write is over).
  void wait_written(const Buffer& buffer);
  /// The host waits until nothing uses the buffer.
  void wait_unused(const Buffer& buffer);

  /// Work that has to be over before the memory is written: for those who enqueue on their own.
  Frontier uses_of(const Buffer& buffer) const;
  /// Records uses of the memory by work that was enqueued otherwise.
  void note(const Buffer& buffer, const Frontier& uses);
  /// The same for a write that readers have to come after.
  void note_write(const Buffer& buffer, StreamTick write);

 private:
  friend class PlanRunner;
  Frontier before(StreamId stream, std::span<const Use> uses, const char* what,
                  bool any_device) const;
  void after(StreamId stream, std::span<const Use> uses, StreamTick use);
  StreamTick copy_host(StreamId stream, Use use, std::size_t offset, void* host, std::size_t bytes);

  Timeline* timeline_;
};

}  // namespace segfuse::runtime
