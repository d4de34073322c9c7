#pragma once
// Streams of a device and a stream-ordered heap, for programs with their own kernels.
//
//   auto device = memory::Device::open("cuda");
//   const memory::Stream stream = device.stream("compute");
//   memory::Buffer buffer = device.allocate(bytes, stream, "noise");
//   device.launch(stream, work, {memory::writes(buffer)});
//
// Order. Work on one stream runs in the order it was launched. Work that names the buffers that it
// reads and writes waits for what it depends on, on whatever stream that runs: a read comes after
// the last write, a write after all earlier uses. A buffer may be dropped as soon as launch()
// returns; its memory is reused only for work that is ordered after all of its uses.
// The library does not see work that other code enqueues (a library call, a kernel launched on the
// CUDA stream itself): lend that code the memory with borrow(), or report its stream with
// record_stream().
//
// Threads. All functions may be called from any thread. One Buffer object is for one thread at a
// time; copies of it may be used by others. Work that two threads launch at once on one buffer is
// memory-safe, but its order is undefined.
//
// Errors. UsageError for a stream or buffer of another device, or an empty one; DeviceError when
// the device fails or has no memory left; the message lists what holds memory, and all objects stay
// usable. The next wait for a stream throws the error of work that failed on it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::memory {

struct Options {
  std::size_t hard_limit =
      0;  ///< limit of device memory to hold, in bytes; 0: all that the device has
  /// Up to this many bytes the heap maps new memory before it lets streams wait for each other's
  /// memory; 0: a quarter more than what is in use at the time.
  std::size_t soft_limit = 0;
  bool check_streams = false;  ///< check for missing waits; see races()
};

/// In bytes; mapped = live + cached + free.
struct Statistics {
  std::size_t mapped = 0;     ///< device memory held
  std::size_t live = 0;       ///< in use, with rounding
  std::size_t requested = 0;  ///< live bytes as requested, without rounding
  std::size_t cached = 0;     ///< free, kept for the stream that used it last
  std::size_t free = 0;
  std::size_t peak_mapped = 0;
  std::size_t live_buffers = 0;        ///< a number
  std::uint64_t allocations = 0;       ///< so far, a number
  std::uint64_t waits = 0;             ///< of streams for each other, for any reason
  std::uint64_t waits_for_memory = 0;  ///< those of them that reuse memory
  std::uint64_t out_of_memory = 0;     ///< requests that failed
};

/// Two uses of memory without an order between them, one of them a write.
struct Race {
  std::string sentence;
  std::string missing;  ///< the missing wait
  std::string picture;  ///< SVG
};

/// A stream of a device, by number; valid until the device retires it.
class [[nodiscard]] Stream {
 public:
  Stream() = default;
  bool operator==(const Stream&) const = default;

 private:
  friend class Device;
  Stream(std::uint32_t device, std::uint32_t index, std::uint32_t generation)
      : device_(device), index_(index), generation_(generation) {}
  std::uint32_t device_ = 0;  ///< its serial number
  std::uint32_t index_ = 0;
  std::uint32_t generation_ = 0;
};

/// Memory that is lent to work that the library does not see, until this object is destroyed.
class [[nodiscard]] Loan {
 public:
  Loan(Loan&&) noexcept;
  Loan& operator=(Loan&&) = delete;
  ~Loan();

 private:
  friend class Buffer;
  struct State;
  explicit Loan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Owns device memory; copies share it, and it keeps its device open. Destroying the last copy
/// frees the memory, on any thread and at any time.
class [[nodiscard]] Buffer {
 public:
  Buffer() = default;
  explicit operator bool() const { return state_ != nullptr; }
  /// Aligned to 256 bytes; null when empty.
  std::byte* address() const;
  std::size_t bytes() const;  ///< as requested

  /// Lends the memory to work that other code enqueues on `stream`, which is ordered after all
  /// earlier uses. When the loan ends, the work on the stream until then counts as a write.
  Loan borrow(Stream stream) const;
  /// Records that work of other code on `stream` so far may use the memory. For code that cannot
  /// use borrow().
  void record_stream(Stream stream) const;

 private:
  friend class Device;
  struct State;
  explicit Buffer(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const State& state(const char* call) const;
  std::shared_ptr<const State> state_;
};

struct Use {
  const Buffer* buffer;
  bool write;
};
inline Use reads(const Buffer& buffer) { return {&buffer, false}; }
/// Also: reads and writes.
inline Use writes(const Buffer& buffer) { return {&buffer, true}; }

/// A piece of work. On a GPU `run` is called by launch() with the CUDA stream, to enqueue kernels
/// or library calls there; on the CPU by a thread of the stream, when it is the work's turn.
struct Work {
  std::string name;  ///< for reports
  std::function<void(void* stream)> run;
};

/// Bytes that work accesses in an order that its caller ensures.
struct Access {
  std::byte* address;
  std::size_t bytes;
  bool write;
  std::string_view name = {};  ///< for reports; read during the call
};

/// A handle; copies share the device. The device closes with the last handle, buffer and loan,
/// after it has waited for all enqueued work.
class Device {
 public:
  /// "cpu", "cuda" or "cuda:1". On the CPU each stream is a thread. UsageError for other names,
  /// DeviceError that says what is missing.
  static Device open(std::string_view name, const Options& options = {});
  std::string name() const;  ///< "cpu", "NVIDIA H200"

  /// A new stream, at most 64 in a process. `name` is for reports.
  Stream stream(std::string name = {}) const;
  /// Adopts a CUDA stream of the caller, who keeps it until retire(). The same handle gives the
  /// same stream again.
  Stream adopt(void* handle, std::string name = {}) const;
  /// Waits for the stream and forgets it; destroys it unless it was adopted.
  void retire(Stream stream) const;
  /// The CUDA stream, for calls of other libraries.
  void* handle(Stream stream) const;

  /// Memory for work that is launched after this call, first on `stream`; its content is undefined.
  /// `label` is for reports and lives as long as the device.
  Buffer allocate(std::size_t bytes, Stream stream, std::string_view label = {}) const;

  void launch(Stream stream, Work work, std::span<const Use> uses) const;
  void launch(Stream stream, Work work, std::initializer_list<Use> uses) const {
    launch(stream, std::move(work), std::span(uses.begin(), uses.size()));
  }
  /// Work on memory whose order the caller ensures with wait(), such as a sub-allocator within a
  /// buffer. Waits only for the stream; races() checks the accesses.
  void launch_unordered(Stream stream, Work work, std::span<const Access> accesses) const;
  /// The next work on `later` comes after all that was launched on `earlier` so far.
  void wait(Stream later, Stream earlier) const;
  /// One launch of a kernel, compiled from CUDA C++ once (NVRTC) and kept: of `blocks` blocks of
  /// `threads` threads. The kernel takes one argument, whose bytes are copied here. UsageError on
  /// the CPU.
  Work kernel(const std::string& source, const std::string& entry, unsigned blocks,
              unsigned threads, std::span<const std::byte> argument) const;

  /// To and from host memory, after all that the bytes depend on; the host waits for the copy.
  /// Whole buffers or their beginnings.
  void write(Stream stream, const Buffer& to, std::span<const std::byte> from) const;
  void read(Stream stream, std::span<std::byte> to, const Buffer& from) const;
  /// The host waits for all that was launched on the stream. Throws its first failure.
  void synchronize(Stream stream) const;

  Statistics statistics() const;
  /// Returns unused memory to the device; does not wait.
  void trim() const;
  /// With Options::check_streams: what was found so far, at most 1000. It depends on what was
  /// enqueued alone, never on timing.
  std::vector<Race> races() const;

 private:
  friend class Buffer;
  friend class Loan;
  struct State;
  explicit Device(std::shared_ptr<State> state) : state_(std::move(state)) {}
  StatePointer<std::shared_ptr<State>, "Device"> state_;
};

}  // namespace segfuse::memory

// Memory for a library that enqueues its own work, such as PyTorch: allocated in stream order,
// freed without naming a stream. Which streams may still use freed memory follows from the streams
// that the library enters and from its waits (docs/memory.md). Streams are CUstream handles; null
// is the legacy default stream. Any thread. A device is opened at its first use, and stays open
// until the process ends.
namespace segfuse::tensor_memory {

/// Returns memory for work enqueued on `stream` from now on, aligned to 256 bytes, with undefined
/// content; null for 0 bytes. Throws DeviceError ("CUDA out of memory. ...") if there is no memory,
/// UsageError if the program has work on too many streams.
void* allocate(int device, std::size_t bytes, void* stream);
/// Frees memory; the caller enqueues no more work that uses it. Does nothing for an address that
/// allocate() did not return.
void release(int device, void* address) noexcept;
/// States that work on `stream` may use the memory until it is freed.
void record_stream(const void* address, void* stream);

/// States that the calling thread enqueues on `stream` from now on.
void enter(int device, void* stream);
/// States that work on `stream` may use all live memory.
void mark(int device, void* stream);
/// The same for all known streams, because the host has waited.
void mark_all();

/// Calls `raise` with the message before DeviceError is thrown for lack of memory. It may throw the
/// exception that the library's callers expect; if it returns, DeviceError is thrown. Null: none.
void on_out_of_memory(void (*raise)(const char* message));

/// The most bytes to hold on a device; 0: all of its memory. Without `device`, the limit applies to
/// all devices without a limit of their own.
void set_limit(std::size_t bytes);
void set_limit(int device, std::size_t bytes);
/// The same as a part of the device's memory, in (0, 1].
void set_fraction(int device, double part);
/// Waits for all streams, then returns unused memory to its device.
void trim();

/// A pool of memory for captured work, by the two numbers of PyTorch.
using PoolId = std::pair<unsigned long long, unsigned long long>;
/// States that streams of a device are about to be captured into a graph. Until end_capture(),
/// memory for streams that are captured comes from the pool, which keeps its addresses until
/// release_pool() was called for each of its graphs. The host waits for the device. Throws
/// UsageError while another capture is under way.
void begin_capture(int device, PoolId pool);
void end_capture(int device);
void release_pool(int device, PoolId pool) noexcept;
/// Ends captures, on all devices, that have failed: there are no graphs.
void abandon_captures();

struct Statistics {
  std::size_t held = 0;       ///< bytes of device memory
  std::size_t peak_held = 0;  ///< since the beginning, or reset_peaks()
  std::size_t live = 0;       ///< of these, in use, with rounding
  std::size_t requested = 0;  ///< live bytes, without rounding
  std::size_t blocks = 0;     ///< number of live blocks
  std::size_t limit = 0;
  std::uint64_t grown = 0;       ///< number of requests to the device
  std::uint64_t waits = 0;       ///< of streams, to reuse memory
  std::uint64_t host_waits = 0;  ///< of the host, to reuse memory
};
Statistics statistics(int device);
void reset_peaks(int device);
/// Keeps the last `events` allocations and frees of a device for segfuse::tensor_memory_record()
/// of doctor/memory.h; 0 (the default) turns it off.
void keep_history(int device, std::size_t events);

}  // namespace segfuse::tensor_memory
