#include "comm/registered/pool.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/mutex.h"
#include "comm/registered/child.h"
#include "comm/registered/mapping.h"
#include "segfuse/error.h"

namespace segfuse::comm {

RegisteredPool::RegisteredPool(Registry& registry, PoolOptions options)
    : registry_(registry), options_(std::move(options)) {}

std::byte* RegisteredPool::try_allocate(std::size_t bytes, std::size_t alignment) {
  refuse_in_child("RegisteredPool::allocate");
  const MutexLock lock(mutex_);
  for (One& one : slabs_)
    if (std::byte* const found = one.allocator.allocate(bytes, alignment)) return found;
  const std::size_t least = std::max(bytes, options_.slab_bytes);
  const std::size_t left = options_.limit - std::min(options_.limit, held_);
  if (bytes > left) return nullptr;
  const std::size_t slab_bytes = least <= left ? least : bytes;
  Slab slab =
      registry_.make_slab({.owner = options_.owner, .bytes = slab_bytes, .huge = options_.huge});
  slabs_.emplace_back(std::move(slab));
  held_ += slabs_.back().allocator.slab().bytes();
  return slabs_.back().allocator.allocate(bytes, alignment);
}

std::byte* RegisteredPool::allocate(std::size_t bytes, std::size_t alignment) {
  if (std::byte* const found = try_allocate(bytes, alignment)) return found;
  throw DeviceError(fmt::format(
      "registered memory '{}': {} bytes do not fit: {} of at most {} are held, {} of them in use; "
      "free some, or raise the limit",
      options_.owner, bytes, held_bytes(), options_.limit, live_bytes()));
}

RegisteredPool::Slabs::iterator RegisteredPool::find(const char* call,
                                                     const std::byte* address) const {
  const auto found = std::find_if(slabs_.begin(), slabs_.end(),
                                  [&](const One& one) { return one.allocator.owns(address); });
  if (found == slabs_.end())
    throw UsageError(fmt::format("{}: {} is not in a slab of '{}'", call,
                                 static_cast<const void*>(address), options_.owner));
  return found;
}

void RegisteredPool::deallocate(std::byte* address) {
  refuse_in_child("RegisteredPool::deallocate");
  const MutexLock lock(mutex_);
  const auto slab = find("RegisteredPool::deallocate", address);
  slab->allocator.deallocate(address);
  if (!slab->allocator.empty() || slabs_.size() == 1) return;
  held_ -= slab->allocator.slab().bytes();
  slabs_.erase(slab);
}

std::size_t RegisteredPool::bytes_of(const std::byte* address) const {
  refuse_in_child("RegisteredPool::bytes_of");
  const MutexLock lock(mutex_);
  return find("RegisteredPool::bytes_of", address)->allocator.bytes_of(address);
}

const Pin& RegisteredPool::pin_of(const std::byte* address) const {
  refuse_in_child("RegisteredPool::pin_of");
  const MutexLock lock(mutex_);
  return find("RegisteredPool::pin_of", address)->whole.pin();
}

std::size_t RegisteredPool::offset_of(const std::byte* address) const {
  refuse_in_child("RegisteredPool::offset_of");
  const MutexLock lock(mutex_);
  const auto slab = find("RegisteredPool::offset_of", address);
  return static_cast<std::size_t>(address - slab->allocator.slab().data());
}

std::size_t RegisteredPool::held_bytes() const {
  refuse_in_child("RegisteredPool::held_bytes");
  const MutexLock lock(mutex_);
  return held_;
}

std::size_t RegisteredPool::live_bytes() const {
  refuse_in_child("RegisteredPool::live_bytes");
  const MutexLock lock(mutex_);
  std::size_t total = 0;
  for (const One& one : slabs_) total += one.allocator.live_bytes();
  return total;
}

runtime::PinnedOptions staging_from(RegisteredPool& pool, std::size_t limit) {
  return {.limit = limit,
          .allocate = [&pool](std::size_t bytes) { return pool.try_allocate(bytes, page_bytes()); },
          .release = [&pool](std::byte* address, std::size_t) { pool.deallocate(address); }};
}

}  // namespace segfuse::comm
