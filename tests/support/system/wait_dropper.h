#pragma once
// A device that forgets one wait.

#include <utility>

#include "runtime/device.h"

namespace segfuse::runtime {

class WaitDropper : public Device {
 public:
  explicit WaitDropper(Device& device) : device_(device) {}
  /// The k-th wait from now (1: the next one) is not passed on.
  void drop(std::uint64_t k) { left_ = k; }
  std::uint64_t waits() const { return waits_; }

  std::string name() const override { return device_.name(); }
  StreamHandle create_stream() override { return device_.create_stream(); }
  void destroy_stream(StreamHandle s) noexcept override { device_.destroy_stream(s); }
  void synchronize(StreamHandle s) override { device_.synchronize(s); }
  bool is_captured(StreamHandle s) override { return device_.is_captured(s); }
  EventHandle create_event() override { return device_.create_event(); }
  void destroy_event(EventHandle e) noexcept override { device_.destroy_event(e); }
  void record(StreamHandle s, EventHandle e) override { device_.record(s, e); }
  void wait(StreamHandle s, EventHandle e) override {
    ++waits_;
    if (left_ > 0 && --left_ == 0) return;
    device_.wait(s, e);
  }
  bool query(EventHandle e) override { return device_.query(e); }
  void synchronize_event(EventHandle e) override { device_.synchronize_event(e); }
  void launch(StreamHandle s, Work work, std::span<const MemoryAccess> accesses) override {
    device_.launch(s, std::move(work), accesses);
  }
  void copy(StreamHandle s, void* to, const void* from, std::size_t bytes) override {
    device_.copy(s, to, from, bytes);
  }
  void fill(StreamHandle s, void* at, std::uint8_t value, std::size_t bytes) override {
    device_.fill(s, at, value, bytes);
  }
  std::size_t granule() const override { return device_.granule(); }
  std::byte* reserve(std::size_t bytes) override { return device_.reserve(bytes); }
  void unreserve(std::byte* a, std::size_t bytes) noexcept override { device_.unreserve(a, bytes); }
  void map(std::byte* a, std::size_t bytes) override { device_.map(a, bytes); }
  void unmap(std::byte* a, std::size_t bytes) override { device_.unmap(a, bytes); }
  DeviceMemory memory() override { return device_.memory(); }
  std::byte* allocate_pinned(std::size_t bytes) override { return device_.allocate_pinned(bytes); }
  void release_pinned(std::byte* a, std::size_t bytes) noexcept override {
    device_.release_pinned(a, bytes);
  }

 private:
  Device& device_;
  std::uint64_t left_ = 0;
  std::uint64_t waits_ = 0;
};

}  // namespace segfuse::runtime
