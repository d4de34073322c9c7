#include "comm/tree.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

/// How many nodes of the whole tree a range consists of.
std::int64_t count_nodes(std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  for (; begin < end; ++count) {
    const std::int64_t aligned = begin == 0 ? end : begin & -begin;
    begin += std::min(aligned, static_cast<std::int64_t>(
                                   std::bit_floor(static_cast<std::uint64_t>(end - begin))));
  }
  return count;
}

}  // namespace

bool valid_shards(std::int64_t shards) {
  return shards >= 1 && shards <= kMaxShards &&
         std::has_single_bit(static_cast<std::uint64_t>(shards));
}

std::int64_t least_shards(std::int64_t ranks) {
  if (ranks < 1 || ranks > kMaxShards)
    throw UsageError(
        fmt::format("a training on {} ranks; between 1 and {} are possible", ranks, kMaxShards));
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(ranks)));
}

std::vector<ShardRange> deal_shards(std::int64_t shards, std::int64_t ranks) {
  if (!valid_shards(shards))
    throw UsageError(
        fmt::format("{} shards; expected a power of two from 1 to {}", shards, kMaxShards));
  if (ranks < 1 || ranks > shards)
    throw UsageError(
        fmt::format("{} shards feed {} ranks at most, and there are {}; set training.shards to {} "
                    "and start again, or use fewer ranks",
                    shards, shards, ranks, least_shards(ranks)));
  const std::int64_t most = (shards + ranks - 1) / ranks;
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 2;
  // least[r][begin]: nodes of the ranks from r on, if rank r begins there. The last one is whole.
  const auto size = static_cast<std::size_t>(shards) + 1;
  std::vector<std::vector<std::int64_t>> least(static_cast<std::size_t>(ranks) + 1,
                                               std::vector<std::int64_t>(size, kNever));
  std::vector<std::vector<std::int64_t>> end(static_cast<std::size_t>(ranks),
                                             std::vector<std::int64_t>(size, 0));
  least.back().back() = 0;
  for (std::size_t r = static_cast<std::size_t>(ranks); r-- > 0;) {
    // Where it can begin, as no range is longer than `most`.
    const auto before = static_cast<std::int64_t>(r);
    const std::int64_t first = std::max(before, shards - (ranks - before) * most);
    for (std::int64_t begin = first; begin < std::min(shards, before * most + 1); ++begin)
      for (std::int64_t stop = begin + 1; stop <= std::min(begin + most, shards); ++stop) {
        const std::int64_t rest = least[r + 1][static_cast<std::size_t>(stop)];
        const std::int64_t all = rest == kNever ? kNever : rest + count_nodes(begin, stop);
        if (all < least[r][static_cast<std::size_t>(begin)]) {
          least[r][static_cast<std::size_t>(begin)] = all;
          end[r][static_cast<std::size_t>(begin)] = stop;
        }
      }
  }
  std::vector<ShardRange> ranges;
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
    ranges.push_back({begin, end[r][static_cast<std::size_t>(begin)]});
    begin = ranges.back().end;
  }
  return ranges;
}

TreeSum::TreeSum(std::int64_t shards, std::int64_t present)
    : root_level_(std::countr_zero(static_cast<std::uint64_t>(shards))), present_(present) {}

std::vector<TreeSum::Addition> TreeSum::push(TreeNode node) {
  std::vector<Addition> additions;
  std::size_t slot = held_.size();
  while (node.level < root_level_) {
    const TreeNode sibling{node.level, node.index ^ 1};
    if (!absent(sibling)) {
      if (held_.empty() || held_.back().node != sibling) break;
      additions.push_back({held_.back().slot, slot});
      slot = held_.back().slot;
      held_.pop_back();
    }
    node = {node.level + 1, node.index >> 1};
  }
  held_.push_back({node, slot});
  return additions;
}

std::vector<TreeNode> nodes_of(ShardRange range, std::int64_t shards, std::int64_t present) {
  TreeSum sum(shards, present);
  for (std::int64_t shard = range.begin; shard < std::min(range.end, present); ++shard)
    static_cast<void>(sum.push({0, shard}));
  std::vector<TreeNode> nodes;
  for (const TreeSum::Held& held : sum.held()) nodes.push_back(held.node);
  return nodes;
}

}  // namespace segfuse::comm
