#include "runtime/address_set.h"

#include <algorithm>
#include <iterator>

namespace segfuse::runtime {
namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

void AddressSet::add(const void* address, std::size_t bytes) {
  if (bytes == 0) return;
  std::uintptr_t first = number(address);
  std::uintptr_t end = first + bytes;
  auto next = ranges_.upper_bound(first);
  if (next != ranges_.begin() && std::prev(next)->second >= first) --next;
  while (next != ranges_.end() && next->first <= end) {
    first = std::min(first, next->first);
    end = std::max(end, next->second);
    bytes_ -= next->second - next->first;
    next = ranges_.erase(next);
  }
  ranges_.emplace(first, end);
  bytes_ += end - first;
}

void AddressSet::remove(const void* address, std::size_t bytes) {
  if (bytes == 0) return;
  const std::uintptr_t first = number(address);
  const std::uintptr_t end = first + bytes;
  auto next = ranges_.upper_bound(first);
  if (next != ranges_.begin() && std::prev(next)->second > first) --next;
  while (next != ranges_.end() && next->first < end) {
    const auto [from, to] = *next;
    next = ranges_.erase(next);
    bytes_ -= std::min(to, end) - std::max(from, first);
    if (from < first) ranges_.emplace(from, first);
    if (to > end) ranges_.emplace(end, to);
  }
}

bool AddressSet::covers(const void* address, std::size_t bytes) const {
  if (bytes == 0) return true;
  const auto next = ranges_.upper_bound(number(address));
  return next != ranges_.begin() && std::prev(next)->second >= number(address) + bytes;
}

bool AddressSet::overlaps(const void* address, std::size_t bytes) const {
  if (bytes == 0) return false;
  const auto next = ranges_.lower_bound(number(address) + bytes);
  return next != ranges_.begin() && std::prev(next)->second > number(address);
}

}  // namespace segfuse::runtime
