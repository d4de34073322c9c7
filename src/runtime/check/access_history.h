#pragma once
// Which work used which bytes of memory, as long as it can still matter.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace segfuse::runtime {

/// By slot: how many of the slot's operations come before. Missing components are 0.
using VectorClock = std::vector<std::uint64_t>;

inline std::uint64_t component(const VectorClock& clock, std::size_t slot) {
  return slot < clock.size() ? clock[slot] : 0;
}
/// clock = max(clock, other), by component.
void join(VectorClock& clock, const VectorClock& other);

/// One operation's use of some memory.
struct PastUse {
  std::size_t slot = 0;  ///< stands for a stream; ticks of a slot only grow
  std::uint64_t tick = 0;
  bool write = false;
  int stream = 0;               ///< for reports, like all that follows
  std::uint64_t operation = 0;  ///< its place among the stream's operations, from 1
  std::uint32_t work = 0;
  std::uint32_t buffer = 0;

  bool before(const VectorClock& clock) const { return tick <= component(clock, slot); }
  bool operator==(const PastUse&) const = default;
};

/// Ranges of bytes with their uses. A use is forgotten once a later one stands for it: one that is
/// ordered after it and conflicts with whatever it conflicts with (a write, or a read after a
/// read). What races with the forgotten use then races with the one that stands for it, too.
class AccessHistory {
 public:
  using Range = std::pair<std::uintptr_t, std::uintptr_t>;  ///< first byte, end

  /// Calls `report` for each past use of a byte of the range that `clock` is not ordered after; of
  /// reads only if `write`. The same use may come several times, for different parts of the range.
  void conflicts(Range range, bool write, const VectorClock& clock,
                 const std::function<void(const PastUse&, Range)>& report) const;
  /// `clock` is that of the use; what is ordered before `host` can race with nothing to come.
  void add(Range range, const PastUse& use, const VectorClock& clock, const VectorClock& host);
  void forget(Range range);
  /// Forgets the uses in the range that `clock` is ordered after.
  void forget_before(Range range, const VectorClock& clock);
  /// Ranges kept, for tests of their number.
  std::size_t ranges() const noexcept { return nodes_.size(); }

 private:
  struct Node {
    std::uintptr_t end = 0;
    std::vector<PastUse> uses;
  };
  using Nodes = std::map<std::uintptr_t, Node>;

  void split(std::uintptr_t at);
  Nodes::const_iterator first_in(Range range) const;
  Nodes::iterator merge(Nodes::iterator node);
  void sweep(const VectorClock& host);

  Nodes nodes_;
  std::size_t sweep_at_ = 1024;
};

}  // namespace segfuse::runtime
