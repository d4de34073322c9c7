#pragma once
// Host memory that a device copies from and to directly, used again and again for staging.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "runtime/executor.h"
#include "runtime/memory/recycler.h"

namespace segfuse::runtime {

struct PinnedOptions {
  /// Most bytes to hold, with rounding. From here on the host waits for copies to end. Pinned
  /// memory is taken from everybody on the machine, so this is a number and not all there is.
  std::size_t limit = std::size_t{256} << 20;
  /// Where the memory comes from, in place of the device; null: there is none. Such memory has to
  /// be known to the device (comm/registered/pool.h).
  std::function<std::byte*(std::size_t bytes)> allocate{};
  std::function<void(std::byte* address, std::size_t bytes)> release{};
};

struct PinnedStatistics {
  std::size_t held_bytes = 0;
  std::size_t live_bytes = 0;  ///< handed out, with rounding
  std::size_t peak_held_bytes = 0;
  std::uint64_t made = 0;
  std::uint64_t host_waits = 0;
};

struct PinnedBlock {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
};

class PinnedPool;

/// Pinned memory that is held; goes back with this object, on any thread, even while the device
/// still copies. For one thread at a time.
class [[nodiscard]] PinnedBuffer {
 public:
  PinnedBuffer() = default;
  std::byte* address() const { return slot_ ? slot_->address : nullptr; }
  /// As requested.
  std::size_t bytes() const { return bytes_; }
  /// Enqueues a copy between the beginning of this memory and byte `at` of the buffer. Until it is
  /// over the host changes nothing here (upload), or reads nothing (download: wait_copied).
  StreamTick upload(Executor& executor, StreamId stream, const Buffer& to, std::size_t bytes,
                    std::size_t at = 0);
  StreamTick download(Executor& executor, StreamId stream, const Buffer& from, std::size_t bytes,
                      std::size_t at = 0);
  /// The host waits for the copies of this memory.
  void wait_copied(Timeline& timeline) const { timeline.synchronize(slot_.uses()); }

 private:
  friend class PinnedPool;
  PinnedBuffer(Recycler<PinnedBlock>::Slot slot, std::size_t bytes)
      : slot_(std::move(slot)), bytes_(bytes) {}
  Recycler<PinnedBlock>::Slot slot_;
  std::size_t bytes_ = 0;
};

/// Sizes are powers of two. Any thread.
class PinnedPool {
 public:
  PinnedPool(Device& device, Timeline& timeline, PinnedOptions options = {});
  /// All buffers are dropped by now. Waits until nothing uses their memory.
  ~PinnedPool();

  /// Memory that the host may write at once. DeviceError when there is none, even after waiting for
  /// all that is free.
  PinnedBuffer allocate(std::size_t bytes);
  /// Releases what is free and not in use; does not wait.
  void trim();
  PinnedStatistics statistics() const;

 private:
  using Class = Recycler<PinnedBlock>;

  Class& class_of(std::size_t bytes);
  std::optional<PinnedBlock> make(std::size_t bytes);
  std::size_t trim_others(const Class* keep, bool wait);

  Device& device_;
  Timeline& timeline_;
  PinnedOptions options_;
  mutable Mutex mutex_;
  std::size_t held_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::size_t peak_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, std::unique_ptr<Class>> classes_
      SEGFUSE_GUARDED_BY(mutex_);  ///< by size; never removed
};

}  // namespace segfuse::runtime
