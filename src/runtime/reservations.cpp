#include "runtime/reservations.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::runtime {
namespace {

const void* pointer(const std::byte* address) { return address; }

}  // namespace

void Reservations::check_reserve(std::size_t bytes) const {
  if (bytes == 0 || bytes % granule_ != 0)
    throw DeviceError(fmt::format("{}: reserve: {} bytes are not whole granules of {}", device_,
                                  bytes, granule_));
}

void Reservations::check_range(const char* call, const std::byte* address,
                               std::size_t bytes) const {
  auto next = reservations_.upper_bound(address);
  const bool found = next != reservations_.begin();
  if (found) --next;
  const std::size_t offset = found ? static_cast<std::size_t>(address - next->first) : 0;
  if (!found || offset >= next->second || bytes > next->second - offset)
    throw DeviceError(fmt::format("{}: {}: {} bytes at {} are not within a reservation", device_,
                                  call, bytes, pointer(address)));
  if (bytes == 0 || bytes % granule_ != 0 || offset % granule_ != 0)
    throw DeviceError(fmt::format("{}: {}: {} bytes at offset {} are not whole granules of {}",
                                  device_, call, bytes, offset, granule_));
}

void Reservations::check_map(const std::byte* address, std::size_t bytes) const {
  check_range("map", address, bytes);
  if (mapped_.overlaps(address, bytes))
    throw DeviceError(fmt::format("{}: map: some of {} bytes at {} have memory already", device_,
                                  bytes, pointer(address)));
}

void Reservations::check_unmap(const std::byte* address, std::size_t bytes) const {
  check_range("unmap", address, bytes);
  if (!mapped_.covers(address, bytes))
    throw DeviceError(fmt::format("{}: unmap: some of {} bytes at {} have no memory", device_,
                                  bytes, pointer(address)));
}

bool Reservations::remove(const std::byte* address, std::size_t bytes) {
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return false;
  reservations_.erase(found);
  mapped_.remove(address, bytes);
  return true;
}

}  // namespace segfuse::runtime
