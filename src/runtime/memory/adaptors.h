#pragma once
// Resources around resources. Each keeps a reference to what lies below it, adds one thing, and
// leaves everything as it was when a call throws. They compose in any order.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "runtime/memory/resource.h"

namespace segfuse::runtime {

/// What the adaptors have in common.
template <MemoryResource Upstream>
class ResourceAdaptor {
 public:
  explicit ResourceAdaptor(Upstream& upstream) : upstream_(&upstream) {}
  ResourceAdaptor(const ResourceAdaptor&) = delete;
  ResourceAdaptor& operator=(const ResourceAdaptor&) = delete;
  std::size_t bytes_of(const std::byte* address) const { return upstream_->bytes_of(address); }
  Upstream& upstream() const { return *upstream_; }

 protected:
  Upstream* upstream_;
};

/// At most so many bytes, as requested, at one time. Never exceeded; with many threads a request
/// may be refused because of another one that is refused below at the same moment.
template <MemoryResource Upstream>
class LimitResource : public ResourceAdaptor<Upstream> {
 public:
  LimitResource(Upstream& upstream, std::size_t limit)
      : ResourceAdaptor<Upstream>(upstream), limit_(limit) {}

  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {}) {
    std::size_t held = held_.load();
    do {
      if (bytes > limit_ || held > limit_ - bytes)
        throw OutOfDeviceMemory(fmt::format(
            "limit: {} bytes for '{}' do not fit: {} of {} are held; free some or raise "
            "the limit",
            bytes, label, held, limit_));
    } while (!held_.compare_exchange_weak(held, held + bytes));
    try {
      return this->upstream_->allocate(bytes, stream, label);
    } catch (...) {
      held_ -= bytes;
      throw;
    }
  }
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes) {
    const std::size_t size = this->upstream_->bytes_of(address);
    this->upstream_->deallocate(address, stream, bytes);
    held_ -= size;
  }
  std::size_t held() const { return held_.load(); }
  std::size_t limit() const { return limit_; }

 private:
  std::size_t limit_;
  std::atomic<std::size_t> held_{0};
};

/// What went through a LogResource.
struct ResourceCall {
  enum class Kind : std::uint8_t { kAllocate, kFree, kFailure };
  Kind kind = Kind::kAllocate;
  std::chrono::system_clock::time_point time;
  std::thread::id thread;
  const std::byte* address = nullptr;
  std::size_t bytes = 0;
  StreamId stream;
};
/// The first line of a log, and one line of it without its end, as RMM writes them
/// (Thread,Time,Action,Pointer,Size,Stream): others' tools read it, and doctor's replay does. Time
/// of day in UTC.
std::string_view log_header();
std::string log_line(const ResourceCall& call);

/// Tells somebody of every call, also of allocations that fail. Calls arrive one at a time, and
/// those of one address in their order.
template <MemoryResource Upstream>
class LogResource : public ResourceAdaptor<Upstream> {
 public:
  using Sink = std::function<void(const ResourceCall&)>;
  LogResource(Upstream& upstream, Sink sink)
      : ResourceAdaptor<Upstream>(upstream), sink_(std::move(sink)) {}

  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {}) {
    const MutexLock lock(mutex_);
    std::byte* address = nullptr;
    try {
      address = this->upstream_->allocate(bytes, stream, label);
    } catch (...) {
      tell(ResourceCall::Kind::kFailure, nullptr, bytes, stream);
      throw;
    }
    tell(ResourceCall::Kind::kAllocate, address, bytes, stream);
    return address;
  }
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes) {
    const MutexLock lock(mutex_);
    const std::size_t size = this->upstream_->bytes_of(address);
    this->upstream_->deallocate(address, stream, bytes);
    tell(ResourceCall::Kind::kFree, address, size, stream);
  }

 private:
  void tell(ResourceCall::Kind kind, const std::byte* address, std::size_t bytes, StreamId stream) {
    sink_({kind, std::chrono::system_clock::now(), std::this_thread::get_id(), address, bytes,
           stream});
  }
  Mutex mutex_;
  Sink sink_ SEGFUSE_GUARDED_BY(mutex_);
};

/// A number that goes up and down.
struct Level {
  std::int64_t value = 0;
  std::int64_t peak = 0;
  std::int64_t total = 0;  ///< of all that was added

  void add(std::int64_t amount) {
    value += amount;
    total += amount;
    peak = std::max(peak, value);
  }
  void take(std::int64_t amount) { value -= amount; }
  bool operator==(const Level&) const = default;
};
struct ResourceStatistics {
  Level bytes;
  Level allocations;
  std::uint64_t failures = 0;
  bool operator==(const ResourceStatistics&) const = default;
};

/// Counts, in scopes that may be nested: push() begins one from zero, pop() ends it, and what
/// happened in it counts for the one around it as well (whose peak is the highest moment of both).
/// `value` is negative in a scope that frees what was allocated before it.
template <MemoryResource Upstream>
class StatisticsResource : public ResourceAdaptor<Upstream> {
 public:
  explicit StatisticsResource(Upstream& upstream) : ResourceAdaptor<Upstream>(upstream) {}

  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {}) {
    std::byte* address = nullptr;
    try {
      address = this->upstream_->allocate(bytes, stream, label);
    } catch (...) {
      const MutexLock lock(mutex_);
      ++scopes_.back().failures;
      throw;
    }
    const MutexLock lock(mutex_);
    scopes_.back().bytes.add(static_cast<std::int64_t>(bytes));
    scopes_.back().allocations.add(1);
    return address;
  }
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes) {
    const std::size_t size = this->upstream_->bytes_of(address);
    this->upstream_->deallocate(address, stream, bytes);
    const MutexLock lock(mutex_);
    scopes_.back().bytes.take(static_cast<std::int64_t>(size));
    scopes_.back().allocations.take(1);
  }

  /// Of the innermost scope.
  ResourceStatistics statistics() const {
    const MutexLock lock(mutex_);
    return scopes_.back();
  }
  void push() {
    const MutexLock lock(mutex_);
    scopes_.emplace_back();
  }
  /// UsageError when no scope was pushed.
  ResourceStatistics pop() {
    const MutexLock lock(mutex_);
    if (scopes_.size() == 1)
      throw UsageError("statistics: pop without push; end only the scopes that were begun");
    const ResourceStatistics inner = scopes_.back();
    scopes_.pop_back();
    const auto merge = [](Level& outer, const Level& level) {
      outer.peak = std::max(outer.peak, outer.value + level.peak);
      outer.value += level.value;
      outer.total += level.total;
    };
    merge(scopes_.back().bytes, inner.bytes);
    merge(scopes_.back().allocations, inner.allocations);
    scopes_.back().failures += inner.failures;
    return inner;
  }

 private:
  mutable Mutex mutex_;
  std::vector<ResourceStatistics> scopes_ SEGFUSE_GUARDED_BY(mutex_){1};
};

/// Return addresses of the callers, innermost first.
using Stack = std::vector<void*>;
Stack capture_stack(std::size_t frames);
/// One line a frame, with the function's name where the program tells it.
std::string describe_stack(const Stack& stack);

/// Knows who holds what: the label and, if frames are requested, the stack of each allocation.
template <MemoryResource Upstream>
class TrackResource : public ResourceAdaptor<Upstream> {
 public:
  struct Allocation {
    const std::byte* address = nullptr;
    std::size_t bytes = 0;
    StreamId stream;
    std::string label;
    std::uint64_t number = 0;  ///< allocations count from 1
    Stack stack;
  };

  /// `frames` of the stack are kept for each allocation; 0: none, which costs nothing.
  explicit TrackResource(Upstream& upstream, std::size_t frames = 0)
      : ResourceAdaptor<Upstream>(upstream), frames_(frames) {}

  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {}) {
    Allocation allocation{nullptr, bytes,
                          stream,  std::string(label),
                          0,       frames_ > 0 ? capture_stack(frames_) : Stack()};
    std::byte* const address = this->upstream_->allocate(bytes, stream, label);
    const MutexLock lock(mutex_);
    allocation.address = address;
    allocation.number = ++count_;
    live_.insert_or_assign(address, std::move(allocation));
    return address;
  }
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes) {
    // Held over the call below: once the memory is free, another thread may get the same address.
    const MutexLock lock(mutex_);
    this->upstream_->deallocate(address, stream, bytes);
    live_.erase(address);
  }

  /// What is live, the oldest first.
  std::vector<Allocation> outstanding() const {
    const MutexLock lock(mutex_);
    std::vector<Allocation> all;
    for (const auto& [address, allocation] : live_) all.push_back(allocation);
    std::ranges::sort(all, {}, &Allocation::number);
    return all;
  }
  /// For people; empty when nothing is live.
  std::string leaks() const {
    std::string text;
    for (const Allocation& a : outstanding()) {
      text += fmt::format("{} bytes at {}, allocation {}{}{}\n", a.bytes,
                          static_cast<const void*>(a.address), a.number,
                          a.label.empty() ? "" : ", ", a.label);
      if (!a.stack.empty()) text += describe_stack(a.stack);
    }
    return text;
  }

 private:
  std::size_t frames_;
  mutable Mutex mutex_;
  std::uint64_t count_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, Allocation> live_ SEGFUSE_GUARDED_BY(mutex_);
};

/// Refuses allocations, for tests of those who allocate.
template <MemoryResource Upstream>
class FaultResource : public ResourceAdaptor<Upstream> {
 public:
  explicit FaultResource(Upstream& upstream) : ResourceAdaptor<Upstream>(upstream) {}

  /// The k-th allocation from now (1: the next) is refused; 0: none.
  void fail_at(std::uint64_t k) {
    const MutexLock lock(mutex_);
    fail_in_ = k;
  }
  /// Of the allocations from now on, this part is refused: the same ones for the same seed.
  void fail_some(double part, std::uint64_t seed) {
    const MutexLock lock(mutex_);
    part_ = part;
    random_.seed(seed);
  }

  std::byte* allocate(std::size_t bytes, StreamId stream, std::string_view label = {}) {
    {
      const MutexLock lock(mutex_);
      const bool now = fail_in_ > 0 && --fail_in_ == 0;
      if (now || (part_ > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < part_))
        throw OutOfDeviceMemory(
            fmt::format("fault: {} bytes for '{}' are refused on purpose", bytes, label));
    }
    return this->upstream_->allocate(bytes, stream, label);
  }
  void deallocate(std::byte* address, StreamId stream, std::size_t bytes = kUnknownBytes) {
    this->upstream_->deallocate(address, stream, bytes);
  }

 private:
  Mutex mutex_;
  std::uint64_t fail_in_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  double part_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::mt19937_64 random_ SEGFUSE_GUARDED_BY(mutex_);
};

static_assert(MemoryResource<LimitResource<HeapResource>>);
static_assert(MemoryResource<LogResource<HeapResource>>);
static_assert(MemoryResource<StatisticsResource<HeapResource>>);
static_assert(MemoryResource<TrackResource<LimitResource<HeapResource>>>);
static_assert(MemoryResource<FaultResource<HeapResource>>);

}  // namespace segfuse::runtime
