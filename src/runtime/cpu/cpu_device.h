#pragma once
// The host as a device: each stream is served by a thread of its own, in the order of its work.

#include <cstddef>

#include "runtime/cpu/host_memory.h"
#include "runtime/cpu/stream_threads.h"
#include "runtime/device.h"

namespace segfuse::runtime {

struct CpuDeviceOptions {
  std::size_t granule = std::size_t{64} << 10;
  std::size_t limit = 0;  ///< bytes that may be mapped; 0: as many as the machine has
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options = {});

  std::string name() const override { return "cpu"; }
  StreamHandle create_stream() override { return streams_.create_stream(); }
  void destroy_stream(StreamHandle stream) noexcept override { streams_.destroy_stream(stream); }
  void synchronize(StreamHandle stream) override { streams_.synchronize(stream); }
  bool idle(StreamHandle stream) override { return streams_.idle(stream); }
  std::uint64_t identity(StreamHandle stream) override { return streams_.identity(stream); }
  void drain() override { streams_.drain(); }
  EventHandle create_event() override { return streams_.create_event(); }
  void destroy_event(EventHandle event) noexcept override { streams_.destroy_event(event); }
  void record(StreamHandle stream, EventHandle event) override { streams_.record(stream, event); }
  void wait(StreamHandle stream, EventHandle event) override { streams_.wait(stream, event); }
  bool query(EventHandle event) override { return streams_.query(event); }
  void synchronize_event(EventHandle event) override { streams_.synchronize_event(event); }
  void launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) override;
  void copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) override;
  void fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) override;
  std::size_t granule() const override { return memory_.granule(); }
  std::byte* reserve(std::size_t bytes) override { return memory_.reserve(bytes); }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    memory_.unreserve(address, bytes);
  }
  void map(std::byte* address, std::size_t bytes) override { memory_.map(address, bytes); }
  void unmap(std::byte* address, std::size_t bytes) override { memory_.unmap(address, bytes); }
  DeviceMemory memory() override { return memory_.memory(); }
  std::byte* allocate_pinned(std::size_t bytes) override;
  void release_pinned(std::byte* address, std::size_t bytes) noexcept override;

 private:
  HostMemory memory_;
  StreamThreads streams_;  ///< last: its work uses the memory
};

}  // namespace segfuse::runtime
