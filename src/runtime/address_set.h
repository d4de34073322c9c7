#pragma once
// A set of addresses as disjoint ranges: what is mapped, what is reserved.

#include <cstddef>
#include <cstdint>
#include <map>

namespace segfuse::runtime {

class AddressSet {
 public:
  void add(const void* address, std::size_t bytes);
  void remove(const void* address, std::size_t bytes);
  /// All of the range is in the set; true for an empty range.
  bool covers(const void* address, std::size_t bytes) const;
  /// Some of the range is in the set.
  bool overlaps(const void* address, std::size_t bytes) const;
  /// First byte and end of each range, in order of addresses; neighbours are one range.
  const std::map<std::uintptr_t, std::uintptr_t>& ranges() const noexcept { return ranges_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ranges_;
  std::size_t bytes_ = 0;
};

}  // namespace segfuse::runtime
