#pragma once
// The memory of one device, in the order of streams.
//
// Freed memory keeps its frontier: for each stream, the last work that used it. It is handed out
// for a stream that is already ordered after that frontier, or after the waits that are missing
// were added, or once the device is seen to be done. With one thread that submits, addresses, waits
// and growth are a function of the calls alone, not of how fast the device is.
//
// Small blocks go through a magazine of the stream they were handed out for, under a lock of that
// stream alone. All else goes through arenas under one lock, which is not held over device calls.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device.h"
#include "runtime/memory/buffer.h"
#include "runtime/timeline.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

struct HeapOptions {
  /// Most bytes of device memory to hold; 0: what the device has.
  std::size_t hard_limit = 0;
  /// Up to this many bytes the heap maps new memory before it lets streams wait for each other's
  /// memory; 0: a quarter more than what is in use at the time.
  std::size_t soft_limit = 0;
  /// Addresses reserved for each arena, in multiples of the device's memory.
  std::size_t reserve_factor = 4;
  /// Whether the host may wait for work of the device when there is no other way.
  bool may_wait = true;
  /// Whether the device is asked what is over before memory grows beyond the soft limit, so that
  /// idle memory is found without a host wait. Addresses then depend on how fast the device is.
  bool may_ask = false;
  /// Bytes kept in the magazine of one stream.
  std::size_t magazine_bytes = std::size_t{8} << 20;
};

struct HeapStatistics {
  std::size_t mapped_bytes = 0;     ///< device memory held
  std::size_t live_bytes = 0;       ///< handed out, with rounding
  std::size_t requested_bytes = 0;  ///< of the live
  std::size_t cached_bytes = 0;     ///< in magazines
  std::size_t free_bytes = 0;       ///< in arenas; mapped = live + cached + free
  std::size_t live_blocks = 0;
  std::size_t cached_blocks = 0;
  std::size_t peak_mapped_bytes = 0;
  std::size_t peak_taken_bytes = 0;  ///< most that was live or cached at one time
  std::uint64_t allocations = 0;
  std::uint64_t magazine_hits = 0;
  std::uint64_t grown = 0;        ///< times memory was mapped
  std::uint64_t released = 0;     ///< times it was unmapped
  std::uint64_t added_waits = 0;  ///< of streams, for memory
  std::uint64_t host_waits = 0;   ///< for memory
  std::uint64_t out_of_memory = 0;
};

/// What a heap consists of, by address.
struct HeapSnapshot {
  struct Entry {
    std::uint64_t offset = 0;  ///< from the arena's beginning
    std::size_t bytes = 0;
    int arena = 0;  ///< 0: small blocks, 1: large ones
    BlockState state = BlockState::kFree;
    std::size_t requested = 0;
    std::string label;
    std::string stream;  ///< that a live or cached block was handed out for
    /// Of a free block, those that the host has not seen to be over.
    std::vector<std::pair<std::string, Tick>> uses;
  };
  std::string device;
  std::size_t hard_limit = 0;
  std::size_t soft_limit = 0;
  HeapStatistics statistics;
  std::vector<Entry> entries;  ///< unmapped memory left out
};

/// One thing that happened, for history and traces.
struct HeapEvent {
  /// kFlush: the blocks in a stream's magazine go to the arenas, as many bytes as it says.
  enum class Kind : std::uint8_t { kAllocate, kFree, kMap, kUnmap, kOutOfMemory, kFlush };
  Kind kind = Kind::kAllocate;
  std::uint64_t nanoseconds = 0;  ///< since the heap was made
  std::uint64_t serial = 0;       ///< of the hand-out that is allocated or freed
  int arena = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;
  std::uint32_t stream = 0;
  bool cached = false;  ///< allocated from, or freed into, the stream's magazine
  std::string label;
};

/// No memory for a request. The heap is as before the call and may be used on.
class OutOfDeviceMemory : public DeviceError {
 public:
  explicit OutOfDeviceMemory(const std::string& report) : DeviceError(report) {}
};

class Heap {
 public:
  Heap(Device& device, Timeline& timeline, HeapOptions options = {});
  /// All buffers are dropped by now. Waits until nothing uses its memory.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Memory for work enqueued on `stream` from now on, aligned to 256 bytes, its content undefined.
  /// Work on other streams may use it as well; the executor orders it. `label` is for reports and
  /// has to live as long as the heap. Throws OutOfDeviceMemory, UsageError for a stream of another
  /// device, DeviceError.
  Buffer allocate(std::size_t bytes, StreamId stream, std::string_view label = {});
  /// The same of what the stream's magazine has; else empty. `stream` exists and is of this device.
  /// It calls no device and waits for nothing.
  Buffer allocate_cached(std::size_t bytes, StreamId stream, std::string_view label = {});

  /// Returns unused memory to the device; does not wait.
  void trim();
  void set_limits(std::size_t soft_limit, std::size_t hard_limit);
  void set_may_ask(bool may_ask);
  std::size_t hard_limit() const;

  Device& device() const;
  Timeline& timeline() const;
  HeapStatistics statistics() const;
  void reset_peaks();
  HeapSnapshot snapshot() const;
  /// Keeps the last `events` things that happen; 0 turns it off, as it is at first.
  void keep_history(std::size_t events);
  std::vector<HeapEvent> history() const;
  /// Throws InternalError naming the first invariant that does not hold.
  void verify() const;

 private:
  friend class Buffer;
  struct State;
  Buffer hand_out(Block* block, StreamId stream, bool cached);
  void release(Block* block) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::runtime
