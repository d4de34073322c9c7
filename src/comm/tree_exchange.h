#pragma once
// The sum of a step's gradients over all ranks, in the order of the tree.
//
// The words are cut into as many parts as there are ranks. Each rank sends the parts of its nodes
// to their owners, the owner of a part adds all nodes in the order of the tree, and the sums are
// given back to all. So a rank sends about as many bytes as in any other all-reduce (one node) and
// the bits are those of one rank that adds all shards by itself.
//
// Where several machines have as many ranks each, the ranks of a machine first do this among
// themselves. Then the owners of one part, one on each machine, do it with what their machines
// have. So a machine sends the bytes of one rank over the network, not those of all its ranks.

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "comm/tree.h"

namespace segfuse::comm {

/// Parts begin at multiples of so many words, as the blocks of the gradient's norm do.
inline constexpr std::int64_t kBlockWords = 4096;

/// Words [begin, end).
struct WordRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
  bool operator==(const WordRange&) const = default;
};

/// The part of each of `ranks` ranks, in order; their blocks differ by one at most. Where there are
/// fewer blocks than ranks, some are empty.
std::vector<WordRange> cut_into_parts(std::int64_t words, std::int64_t ranks);

/// Makes the sums of a run; it keeps what does not change from step to step, and the memory that
/// parts are received in (this rank's part of all other ranks' nodes).
class TreeExchange {
 public:
  /// Throws UsageError for more ranks than shards. `machines`: where each rank is, equal for ranks
  /// of one machine, the same on all ranks; empty: not known. `group` outlives it.
  TreeExchange(Group& group, std::int64_t shards, std::span<const std::int64_t> machines = {});

  /// All ranks call it with equal `present` (1 to shards) and as many words. `nodes` are the nodes
  /// that nodes_of() names for this rank's range, each as long as `sum`, which may be one of them.
  /// All ranks get the same bits.
  void sum(std::span<const std::span<const float>> nodes, std::int64_t present,
           std::span<float> sum);

  /// The shards of this rank.
  ShardRange own_shards() const;
  std::int64_t shards() const { return shards_; }
  /// On how many machines the ranks first sum among themselves; 1: all sum at once.
  std::size_t machines() const { return circles_.size() == 1 ? 1 : circles_[1].ranks.size(); }

 private:
  /// Ranks that sum among themselves: all of them, or those of a machine and then those of one
  /// number on all machines.
  struct Circle {
    std::vector<int> ranks;
    std::vector<ShardRange> ranges;  ///< whose nodes each of them hands over
    std::size_t own = 0;             ///< this rank's place
    std::vector<float> received{};
  };
  struct Source {
    TreeNode node;
    std::span<const float> values;  ///< this rank's part
    float* writable = nullptr;      ///< the same memory, where it is ours
  };
  using Nodes = std::span<const std::span<const float>>;

  void sum_in(std::size_t circle, Nodes nodes, std::int64_t present, std::span<float> sum);
  std::vector<Source> collect(Circle& circle, Nodes nodes, std::int64_t present,
                              const std::vector<WordRange>& parts);
  std::vector<std::span<const float>> add(const std::vector<Source>& sources, std::int64_t present,
                                          std::span<float> sum) const;
  void give_back(const Circle& circle, const std::vector<WordRange>& parts, std::span<float> sum);

  Group& group_;
  std::int64_t shards_;
  std::vector<ShardRange> ranges_;
  std::vector<Circle> circles_;
};

/// One such sum.
void sum_over_ranks(Group& group, std::span<const std::span<const float>> nodes,
                    std::int64_t shards, std::int64_t present, std::span<float> sum);

}  // namespace segfuse::comm
