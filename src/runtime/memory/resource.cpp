#include "runtime/memory/resource.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

constexpr std::size_t kRemembered = 4096;

std::string named(std::string_view label) {
  return label.empty() ? std::string() : fmt::format(" '{}'", label);
}

}  // namespace

std::byte* HeapResource::allocate(std::size_t bytes, StreamId stream, std::string_view label) {
  Buffer buffer = heap_->allocate(bytes, stream, label);
  std::byte* const address = buffer.address();
  const MutexLock lock(mutex_);
  live_.emplace(address, std::move(buffer));
  return address;
}

void HeapResource::refuse(const char* call, const std::byte* address) const {
  const void* const shown = address;
  auto next = live_.upper_bound(address);
  if (next != live_.begin()) {
    const auto& [begin, buffer] = *--next;
    const auto offset = static_cast<std::size_t>(address - begin);
    if (offset < buffer.bytes())
      throw UsageError(fmt::format(
          "{}: {} is byte {} of the memory{} at {} ({} bytes); give the address that allocate "
          "returned",
          call, shown, offset, named(buffer.label()), static_cast<const void*>(begin),
          buffer.bytes()));
  }
  const auto freed = std::ranges::find(freed_.rbegin(), freed_.rend(), address, &Freed::address);
  if (freed != freed_.rend())
    throw UsageError(
        fmt::format("{}: the memory{} at {} ({} bytes) was freed before; free it only once, and do "
                    "not use it afterwards",
                    call, named(freed->label), shown, freed->bytes));
  throw UsageError(
      fmt::format("{}: {} was not allocated by this resource, on {}; pass an address to the "
                  "resource that allocated it",
                  call, shown, heap_->device().name()));
}

HeapResource::Live::const_iterator HeapResource::find(const char* call,
                                                      const std::byte* address) const {
  const auto found = live_.find(address);
  if (found == live_.end()) refuse(call, address);
  return found;
}

void HeapResource::deallocate(std::byte* address, StreamId stream, std::size_t bytes) {
  Timeline& timeline = heap_->timeline();
  const Device& device = timeline.device(stream);
  Buffer buffer;  // goes when no lock is held
  const MutexLock lock(mutex_);
  const auto found = find("deallocate", address);
  if (&device != &heap_->device())
    throw UsageError(fmt::format(
        "deallocate: {} is a stream of {}, the memory{} is of {}; name a stream of its device",
        timeline.name(stream), device.name(), named(found->second.label()),
        heap_->device().name()));
  if (bytes != kUnknownBytes && bytes != found->second.bytes())
    throw UsageError(fmt::format(
        "deallocate: the memory{} at {} has {} bytes, not {}; pass the size that was requested",
        named(found->second.label()), static_cast<const void*>(address), found->second.bytes(),
        bytes));
  found->second.record_stream(timeline, stream);
  freed_.push_back({address, found->second.bytes(), found->second.label()});
  if (freed_.size() > kRemembered) freed_.pop_front();
  buffer = found->second;
  live_.erase(found);
}

std::size_t HeapResource::bytes_of(const std::byte* address) const {
  const MutexLock lock(mutex_);
  return find("bytes_of", address)->second.bytes();
}

Buffer HeapResource::buffer(const std::byte* address) const {
  const MutexLock lock(mutex_);
  return find("buffer", address)->second;
}

std::size_t HeapResource::live() const {
  const MutexLock lock(mutex_);
  return live_.size();
}

}  // namespace segfuse::runtime
