#pragma once
// The order in which the shards of a step are added: the balanced binary tree over their numbers.
// It depends on the shards alone, never on who computed them, so that one rank and a thousand make
// the same bits.
//
// A step has `shards` shards, a power of two. Only the first `present` of them are there (the last
// batch of an epoch is short); an absent shard is no operand at all: adding 0 in its place would
// turn -0 into +0.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace segfuse::comm {

/// The sum of the shards [index << level, (index + 1) << level); a shard is a node of level 0.
struct TreeNode {
  int level = 0;
  std::int64_t index = 0;
  bool operator==(const TreeNode&) const = default;
};

/// Shards [begin, end).
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const ShardRange&) const = default;
};

inline constexpr std::int64_t kMaxShards = 4096;

/// Whether there may be so many shards: a power of two, at most kMaxShards.
bool valid_shards(std::int64_t shards);
/// The least valid number of shards that feeds `ranks` ranks.
std::int64_t least_shards(std::int64_t ranks);

/// The shards of each rank, in the order of ranks: consecutive ranges, none empty, the largest as
/// small as it can be, and then as few nodes in all as there can be. UsageError for more ranks than
/// shards.
std::vector<ShardRange> deal_shards(std::int64_t shards, std::int64_t ranks);

/// Says which sums to make while nodes come in the order of their shards. The values lie in slots,
/// which are the caller's: as many as next_slot() asks for.
class TreeSum {
 public:
  /// The values of slot `to` become those of `to` plus those of `from`.
  struct Addition {
    std::size_t to = 0;
    std::size_t from = 0;
    bool operator==(const Addition&) const = default;
  };
  struct Held {
    TreeNode node;
    std::size_t slot = 0;
  };

  TreeSum(std::int64_t shards, std::int64_t present);

  /// Where the values of the next node are to be.
  std::size_t next_slot() const { return held_.size(); }
  /// `node` lies in next_slot(). What is to be added now, in order.
  std::vector<Addition> push(TreeNode node);
  /// The sums that are left; one, in slot 0, when all present shards have come.
  const std::vector<Held>& held() const { return held_; }

 private:
  bool absent(TreeNode node) const { return node.index << node.level >= present_; }

  int root_level_;
  std::int64_t present_;
  std::vector<Held> held_;
};

/// The nodes that the present shards of a range add up to: what a rank hands over.
std::vector<TreeNode> nodes_of(ShardRange range, std::int64_t shards, std::int64_t present);

}  // namespace segfuse::comm
