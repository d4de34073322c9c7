#include "runtime/cpu/host_memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/mutex.h"
#include "segfuse/error.h"

namespace segfuse::runtime {
namespace {

std::byte* address_range(std::size_t bytes) {
  void* const found =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED)
    throw DeviceError(fmt::format("host memory: no {} bytes of addresses to reserve: {}", bytes,
                                  std::strerror(errno)));
  return static_cast<std::byte*>(found);
}

}  // namespace

HostMemory::HostMemory(HostMemoryOptions options)
    : options_(options), reservations_("host memory", options.granule) {
  if (options_.address_space != 0) space_ = address_range(options_.address_space);
}

HostMemory::~HostMemory() {
  if (space_ != nullptr) {
    munmap(space_, options_.address_space);
    return;
  }
  for (const auto& [address, bytes] : reservations_.all())
    munmap(const_cast<std::byte*>(address), bytes);
}

/// First fit in the one reservation.
std::byte* HostMemory::place(std::size_t bytes) const {
  const std::byte* at = space_;
  for (const auto& [address, size] : reservations_.all()) {
    if (static_cast<std::size_t>(address - at) >= bytes) return const_cast<std::byte*>(at);
    at = address + size;
  }
  if (options_.address_space - static_cast<std::size_t>(at - space_) >= bytes)
    return const_cast<std::byte*>(at);
  throw DeviceError(
      fmt::format("host memory: no {} bytes of addresses to reserve in the {} there are", bytes,
                  options_.address_space));
}

std::byte* HostMemory::reserve(std::size_t bytes) {
  const MutexLock lock(mutex_);
  reservations_.check_reserve(bytes);
  std::byte* const address = space_ != nullptr ? place(bytes) : address_range(bytes);
  reservations_.add(address, bytes);
  return address;
}

void HostMemory::unreserve(std::byte* address, std::size_t bytes) noexcept {
  const MutexLock lock(mutex_);
  if (!reservations_.remove(address, bytes)) return;
  if (space_ == nullptr)
    munmap(address, bytes);
  else
    remove_memory(address, bytes);
}

void HostMemory::map(std::byte* address, std::size_t bytes) {
  const MutexLock lock(mutex_);
  reservations_.check_map(address, bytes);
  const std::size_t used = reservations_.mapped().bytes();
  if (used > options_.limit || bytes > options_.limit - used) throw NoMemory();
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
    if (errno == ENOMEM) throw NoMemory();
    throw DeviceError(fmt::format("host memory: map: {}", std::strerror(errno)));
  }
  reservations_.map(address, bytes);
  if (options_.junk) std::memset(address, kJunk, bytes);
}

void HostMemory::remove_memory(std::byte* address, std::size_t bytes) noexcept {
  madvise(address, bytes, MADV_DONTNEED);
  mprotect(address, bytes, PROT_NONE);
}

void HostMemory::unmap(std::byte* address, std::size_t bytes) {
  const MutexLock lock(mutex_);
  reservations_.check_unmap(address, bytes);
  reservations_.unmap(address, bytes);
  remove_memory(address, bytes);
}

DeviceMemory HostMemory::memory() const {
  const MutexLock lock(mutex_);
  const std::size_t used = reservations_.mapped().bytes();
  return {options_.limit, used < options_.limit ? options_.limit - used : 0};
}

std::size_t HostMemory::mapped() const {
  const MutexLock lock(mutex_);
  return reservations_.mapped().bytes();
}

void HostMemory::set_limit(std::size_t bytes) {
  const MutexLock lock(mutex_);
  options_.limit = bytes;
}

bool HostMemory::is_mapped(const void* address, std::size_t bytes) const {
  const MutexLock lock(mutex_);
  return reservations_.mapped().covers(address, bytes);
}

bool HostMemory::owns(const void* address, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(address);
  const auto overlaps = [&](const std::byte* from, std::size_t size) {
    return first < from + size && from < first + bytes;
  };
  if (space_ != nullptr) return overlaps(space_, options_.address_space);
  const MutexLock lock(mutex_);
  for (const auto& [from, size] : reservations_.all())
    if (overlaps(from, size)) return true;
  return false;
}

}  // namespace segfuse::runtime
