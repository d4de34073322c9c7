#pragma once
// Things that are used by streams and used again: logical slots, pinned staging buffers, events.
// The rule is the heap's: what comes back keeps its frontier, and is handed out to the first that
// is ordered after it, or is made to be by the fewest waits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "runtime/timeline.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

struct RecyclerCounts {
  std::size_t items = 0;  ///< that exist
  std::size_t live = 0;   ///< handed out
  std::uint64_t taken = 0;
  std::uint64_t made = 0;
  std::uint64_t added_waits = 0;
  std::uint64_t host_waits = 0;
};

/// Any thread. With one thread that takes and gives back, which item is handed out and what is
/// waited for are a function of the calls alone. Nobody holds an item when it goes, nor uses it.
template <class Item>
class Recycler {
 public:
  /// Makes one more item; nothing: there are no more. May throw; everything is as before then.
  using Make = std::function<std::optional<Item>()>;
  using Drop = std::function<void(Item&)>;

  /// An item that is held; goes back with this object. For one thread at a time.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          item_(std::move(other.item_)),
          home_(other.home_),
          uses_(std::move(other.uses_)) {}
    Slot& operator=(Slot other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(item_, other.item_);
      std::swap(home_, other.home_);
      std::swap(uses_, other.uses_);
      return *this;
    }
    ~Slot() {
      if (owner_ != nullptr) owner_->give(std::move(*this));
    }
    explicit operator bool() const { return owner_ != nullptr; }
    Item& operator*() { return *item_; }
    const Item& operator*() const { return *item_; }
    Item* operator->() { return &*item_; }
    const Item* operator->() const { return &*item_; }

    /// Work at this tick uses it.
    void used(StreamTick use) { uses_.raise(use); }
    /// Whatever was enqueued on the stream so far may use it.
    void record_stream(StreamId stream) { uses_.raise(owner_->timeline_->touch(stream)); }
    const Frontier& uses() const { return uses_; }

   private:
    friend class Recycler;
    Slot(Recycler* owner, Item item, Frontier uses, std::uint32_t home)
        : owner_(owner), item_(std::move(item)), home_(home), uses_(std::move(uses)) {}
    Recycler* owner_ = nullptr;
    std::optional<Item> item_;
    std::uint32_t home_ = kHost;
    Frontier uses_;
  };

  Recycler(Timeline& timeline, Make make, Drop drop = {})
      : timeline_(&timeline), make_(std::move(make)), drop_(std::move(drop)) {}
  ~Recycler() {
    for (auto& idle : idle_)
      for (Idle& one : idle) {
        try {
          timeline_->synchronize(one.uses);
        } catch (const std::exception&) {
          // A failure of that work; it is over all the same.
        }
        if (drop_) drop_(one.item);
      }
  }
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;

  /// For work enqueued on `stream` from now on: the last that came back and needs no wait, else a
  /// new one, else the one that needs the fewest waits, which are added. Nothing: all are held.
  std::optional<Slot> take(StreamId stream) {
    (void)timeline_->device(stream);
    if (auto found = pick(stream.index,
                          [&](const Frontier& uses) { return timeline_->covered(stream, uses); }))
      return found;
    if (auto made = make_new(stream.index)) return made;
    auto slot =
        pick_least(stream.index, [&](const Frontier& uses) { return uncovered(stream, uses); });
    if (!slot) return std::nullopt;
    // What is thrown here leaves the item among the idle ones: `slot` gives it back.
    const int waits = timeline_->order_after(stream, slot->uses_);
    const MutexLock lock(mutex_);
    counts_.added_waits += static_cast<std::uint64_t>(waits);
    return slot;
  }

  /// For the host, which may touch it at once: one whose uses are over, else a new one, else the
  /// host waits for the one that came back first of those with the fewest uses.
  std::optional<Slot> take_for_host(bool may_wait = true) {
    const auto over = [&](const Frontier& uses) { return timeline_->over(uses); };
    if (auto found = pick(kHost, over)) return found;
    if (auto made = make_new(kHost)) return made;
    if (!may_wait) return std::nullopt;
    auto slot = pick_least(kHost, [&](const Frontier& uses) {
      int count = 0;
      for (const StreamTick use : uses.entries()) count += timeline_->over(use) ? 0 : 1;
      return count;
    });
    if (!slot) return std::nullopt;
    timeline_->synchronize(slot->uses_);
    slot->uses_.clear();
    const MutexLock lock(mutex_);
    ++counts_.host_waits;
    return slot;
  }

  /// Drops idle items; with `wait` the host waits for their uses, else those that are not over
  /// stay.
  std::size_t trim(bool wait = false) {
    std::vector<Slot> dropped;
    while (auto slot =
               pick(kHost, [&](const Frontier& uses) { return wait || timeline_->over(uses); })) {
      if (wait) timeline_->synchronize(slot->uses_);
      dropped.push_back(std::move(*slot));
    }
    for (Slot& slot : dropped) {
      if (drop_) drop_(*slot);
      slot.owner_ = nullptr;
    }
    const MutexLock lock(mutex_);
    counts_.live -= dropped.size();
    counts_.items -= dropped.size();
    counts_.taken -= dropped.size();
    return dropped.size();
  }

  RecyclerCounts counts() const {
    const MutexLock lock(mutex_);
    return counts_;
  }

 private:
  static constexpr std::uint32_t kHost = kMaxStreams;
  static constexpr std::size_t kQuiet = kMaxStreams;
  static constexpr std::size_t kMixed = kMaxStreams + 1;
  struct Idle {
    Item item;
    Frontier uses;
    std::uint64_t returned = 0;  ///< counts items that came back
  };
  using List = std::list<Idle>;  ///< the last that came back at the end

  static std::size_t index_of(const Frontier& uses) {
    if (uses.empty()) return kQuiet;
    return uses.size() == 1 ? uses.entries()[0].stream() : kMixed;
  }

  int uncovered(StreamId stream, const Frontier& uses) const {
    int count = 0;
    for (const StreamTick use : uses.entries()) count += timeline_->covered(stream, use) ? 0 : 1;
    return count;
  }

  Slot hand_out(std::uint32_t home, Item item, Frontier uses) {
    ++counts_.taken;
    ++counts_.live;
    return Slot(this, std::move(item), std::move(uses), home);
  }
  Slot hand_out(std::uint32_t home, List& list, typename List::iterator at) {
    Idle idle = std::move(*at);
    list.erase(at);
    return hand_out(home, std::move(idle.item), std::move(idle.uses));
  }

  /// The last that came back of those whose uses are `good`.
  template <class Good>
  std::optional<Slot> pick(std::uint32_t home, const Good& good) {
    const MutexLock lock(mutex_);
    List* best_list = nullptr;
    typename List::iterator best;
    for (List& list : idle_) {
      for (auto at = list.end(); at != list.begin();) {
        --at;
        if (best_list != nullptr && at->returned < best->returned) break;
        if (!good(at->uses)) continue;
        best_list = &list;
        best = at;
        break;
      }
    }
    if (best_list == nullptr) return std::nullopt;
    return hand_out(home, *best_list, best);
  }

  /// The first that came back of those with the least cost.
  template <class Cost>
  std::optional<Slot> pick_least(std::uint32_t home, const Cost& cost) {
    const MutexLock lock(mutex_);
    List* best_list = nullptr;
    typename List::iterator best;
    std::pair<int, std::uint64_t> least{std::numeric_limits<int>::max(), 0};
    for (List& list : idle_)
      for (auto at = list.begin(); at != list.end(); ++at)
        if (const std::pair found(cost(at->uses), at->returned); found < least) {
          least = found;
          best_list = &list;
          best = at;
        }
    if (best_list == nullptr) return std::nullopt;
    return hand_out(home, *best_list, best);
  }

  std::optional<Slot> make_new(std::uint32_t home) {
    std::optional<Item> item = make_();
    if (!item) return std::nullopt;
    const MutexLock lock(mutex_);
    ++counts_.items;
    ++counts_.made;
    return hand_out(home, std::move(*item), {});
  }

  void give(Slot slot) noexcept {
    slot.owner_ = nullptr;
    if (!slot.uses_.only(slot.home_)) {
      try {
        timeline_->settle(slot.uses_, slot.home_);
      } catch (const std::exception&) {
        // No event could be recorded now. One will be when somebody has to wait for these uses.
      }
    }
    const MutexLock lock(mutex_);
    --counts_.live;
    const std::size_t index = index_of(slot.uses_);
    idle_[index].push_back({std::move(*slot.item_), std::move(slot.uses_), ++returned_});
  }

  Timeline* timeline_;
  Make make_;
  Drop drop_;
  mutable Mutex mutex_;
  std::array<List, kMaxStreams + 2> idle_;  ///< one a stream, then without uses, then with several
  std::uint64_t returned_ = 0;
  RecyclerCounts counts_;
};

}  // namespace segfuse::runtime
