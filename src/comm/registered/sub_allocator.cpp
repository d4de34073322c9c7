#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "base/sizes.h"
#include "comm/registered/child.h"
#include "comm/registered/mapping.h"
#include "segfuse/error.h"
#include "segfuse/registered.h"

namespace segfuse::comm {
SubAllocator::SubAllocator(Slab slab, bool registered_whole)
    : slab_(std::move(slab)), base_(slab_.data()), forbidden_(registered_whole ? 2 : 1) {
  add_free(0, slab_.bytes());
}

void SubAllocator::add_free(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  by_size_.emplace(bytes, offset);
  try {
    free_.emplace(offset, bytes);
  } catch (...) {
    by_size_.erase({bytes, offset});
    throw;
  }
}

// Its nodes are used again, so that it cannot fail.
void SubAllocator::resize_free(std::size_t offset, std::size_t bytes) {
  std::size_t& size = free_.find(offset)->second;
  auto node = by_size_.extract({size, offset});
  node.value().first = bytes;
  by_size_.insert(std::move(node));
  size = bytes;
}

void SubAllocator::remove_free(std::size_t offset) {
  const auto found = free_.find(offset);
  by_size_.erase({found->second, offset});
  free_.erase(found);
}

std::byte* SubAllocator::allocate(std::size_t bytes, std::size_t alignment) {
  refuse_in_child("SubAllocator::allocate");
  if (bytes == 0) throw UsageError("SubAllocator: 0 bytes; expected at least 1");
  if (!std::has_single_bit(alignment) || alignment > page_bytes())
    throw UsageError(fmt::format("SubAllocator: alignment {}; expected a power of two up to {}",
                                 alignment, page_bytes()));
  if (bytes > slab_.bytes()) return nullptr;
  const std::size_t held = round_up(bytes, kCacheLine);
  const std::size_t unit = std::max(alignment, kCacheLine);
  const std::lock_guard lock(mutex_);
  for (auto at = by_size_.lower_bound({held, 0}); at != by_size_.end(); ++at) {
    const auto [size, offset] = *at;
    const std::size_t first = round_up(offset, unit);
    if (first - offset > size - held) continue;
    // What may throw comes first; what is left of the range is free until the end.
    live_.emplace(first, Block{held, bytes});
    try {
      add_free(first + held, offset + size - first - held);
    } catch (...) {
      live_.erase(first);
      throw;
    }
    if (first == offset) {
      by_size_.erase(at);
      free_.erase(offset);
    } else {
      resize_free(offset, first - offset);  // the gap before the block
    }
    live_bytes_ += held;
    return base_ + first;
  }
  return nullptr;
}

SubAllocator::Live::const_iterator SubAllocator::find(const char* call,
                                                      const std::byte* address) const {
  const auto found =
      owns(address) ? live_.find(static_cast<std::size_t>(address - base_)) : live_.end();
  if (found == live_.end())
    throw UsageError(
        fmt::format("{}: {} is not a live object of slab '{}'; it was freed already, or is not the "
                    "start of an object",
                    call, static_cast<const void*>(address), slab_.owner()));
  return found;
}

void SubAllocator::deallocate(std::byte* address) {
  refuse_in_child("SubAllocator::deallocate");
  const std::lock_guard lock(mutex_);
  const auto found = find("SubAllocator::deallocate", address);
  std::size_t offset = found->first;
  std::size_t bytes = found->second.held;
  if (slab_.registered(offset, bytes, forbidden_))
    throw UsageError(
        fmt::format("SubAllocator::deallocate: {} is still registered; release its registration "
                    "first",
                    static_cast<const void*>(address)));
  const std::size_t held = bytes;
  const auto next = free_.lower_bound(offset);
  const bool joins_next = next != free_.end() && next->first == offset + bytes;
  const std::size_t next_offset = joins_next ? next->first : 0;
  if (joins_next) bytes += next->second;
  std::size_t before_offset = 0;
  bool joins_before = false;
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    joins_before = before->first + before->second == offset;
    before_offset = before->first;
    if (joins_before) bytes += before->second;
  }
  if (joins_before) {
    resize_free(before_offset, bytes);
  } else {
    add_free(offset, bytes);
  }
  if (joins_next) remove_free(next_offset);
  live_.erase(found);
  live_bytes_ -= held;
}

std::size_t SubAllocator::bytes_of(const std::byte* address) const {
  refuse_in_child("SubAllocator::bytes_of");
  const std::lock_guard lock(mutex_);
  return find("SubAllocator::bytes_of", address)->second.asked;
}

bool SubAllocator::owns(const std::byte* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(base_);
  return at >= base && at - base < slab_.bytes();
}

bool SubAllocator::empty() const {
  const std::lock_guard lock(mutex_);
  return live_.empty();
}

std::size_t SubAllocator::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

Registration SubAllocator::register_object(std::byte* address) {
  refuse_in_child("SubAllocator::register_object");
  std::size_t offset = 0;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = find("SubAllocator::register_object", address);
    offset = found->first;
    bytes = found->second.asked;
  }
  return slab_.register_range(offset, bytes);
}

}  // namespace segfuse::comm
