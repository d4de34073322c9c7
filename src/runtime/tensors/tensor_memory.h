#pragma once
// Device memory for a library whose work the runtime does not see, such as PyTorch: handed out by
// address in the order of a stream of the library, and freed without the name of a stream.
//
// A free counts as a use at the tail of the stream that the memory was allocated for, and of every
// stream that may have had work with it: those that were entered, allocated for, or made to wait
// since the allocation, those that some thread is in, and all known ones if the host has waited.
// Work of another stream can only be in the right order after the memory's first write if that
// stream waited for an event, or if the host waited before the work was enqueued; so a caller that
// reports streams that are entered, waits and host waits need not report uses.
//
// Work that is captured into a graph has its memory from a pool, because the graph keeps the
// addresses: what is freed there is only handed out to the same stream in captures of the same
// pool, and to others when all graphs of the pool are destroyed (Timeline::seal). While a capture
// is under way, frees of all other memory are put off, because nothing may be recorded on a stream
// that is captured.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "runtime/open_device.h"
#include "runtime/tensors/address_table.h"

namespace segfuse::runtime {

class TensorMemory {
 public:
  /// `device` stays open as long as this object; its heap may ask what is over from now on.
  explicit TensorMemory(OpenDevice& device);
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  /// For work enqueued on `stream` from now on; null for 0 bytes. Throws OutOfDeviceMemory, and
  /// UsageError when there are too many streams.
  std::byte* allocate(std::size_t bytes, StreamHandle stream);
  /// No work that uses the memory is enqueued from now on. Addresses from elsewhere are left alone.
  void release(std::byte* address) noexcept;

  /// The stream becomes the one that the calling thread enqueues on.
  void enter(StreamHandle stream);
  /// The stream may have had, or has from now on, work with all memory that is live.
  void mark(StreamHandle stream);
  /// So may all known streams: the host has waited, or is about to.
  void mark_all();
  /// A free of this memory counts as a use by the stream. Addresses from elsewhere are left alone.
  void record_stream(const std::byte* address, StreamHandle stream);

  using PoolId = std::pair<unsigned long long, unsigned long long>;
  /// Streams are about to be captured, into a graph of that pool. The host waits for the device.
  /// UsageError while another capture is under way.
  void begin_capture(PoolId pool);
  /// The capture has ended; `failed`: there is no graph. Nothing, where none is under way.
  void end_capture(bool failed = false);
  /// A graph of the pool is destroyed. With the last one the pool's memory is free when the device
  /// is done, and what is still held of it when it is released.
  void release_pool(PoolId pool) noexcept;

  bool holds(const std::byte* address) const;
  std::size_t live() const;
  /// The host waits for all known streams; then memory that nothing uses goes back to the device.
  void trim();
  OpenDevice& device() const { return *device_; }

 private:
  using Streams = std::uint64_t;  ///< a bit for each number of a stream
  static_assert(kMaxStreams <= 64);

  struct Known {
    StreamHandle handle;
    StreamId id;
    std::uint64_t marked = 0;  ///< epoch of the last sign of work
    int threads = 0;           ///< that are in it
  };
  struct Pool {
    PoolId id;
    int graphs = 0;        ///< that exist, or are being captured
    std::size_t live = 0;  ///< memory that is held
    bool sealed = true;    ///< no: its graphs are destroyed, but some of its memory is held
    StreamId others;       ///< stands for streams that used memory of another one
    std::vector<std::pair<StreamHandle, StreamId>> streams{};  ///< captured, and what stands for it
  };
  struct Held {
    Buffer buffer;
    Pool* pool = nullptr;     ///< null: none
    std::uint32_t home = 0;   ///< place in known_, or in the pool's streams
    std::uint64_t epoch = 0;  ///< of the allocation
    Streams recorded = 0;     ///< by record_stream: places in known_
  };

  std::uint32_t know(StreamHandle stream) SEGFUSE_REQUIRES(mutex_);
  /// The same, but kMaxStreams when there are too many; allocate() says so from then on.
  std::uint32_t know_or_refuse(StreamHandle stream) SEGFUSE_REQUIRES(mutex_);

  /// Gives the request its stream in the capture's pool; whether `stream` is captured.
  bool from_pool(StreamHandle stream, Held& held, StreamId& id) SEGFUSE_REQUIRES(mutex_);
  Buffer end(Held held) SEGFUSE_REQUIRES(mutex_);
  void use_at_end(const Held& held, const Pool& pool) SEGFUSE_REQUIRES(mutex_);
  /// One that is sealed.
  Pool* find_pool(PoolId id) SEGFUSE_REQUIRES(mutex_);
  void sweep_pools() SEGFUSE_REQUIRES(mutex_);

  OpenDevice* device_;
  std::uint64_t serial_;  ///< unlike that of any other, before and after
  mutable Mutex mutex_;   ///< not held where the heap may call the device or wait
  std::vector<Known> known_ SEGFUSE_GUARDED_BY(mutex_);
  bool too_many_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::uint64_t epoch_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  AddressTable<Held> held_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pool>> pools_ SEGFUSE_GUARDED_BY(mutex_);
  Pool* capturing_ SEGFUSE_GUARDED_BY(mutex_) = nullptr;  ///< the pool of a capture under way
  std::vector<Held> put_off_ SEGFUSE_GUARDED_BY(mutex_);  ///< freed since it began
};

/// That of a CUDA device, which stays open until the process ends. Throws as open_cuda does.
TensorMemory& cuda_tensor_memory(int ordinal);

}  // namespace segfuse::runtime
