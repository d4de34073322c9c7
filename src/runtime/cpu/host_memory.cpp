#include "runtime/cpu/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::runtime {
namespace {

std::byte* address_range(std::size_t bytes) {
  void* const found =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED)
    throw DeviceError("host memory: no {} bytes of addresses to reserve: {}", bytes,
                      std::strerror(errno));
  return static_cast<std::byte*>(found);
}

}  // namespace

HostMemory::HostMemory(HostMemoryOptions options) : options_(options) {
  if (options_.address_space != 0) space_ = address_range(options_.address_space);
}

HostMemory::~HostMemory() {
  if (space_ != nullptr) {
    munmap(space_, options_.address_space);
    return;
  }
  for (const auto& [address, bytes] : reservations_) munmap(address, bytes);
}

/// First fit in the one reservation.
std::byte* HostMemory::place(std::size_t bytes) const {
  std::byte* at = space_;
  for (const auto& [address, size] : reservations_) {
    if (static_cast<std::size_t>(address - at) >= bytes) return at;
    at = address + size;
  }
  if (options_.address_space - static_cast<std::size_t>(at - space_) >= bytes) return at;
  throw DeviceError("host memory: no {} bytes of addresses to reserve in the {} there are", bytes,
                    options_.address_space);
}

std::byte* HostMemory::reserve(std::size_t bytes) {
  if (bytes == 0 || bytes % options_.granule != 0)
    throw DeviceError("host memory: {} bytes to reserve are not whole granules of {}", bytes,
                      options_.granule);
  const std::lock_guard lock(mutex_);
  std::byte* const address = space_ != nullptr ? place(bytes) : address_range(bytes);
  reservations_.emplace(address, bytes);
  return address;
}

void HostMemory::unreserve(std::byte* address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return;
  reservations_.erase(found);
  mapped_.remove(address, bytes);
  if (space_ == nullptr)
    munmap(address, bytes);
  else
    remove_memory(address, bytes);
}

void HostMemory::check_range(const char* call, const std::byte* address, std::size_t bytes) const {
  auto next = reservations_.upper_bound(const_cast<std::byte*>(address));
  const bool found = next != reservations_.begin();
  if (found) --next;
  const std::size_t offset = found ? static_cast<std::size_t>(address - next->first) : 0;
  if (!found || offset >= next->second || bytes > next->second - offset)
    throw DeviceError("host memory: {}: {} bytes at {} are not within a reservation", call, bytes,
                      static_cast<const void*>(address));
  if (bytes == 0 || bytes % options_.granule != 0 || offset % options_.granule != 0)
    throw DeviceError("host memory: {}: {} bytes at offset {} are not whole granules of {}", call,
                      bytes, offset, options_.granule);
}

void HostMemory::map(std::byte* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  check_range("map", address, bytes);
  if (mapped_.overlaps(address, bytes))
    throw DeviceError("host memory: map: some of {} bytes at {} have memory already", bytes,
                      static_cast<const void*>(address));
  if (mapped_.bytes() > options_.limit || bytes > options_.limit - mapped_.bytes())
    throw NoMemory();
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
    if (errno == ENOMEM) throw NoMemory();
    throw DeviceError("host memory: map: {}", std::strerror(errno));
  }
  mapped_.add(address, bytes);
  if (options_.junk) std::memset(address, kJunk, bytes);
}

void HostMemory::remove_memory(std::byte* address, std::size_t bytes) noexcept {
  madvise(address, bytes, MADV_DONTNEED);
  mprotect(address, bytes, PROT_NONE);
}

void HostMemory::unmap(std::byte* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  check_range("unmap", address, bytes);
  if (!mapped_.covers(address, bytes))
    throw DeviceError("host memory: unmap: some of {} bytes at {} have no memory", bytes,
                      static_cast<const void*>(address));
  mapped_.remove(address, bytes);
  remove_memory(address, bytes);
}

DeviceMemory HostMemory::memory() const {
  const std::lock_guard lock(mutex_);
  const std::size_t used = mapped_.bytes();
  return {options_.limit, used < options_.limit ? options_.limit - used : 0};
}

std::size_t HostMemory::mapped() const {
  const std::lock_guard lock(mutex_);
  return mapped_.bytes();
}

void HostMemory::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  options_.limit = bytes;
}

bool HostMemory::is_mapped(const void* address, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return mapped_.covers(address, bytes);
}

bool HostMemory::owns(const void* address, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(address);
  const auto overlaps = [&](const std::byte* from, std::size_t size) {
    return first < from + size && from < first + bytes;
  };
  if (space_ != nullptr) return overlaps(space_, options_.address_space);
  const std::lock_guard lock(mutex_);
  for (const auto& [from, size] : reservations_)
    if (overlaps(from, size)) return true;
  return false;
}

}  // namespace segfuse::runtime
