#include "runtime/tensors/tensor_memory.h"

#include <fmt/core.h>

#include <atomic>
#include <optional>
#include <utility>

#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

constexpr const char* kLabel = "tensor";

/// The stream that the calling thread is in, for each memory in which it has entered one.
std::uint32_t& entered(std::uint64_t memory) {
  thread_local std::vector<std::pair<std::uint64_t, std::uint32_t>> streams;
  for (auto& [of, place] : streams)
    if (of == memory) return place;
  return streams.emplace_back(memory, kMaxStreams).second;
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> serial{0};
  return ++serial;
}

}  // namespace

TensorMemory::TensorMemory(OpenDevice& device) : device_(&device), serial_(next_serial()) {
  device.heap().set_may_ask(true);
}

std::uint32_t TensorMemory::know_or_refuse(StreamHandle stream) {
  for (std::size_t i = 0; i < known_.size(); ++i)
    if (known_[i].handle == stream) return static_cast<std::uint32_t>(i);
  const std::optional<StreamId> id = device_->adopt(stream);
  if (!id) {
    too_many_ = true;
    return kMaxStreams;
  }
  known_.push_back({stream, *id, epoch_, 0});
  return static_cast<std::uint32_t>(known_.size() - 1);
}

std::uint32_t TensorMemory::know(StreamHandle stream) {
  const std::uint32_t place = know_or_refuse(stream);
  // Work of a stream that is not known could not be ordered.
  if (too_many_)
    throw UsageError(
        fmt::format("{}: the program has work on more than {} streams, expected at most that many, "
                    "because the heap keeps memory by stream; create fewer streams and reuse them",
                    device_->device().name(), known_.size()));
  return place;
}

std::byte* TensorMemory::allocate(std::size_t bytes, StreamHandle stream) {
  if (bytes == 0) return nullptr;
  MutexLock lock(mutex_);
  Held held;
  StreamId id;
  if (capturing_ == nullptr || !from_pool(stream, held, id)) {
    held.home = know(stream);
    Known& home = known_[held.home];
    if (known_.size() > 1) home.marked = ++epoch_;
    id = home.id;
  }
  held.epoch = epoch_;
  held.buffer = device_->heap().allocate_cached(bytes, id, kLabel);
  if (!held.buffer) {
    lock.unlock();
    try {
      held.buffer = device_->heap().allocate(bytes, id, kLabel);
    } catch (...) {
      lock.lock();
      if (held.pool != nullptr) --held.pool->live;
      throw;
    }
    lock.lock();
  }
  std::byte* const address = held.buffer.address();
  held_.insert(address, std::move(held));
  return address;
}

void TensorMemory::release(std::byte* address) noexcept {
  Buffer buffer;  // goes when no lock is held
  const MutexLock lock(mutex_);
  auto* const found = held_.find(address);
  if (found == nullptr) return;
  Held held = held_.take(found);
  if (capturing_ != nullptr && (held.pool == nullptr || !held.pool->sealed))
    put_off_.push_back(std::move(held));
  else
    buffer = end(std::move(held));
}

/// Records the uses that a free counts as.
Buffer TensorMemory::end(Held held) {
  if (held.pool != nullptr) {
    use_at_end(held, *held.pool);
    --held.pool->live;
    return std::move(held.buffer);
  }
  for (std::size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    if (i == held.home || known.marked > held.epoch || known.threads > 0 ||
        (held.recorded >> i & 1) != 0)
      held.buffer.record_stream(device_->timeline(), known.id);
  }
  return std::move(held.buffer);
}

void TensorMemory::enter(StreamHandle stream) {
  std::uint32_t& now = entered(serial_);
  const MutexLock lock(mutex_);
  const std::uint32_t next = know_or_refuse(stream);
  ++epoch_;
  if (now != kMaxStreams) {
    --known_[now].threads;
    known_[now].marked = epoch_;
  }
  if (next != kMaxStreams) {
    ++known_[next].threads;
    known_[next].marked = epoch_;
  }
  now = next;
}

void TensorMemory::mark(StreamHandle stream) {
  const MutexLock lock(mutex_);
  const std::uint32_t place = know_or_refuse(stream);
  ++epoch_;
  if (place != kMaxStreams) known_[place].marked = epoch_;
}

void TensorMemory::mark_all() {
  const MutexLock lock(mutex_);
  ++epoch_;
  for (Known& known : known_) known.marked = epoch_;
}

void TensorMemory::record_stream(const std::byte* address, StreamHandle stream) {
  const MutexLock lock(mutex_);
  auto* const found = held_.find(address);
  if (found != nullptr) found->value.recorded |= Streams{1} << know(stream);
}

bool TensorMemory::holds(const std::byte* address) const {
  const MutexLock lock(mutex_);
  return held_.find(address) != nullptr;
}

std::size_t TensorMemory::live() const {
  const MutexLock lock(mutex_);
  return held_.size();
}

void TensorMemory::trim() {
  MutexLock lock(mutex_);
  if (capturing_ != nullptr) return;
  sweep_pools();
  lock.unlock();
  Timeline& timeline = device_->timeline();
  for (const StreamId stream : timeline.streams(device_->device())) timeline.synchronize(stream);
  device_->heap().trim();
}

}  // namespace segfuse::runtime
