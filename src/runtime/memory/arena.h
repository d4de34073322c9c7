#pragma once
// One reservation of addresses, tiled by blocks. Plain data: knows no device and no lock; the heap
// decides, the arena finds, splits and joins.
//
// Invariants (verify() checks them):
//   the blocks tile the reservation in the order of addresses;
//   a free block is in exactly one index, that of its uses, and no other block is in any;
//   memory begins and ends at multiples of the granule;
//   no two neighbours are unmapped, nor free with uses of the same streams of which one covers the
//   other.
// Other free neighbours stay apart, so that nobody waits for more than he must, and each stream
// finds its own memory again; they are joined when they are handed out together.

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/memory/block.h"

namespace segfuse::runtime {

class Arena {
 public:
  /// Whether what comes next may use a block with these uses as it is.
  using Covered = std::function<bool(const Frontier& uses)>;
  /// How many uses have to be waited for; kNever: one that nobody can wait for.
  using Uncovered = std::function<int(const Frontier& uses)>;
  static constexpr int kNever = std::numeric_limits<int>::max();

  Arena(Heap* heap, std::uint8_t number, std::byte* address, std::size_t bytes,
        std::size_t granule);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A run of neighbouring free blocks with room for what was asked: the first one, and all bytes.
  struct Run {
    Block* first = nullptr;
    std::size_t bytes = 0;
    int waits = 0;
  };
  /// The smallest covered block that nothing or only the stream with the index `own` uses, then the
  /// smallest covered one, then the smallest run of covered ones; the lowest address of equals.
  std::optional<Run> find(std::size_t bytes, const Covered& covered, std::uint32_t own) const;
  /// The run with the fewest waits, then the smallest, then the lowest; none that has to wait for
  /// what never ends.
  std::optional<Run> find_waiting(std::size_t bytes, const Uncovered& uncovered) const;
  /// Takes the first `bytes` of a run as one block with all its uses; the rest stays free. It is
  /// live, with no reference yet.
  Block* take(const Run& run, std::size_t bytes);
  /// A live or cached block becomes free and joins its neighbours where their uses are comparable.
  void give(Block* block);

  /// Where memory has to be mapped to hand out `bytes`: behind free blocks that are covered, or
  /// alone. Least memory first, then lowest address. `usable` is what those free blocks have.
  struct Growth {
    Block* gap = nullptr;
    std::size_t bytes = 0;
    std::size_t usable = 0;
  };
  std::optional<Growth> find_growth(std::size_t bytes, const Covered& covered) const;
  /// The first bytes of an unmapped block, as a block that is changing.
  Block* begin_map(const Growth& growth);
  /// It has memory now and becomes free.
  void finish_map(Block* block);
  /// It has none, again or still.
  void finish_unmap(Block* block);
  /// Whole granules that are free with uses of which `done` holds become changing blocks, at most
  /// about `bytes` of them. Higher addresses first.
  std::vector<Block*> begin_unmap(std::size_t bytes, const Covered& done);

  Block* first() const { return first_; }
  std::size_t mapped_bytes() const { return mapped_; }
  std::size_t free_bytes() const { return free_; }
  std::size_t granule() const { return granule_; }
  std::size_t largest_run() const;
  bool contains(const void* address) const;
  /// Throws InternalError naming the first invariant that does not hold.
  void verify() const;

 private:
  using Key = std::pair<std::size_t, Block*>;
  using Index = std::set<Key, bool (*)(const Key&, const Key&)>;

  Block* new_block();
  void drop_block(Block* block);
  std::size_t index_of(const Frontier& uses) const;
  void insert(Block* block);
  void remove(Block* block);
  Block* split(Block* block, std::size_t bytes);
  Block* absorb_next(Block* block);
  Block* join_free(Block* block);
  const Block* best_fit(std::size_t bytes, const Covered& covered, std::uint32_t own) const;

  Heap* heap_;
  std::uint8_t number_;
  std::byte* address_;
  std::size_t bytes_;
  std::size_t granule_;
  std::size_t mapped_ = 0;
  std::size_t free_ = 0;
  Block* first_ = nullptr;
  std::vector<Index> indices_;  ///< one a stream, then without uses, then with several streams
  std::deque<Block> blocks_;
  std::vector<Block*> unused_;
};

}  // namespace segfuse::runtime
