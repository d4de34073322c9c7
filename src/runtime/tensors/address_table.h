#pragma once
// What is known of memory by its first address: a hash table in one array, with no allocation for
// each entry.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace segfuse::runtime {

template <class Value>
class AddressTable {
 public:
  struct Entry {
    const std::byte* address = nullptr;  ///< null: none
    Value value{};
  };

  std::size_t size() const { return size_; }

  /// Null where there is none. Entries stay where they are until the next insert() or take().
  const Entry* find(const std::byte* address) const {
    if (size_ == 0) return nullptr;
    for (std::size_t at = home(address);; at = next(at)) {
      if (entries_[at].address == address) return &entries_[at];
      if (entries_[at].address == nullptr) return nullptr;
    }
  }

  Entry* find(const std::byte* address) {
    return const_cast<Entry*>(std::as_const(*this).find(address));
  }

  /// The address is not null, and not in the table.
  void insert(const std::byte* address, Value value) {
    if (2 * size_ >= entries_.size()) grow();
    put({address, std::move(value)});
    ++size_;
  }

  /// Removes an entry that find() returned.
  Value take(Entry* entry) {
    auto hole = static_cast<std::size_t>(entry - entries_.data());
    Value taken = std::move(entry->value);
    *entry = {};
    --size_;
    // An entry that was pushed beyond the hole moves there, or find() would end at the hole.
    for (std::size_t at = next(hole); entries_[at].address != nullptr; at = next(at)) {
      const std::size_t pushed = (at - home(entries_[at].address)) & (entries_.size() - 1);
      if (pushed < ((at - hole) & (entries_.size() - 1))) continue;
      entries_[hole] = std::exchange(entries_[at], {});
      hole = at;
    }
    return taken;
  }

 private:
  static constexpr std::size_t kMinEntries = 64;

  std::size_t next(std::size_t at) const { return (at + 1) & (entries_.size() - 1); }
  std::size_t home(const std::byte* address) const {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(address) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(mixed >> (64 - std::countr_zero(entries_.size())));
  }
  void put(Entry entry) {
    std::size_t at = home(entry.address);
    while (entries_[at].address != nullptr) at = next(at);
    entries_[at] = std::move(entry);
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? kMinEntries : 2 * entries_.size());
    old.swap(entries_);
    for (Entry& entry : old)
      if (entry.address != nullptr) put(std::move(entry));
  }

  std::vector<Entry> entries_;  ///< a power of two of them, at most half in use
  std::size_t size_ = 0;
};

}  // namespace segfuse::runtime
