// Memory of captured work: TensorMemory's pools.

#include <algorithm>
#include <exception>

#include "runtime/tensors/tensor_memory.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

bool TensorMemory::from_pool(StreamHandle stream, Held& held, StreamId& id) {
  if (!device_->is_captured(stream)) return false;
  auto& streams = capturing_->streams;
  auto found = std::ranges::find(streams, stream, &std::pair<StreamHandle, StreamId>::first);
  if (found == streams.end()) {
    const StreamId made = device_->timeline().create(device_->device(), "captured");
    device_->timeline().seal(made);
    streams.emplace_back(stream, made);
    found = streams.end() - 1;
  }
  held.pool = capturing_;
  held.home = static_cast<std::uint32_t>(found - streams.begin());
  id = found->second;
  ++capturing_->live;
  return true;
}

void TensorMemory::use_at_end(const Held& held, const Pool& pool) {
  Timeline& timeline = device_->timeline();
  if (!pool.sealed) {  // no graph uses it any more, but the program may have
    for (const Known& known : known_) held.buffer.record_stream(timeline, known.id);
    return;
  }
  const auto& [home, id] = pool.streams[held.home];
  held.buffer.record_stream(timeline, id);
  // Beyond the capture the host waits before another one begins.
  if (capturing_ != &pool) return;
  for (std::size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    const bool counts =
        known.marked > held.epoch || known.threads > 0 || (held.recorded >> i & 1) != 0;
    if (counts && known.handle != home && device_->is_captured(known.handle)) {
      held.buffer.record_stream(timeline, pool.others);
      return;
    }
  }
}

TensorMemory::Pool* TensorMemory::find_pool(PoolId id) {
  const auto found = std::ranges::find_if(
      pools_, [&](const auto& pool) { return pool->sealed && pool->id == id; });
  return found == pools_.end() ? nullptr : found->get();
}

void TensorMemory::begin_capture(PoolId id) {
  const MutexLock lock(mutex_);
  if (capturing_ != nullptr)
    throw UsageError(device_->device().name() +
                     ": a CUDA graph is about to be captured while another one is, expected one at "
                     "a time; end the first capture before");
  Timeline& timeline = device_->timeline();
  timeline.drain(device_->device());
  sweep_pools();
  Pool* pool = find_pool(id);
  if (pool == nullptr) {
    const StreamId others = timeline.create(device_->device(), "captured, others");
    timeline.seal(others);
    pools_.push_back(std::make_unique<Pool>(Pool{.id = id, .others = others}));
    pool = pools_.back().get();
  }
  ++pool->graphs;
  capturing_ = pool;
}

void TensorMemory::end_capture(bool failed) {
  std::vector<Buffer> freed;  // go when no lock is held
  const MutexLock lock(mutex_);
  if (capturing_ == nullptr) return;
  if (failed) --capturing_->graphs;
  capturing_ = nullptr;
  for (Held& held : put_off_) freed.push_back(end(std::move(held)));
  put_off_.clear();
  sweep_pools();
}

void TensorMemory::release_pool(PoolId id) noexcept {
  const MutexLock lock(mutex_);
  Pool* const pool = find_pool(id);
  if (pool == nullptr) return;
  --pool->graphs;
  sweep_pools();
}

/// Breaks the seals of pools without graphs, and forgets those of which nothing is held. Not during
/// a capture, which would fail if the host waited.
void TensorMemory::sweep_pools() {
  if (capturing_ != nullptr) return;
  const auto gone = [](const auto& pool) { return pool->graphs == 0; };
  if (std::ranges::none_of(pools_, gone)) return;
  Timeline& timeline = device_->timeline();
  const auto for_streams = [](const Pool& pool, const auto& what) {
    what(pool.others);
    for (const auto& [handle, id] : pool.streams) what(id);
  };
  try {
    for (const auto& pool : pools_) {
      if (!gone(pool) || !pool->sealed) continue;
      timeline.drain(device_->device());
      for_streams(*pool, [&](StreamId id) { timeline.break_seal(id); });
      pool->sealed = false;
    }
    std::erase_if(pools_, [&](const auto& pool) {
      if (!gone(pool) || pool->live != 0) return false;
      for_streams(*pool, [&](StreamId id) { timeline.retire(id); });
      return true;
    });
  } catch (const std::exception&) {
    // The device failed, or is closed at the end of the process. The pools stay.
  }
}

}  // namespace segfuse::runtime
