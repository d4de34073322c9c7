#include "runtime/memory/pinned.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/mutex.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

constexpr std::size_t kMin = 4096;

}  // namespace

StreamTick PinnedBuffer::upload(Executor& executor, StreamId stream, const Buffer& to,
                                std::size_t bytes, std::size_t at) {
  if (bytes > bytes_)
    throw UsageError(fmt::format(
        "upload: {} bytes from pinned memory of {}; copy no more than there is", bytes, bytes_));
  const StreamTick use = executor.copy_in(stream, to, at, address(), bytes);
  slot_.used(use);
  return use;
}

StreamTick PinnedBuffer::download(Executor& executor, StreamId stream, const Buffer& from,
                                  std::size_t bytes, std::size_t at) {
  if (bytes > bytes_)
    throw UsageError(fmt::format("download: {} bytes to pinned memory of {}; copy no more than fit",
                                 bytes, bytes_));
  const StreamTick use = executor.copy_out(stream, address(), from, at, bytes);
  slot_.used(use);
  return use;
}

PinnedPool::PinnedPool(Device& device, Timeline& timeline, PinnedOptions options)
    : device_(device), timeline_(timeline), options_(std::move(options)) {}

PinnedPool::~PinnedPool() = default;

PinnedPool::Class& PinnedPool::class_of(std::size_t bytes) {
  const MutexLock lock(mutex_);
  std::unique_ptr<Class>& found = classes_[bytes];
  if (!found)
    found = std::make_unique<Class>(
        timeline_, [this, bytes] { return make(bytes); },
        [this](PinnedBlock& block) {
          if (options_.release)
            options_.release(block.address, block.bytes);
          else
            device_.release_pinned(block.address, block.bytes);
          const MutexLock held(mutex_);
          held_ -= block.bytes;
        });
  return *found;
}

// Counts the bytes before they are requested, so that threads do not exceed the limit together.
std::optional<PinnedBlock> PinnedPool::make(std::size_t bytes) {
  {
    const MutexLock lock(mutex_);
    if (held_ > options_.limit || bytes > options_.limit - held_) return std::nullopt;
    held_ += bytes;
  }
  try {
    std::byte* const address =
        options_.allocate ? options_.allocate(bytes) : device_.allocate_pinned(bytes);
    if (address == nullptr) throw NoMemory{};
    const MutexLock lock(mutex_);
    peak_ = std::max(peak_, held_);
    return PinnedBlock{address, bytes};
  } catch (const NoMemory&) {
    const MutexLock lock(mutex_);
    held_ -= bytes;
    return std::nullopt;
  } catch (...) {
    const MutexLock lock(mutex_);
    held_ -= bytes;
    throw;
  }
}

std::size_t PinnedPool::trim_others(const Class* keep, bool wait) {
  std::vector<Class*> classes;
  {
    const MutexLock lock(mutex_);
    for (const auto& [bytes, one] : classes_)
      if (one.get() != keep) classes.push_back(one.get());
  }
  std::size_t dropped = 0;
  for (Class* const one : classes) dropped += one->trim(wait);
  return dropped;
}

PinnedBuffer PinnedPool::allocate(std::size_t bytes) {
  if (bytes <= options_.limit) {
    Class& own = class_of(std::bit_ceil(std::max(bytes, kMin)));
    // Waiting for memory of the same size comes before giving up that of other sizes, which would
    // have to be made again.
    for (const bool wait : {false, true}) {
      if (auto slot = own.take_for_host()) return {std::move(*slot), bytes};
      if (trim_others(&own, wait) == 0 && wait) break;
    }
    if (auto slot = own.take_for_host()) return {std::move(*slot), bytes};
  }
  const PinnedStatistics now = statistics();
  throw DeviceError(fmt::format(
      "pinned memory: {} bytes do not fit: {} of at most {} are held, {} of them in use; free "
      "some, "
      "or raise the limit",
      bytes, now.held_bytes, options_.limit, now.live_bytes));
}

void PinnedPool::trim() { trim_others(nullptr, false); }

PinnedStatistics PinnedPool::statistics() const {
  const MutexLock lock(mutex_);
  PinnedStatistics result;
  result.held_bytes = held_;
  result.peak_held_bytes = peak_;
  for (const auto& [bytes, one] : classes_) {
    const RecyclerCounts counts = one->counts();
    result.live_bytes += counts.live * bytes;
    result.made += counts.made;
    result.host_waits += counts.host_waits;
  }
  return result;
}

}  // namespace segfuse::runtime
