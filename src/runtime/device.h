#pragma once
// What a device does for the runtime: work in streams, events between streams, and memory behind
// one reservation of addresses. cpu/, cuda/ and sim/ implement it; check/ wraps one to find races.
// Only the executor and the heap call it: they know which stream is ordered after what.
//
// Streams run their work in the order it was enqueued, and nothing else orders them but events:
// they are non-blocking streams, and the legacy default stream of CUDA is refused. An event that
// was never recorded is complete. Recording an event again forgets the former record; a stream that
// already waits keeps to the record it found.
//
// Failures: a call that fails throws DeviceError and enqueues nothing. Work that fails later marks
// its stream as failed: the work behind it is skipped (waits are kept, so that what a later event
// stands for stays true), events recorded behind it carry the failure, and so do the streams that
// wait for those. A stream's first failure is thrown by its next synchronisation, which also makes
// it usable again; synchronising an event throws what the event carries. query() tells only whether
// the event is complete. A synchronisation that throws has waited all the same. A CUDA context that
// was lost stays lost.
//
// Calls that take a stream take it first. Handles of what was destroyed may be given out again. A
// device may be used from many threads. Work that nobody waited for may be dropped with the device.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "segfuse/error.h"

namespace segfuse::runtime {

/// A device's own name of something, which is a pointer at its edge only. The default is null.
template <class Of>
class Handle {
 public:
  constexpr Handle() = default;
  constexpr explicit Handle(void* value) : value_(value) {}
  constexpr void* get() const { return value_; }
  constexpr explicit operator bool() const { return value_ != nullptr; }
  friend constexpr auto operator<=>(Handle, Handle) = default;

 private:
  void* value_ = nullptr;
};
/// CUDA: CUstream.
using StreamHandle = Handle<struct StreamOf>;
/// CUDA: CUevent.
using EventHandle = Handle<struct EventOf>;

/// What a piece of work does to memory of the device, for those who check or simulate. A write may
/// change any byte of the range, or put back what was there when the work began; work that may only
/// touch a part while others touch the rest declares that part.
struct MemoryAccess {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  bool write = false;
  std::string_view buffer;  ///< for reports; valid during the call
};

/// A piece of work. `run` is called with the stream's handle: by cpu and sim when the stream
/// reaches it, on the device's own thread; by cuda at once, to enqueue kernels or library calls.
struct Work {
  std::string name;  ///< for reports: "gather", "matmul at encoder.sf:12"
  std::function<void(StreamHandle)> run;
};

struct DeviceMemory {
  std::size_t total = 0;
  std::size_t free = 0;
};

/// Thrown by map() and allocate_pinned() when the memory is not there; the heap turns it into a
/// report. Everything is as before the call.
struct NoMemory {};

class Device {
 public:
  virtual ~Device() = default;
  /// "cpu", "NVIDIA H200", "sim".
  virtual std::string name() const = 0;

  virtual StreamHandle create_stream() = 0;
  /// The stream has been synchronised, or may finish its work on its own.
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  /// Waits until all that was enqueued is done.
  virtual void synchronize(StreamHandle stream) = 0;
  /// Whether all that was enqueued is known to be done; does not wait.
  virtual bool idle(StreamHandle /*stream*/) { return false; }
  /// Tells a stream from a former one with the same handle, where the device can.
  virtual std::uint64_t identity(StreamHandle stream) {
    return reinterpret_cast<std::uintptr_t>(stream.get());
  }
  /// Waits for all work of the device, that of destroyed streams, too.
  virtual void drain() {}

  virtual EventHandle create_event() = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record(StreamHandle stream, EventHandle event) = 0;
  virtual void wait(StreamHandle stream, EventHandle event) = 0;
  virtual bool query(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;

  virtual void launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) = 0;
  /// Device memory and pinned host memory; both sides stay allocated until the stream has passed.
  virtual void copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) = 0;
  /// Copies to host memory of any kind, and waits for it.
  virtual void read(StreamHandle stream, void* to, const void* from, std::size_t bytes) {
    auto* const source = static_cast<std::byte*>(const_cast<void*>(from));
    const MemoryAccess access{source, bytes, false, {}};
    launch(stream, {"read", [=](StreamHandle) { std::memcpy(to, from, bytes); }}, {&access, 1});
    synchronize(stream);
  }

  /// Makes one piece of work of what `enqueue` puts on `count` new streams of the device, to be
  /// launched any number of times: in the order of these streams and of events recorded on them, at
  /// the addresses of now. It lasts as long as the device. Nothing (no `run`) when the device has
  /// no such thing: then enqueue the pieces.
  virtual Work capture(int count,
                       const std::function<void(std::span<const StreamHandle>)>& enqueue) {
    static_cast<void>(count);
    static_cast<void>(enqueue);
    return {};
  }

  /// Whether work on the stream becomes part of somebody's graph, to run later and repeatedly.
  virtual bool is_captured(StreamHandle /*stream*/) { return false; }
  /// Memory of the device's own pool, in the order of a stream: for a graph, whose addresses must
  /// not be handed out to others. Throws DeviceError when the device has none.
  virtual std::byte* allocate_pooled(StreamHandle /*stream*/, std::size_t /*bytes*/) {
    throw DeviceError(name() + " has no memory pool");
  }
  virtual void release_pooled(StreamHandle /*stream*/, std::byte* /*memory*/) noexcept {}

  /// Unit of map() and of addresses given to it.
  virtual std::size_t granule() const = 0;
  /// Addresses without memory, whole granules; touching them is a fault. Throws DeviceError when
  /// there are not enough of them.
  virtual std::byte* reserve(std::size_t bytes) = 0;
  /// Nothing may be mapped there any more.
  virtual void unreserve(std::byte* address, std::size_t bytes) noexcept = 0;
  /// Puts memory behind addresses, all of them or none. Whole granules. What was mapped by one call
  /// may be unmapped in parts. Throws NoMemory.
  virtual void map(std::byte* address, std::size_t bytes) = 0;
  /// No work may touch these addresses any more.
  virtual void unmap(std::byte* address, std::size_t bytes) = 0;
  virtual DeviceMemory memory() = 0;

  /// Host memory that the device copies from and to directly. Throws NoMemory.
  virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(std::byte* address, std::size_t bytes) noexcept = 0;

  /// Memory of zeros, apart from the above, that other devices of this machine may reach, also from
  /// other processes. It goes with the last pointer to it in this process; no process may reach it
  /// any more then. Throws NoMemory, and DeviceError when the device has no such memory.
  virtual std::shared_ptr<std::byte> allocate_shared(std::size_t /*bytes*/) {
    throw DeviceError(name() + " has no memory that other devices reach");
  }
  /// What reach_shared() takes, in any process of this machine, as long as the memory is there.
  virtual std::string share(const std::shared_ptr<std::byte>& /*memory*/) {
    throw DeviceError(name() + " has no memory that other devices reach");
  }
  /// Such memory of another device at an address for work of this one; it is reached as long as the
  /// pointer is held. Throws DeviceError where this device does not reach it.
  virtual std::shared_ptr<std::byte> reach_shared(const std::string& /*shared*/) {
    throw DeviceError(name() + " does not reach memory of other devices");
  }
};

}  // namespace segfuse::runtime

template <class Of>
struct std::hash<segfuse::runtime::Handle<Of>> {
  std::size_t operator()(segfuse::runtime::Handle<Of> handle) const {
    return std::hash<void*>()(handle.get());
  }
};
