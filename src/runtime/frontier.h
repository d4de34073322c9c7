#pragma once
// Which work has to be over before something may be used again: a tick for each stream concerned.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tick.h"

namespace segfuse::runtime {

/// Invariants: at most one entry for each stream, in the order of streams, none with tick 0.
/// Three entries lie in the object; more are rare and lie on the heap.
class Frontier {
 public:
  Frontier() = default;
  explicit Frontier(StreamTick use) { raise(use); }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  std::span<const StreamTick> entries() const {
    return {more_.empty() ? few_.data() : more_.data(), size_};
  }
  /// No work but that of this stream.
  bool only(std::uint32_t stream) const {
    return size_ == 0 || (size_ == 1 && few_[0].stream() == stream && more_.empty());
  }

  Tick tick(std::uint32_t stream) const;
  /// The entry of the stream becomes at least `use`.
  void raise(StreamTick use);
  /// The least frontier above both.
  void join(const Frontier& other);
  void clear() {
    size_ = 0;
    more_.clear();
  }
  /// Every entry of this one is covered by an entry of `other`.
  bool within(const Frontier& other) const;

  /// Removes the entries for which `remove(entry)` holds.
  template <class Predicate>
  void drop_if(Predicate remove) {
    StreamTick* const data = more_.empty() ? few_.data() : more_.data();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i)
      if (!remove(data[i])) data[kept++] = data[i];
    shrink(kept);
  }

  friend bool operator==(const Frontier& a, const Frontier& b);

 private:
  static constexpr std::size_t kFew = 3;
  void shrink(std::size_t size);

  std::uint32_t size_ = 0;
  std::array<StreamTick, kFew> few_{};
  std::vector<StreamTick> more_;  ///< all entries when there are more than kFew, else empty
};

}  // namespace segfuse::runtime
