#pragma once
// Which addresses are reserved and which of them have memory; says what is wrong with a call before
// anything is done. Not guarded by itself.

#include <cstddef>
#include <map>
#include <string>

#include "runtime/address_set.h"

namespace segfuse::runtime {

class Reservations {
 public:
  Reservations(std::string device, std::size_t granule)
      : device_(std::move(device)), granule_(granule) {}

  std::size_t granule() const noexcept { return granule_; }
  const std::map<const std::byte*, std::size_t>& all() const noexcept { return reservations_; }
  const AddressSet& mapped() const noexcept { return mapped_; }

  /// These throw DeviceError.
  void check_reserve(std::size_t bytes) const;
  void check_map(const std::byte* address, std::size_t bytes) const;
  void check_unmap(const std::byte* address, std::size_t bytes) const;

  void add(const std::byte* address, std::size_t bytes) { reservations_.emplace(address, bytes); }
  /// False if there is no such reservation.
  bool remove(const std::byte* address, std::size_t bytes);
  void map(const std::byte* address, std::size_t bytes) { mapped_.add(address, bytes); }
  void unmap(const std::byte* address, std::size_t bytes) { mapped_.remove(address, bytes); }

 private:
  void check_range(const char* call, const std::byte* address, std::size_t bytes) const;

  std::string device_;
  std::size_t granule_;
  std::map<const std::byte*, std::size_t> reservations_;
  AddressSet mapped_;
};

}  // namespace segfuse::runtime
