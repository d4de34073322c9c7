#pragma once
// A device without memory or work, in virtual time: for running a heap's decisions over long
// programs. What work there is takes as long as the caller says; nothing is read or written, so
// addresses need no memory behind them. One thread.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/device.h"

namespace segfuse::doctor {

struct ModelOptions {
  std::size_t limit = std::size_t{1} << 46;
  std::size_t granule = std::size_t{2} << 20;
};

struct ModelCounts {
  std::uint64_t launches = 0;
  std::uint64_t records = 0;
  std::uint64_t waits = 0;
  std::uint64_t queries = 0;
  std::uint64_t host_waits = 0;
  std::uint64_t maps = 0;
  /// Work that touched bytes before other work, which wrote them or whose bytes it wrote, was over.
  std::uint64_t conflicts = 0;
};

class ModelDevice final : public runtime::Device {
 public:
  explicit ModelDevice(ModelOptions options = {}) : options_(options) {}

  /// How long work takes that is enqueued from now on.
  void set_duration(double duration) { duration_ = duration; }
  /// The host does something else for a while.
  void pass(double duration) { now_ += duration; }
  double now() const { return now_; }
  /// When all work will be over.
  double finish() const { return finish_; }
  std::size_t mapped() const { return mapped_; }
  std::size_t peak_mapped() const { return peak_mapped_; }
  const ModelCounts& counts() const { return counts_; }

  std::string name() const override { return "model"; }
  runtime::StreamHandle create_stream() override;
  void destroy_stream(runtime::StreamHandle stream) noexcept override;
  void synchronize(runtime::StreamHandle stream) override;
  runtime::EventHandle create_event() override;
  void destroy_event(runtime::EventHandle event) noexcept override;
  void record(runtime::StreamHandle stream, runtime::EventHandle event) override;
  void wait(runtime::StreamHandle stream, runtime::EventHandle event) override;
  bool query(runtime::EventHandle event) override;
  void synchronize_event(runtime::EventHandle event) override;
  void launch(runtime::StreamHandle stream, runtime::Work work,
              std::span<const runtime::MemoryAccess> accesses) override;
  void copy(runtime::StreamHandle stream, void* to, const void* from, std::size_t bytes) override;
  void fill(runtime::StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) override;
  std::size_t granule() const override { return options_.granule; }
  std::byte* reserve(std::size_t bytes) override;
  void unreserve(std::byte*, std::size_t) noexcept override {}
  void map(std::byte* address, std::size_t bytes) override;
  void unmap(std::byte* address, std::size_t bytes) override;
  runtime::DeviceMemory memory() override { return {options_.limit, options_.limit - mapped_}; }
  /// UsageError: there is nothing to copy.
  std::byte* allocate_pinned(std::size_t bytes) override;
  void release_pinned(std::byte*, std::size_t) noexcept override {}

 private:
  /// A moment at which a stream's or an event's work is over.
  struct Moment {
    double time = 0;
  };
  /// The last uses of a range of bytes, keyed by its beginning.
  struct Range {
    std::uintptr_t end = 0;
    double written = 0;
    double read = 0;
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  template <class Of>
  static Moment& at(runtime::Handle<Of> handle) {
    return *static_cast<Moment*>(handle.get());
  }
  void* new_moment();
  void split(std::uintptr_t at);
  bool touch(const runtime::MemoryAccess& access, double begin, double end);

  ModelOptions options_;
  std::vector<std::unique_ptr<Moment>> moments_;
  std::vector<Moment*> unused_;
  Ranges ranges_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 46;
  double now_ = 0;
  double duration_ = 1;
  double finish_ = 0;
  std::size_t mapped_ = 0;
  std::size_t peak_mapped_ = 0;
  ModelCounts counts_;
};

}  // namespace segfuse::doctor
