#include "comm/tree_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "comm/add.h"

namespace segfuse::comm {
namespace {

std::span<const float> part_of(std::span<const float> values, WordRange part) {
  return values.subspan(static_cast<std::size_t>(part.begin), part.size());
}

std::span<float> part_of(std::span<float> values, WordRange part) {
  return values.subspan(static_cast<std::size_t>(part.begin), part.size());
}

struct Step {
  const float* left;
  const float* right;
  float* place;
};

/// The additions of a sum over `nodes`, in order, as indices of nodes: the values of `to` become
/// those of `to` plus those of `from`.
std::vector<TreeSum::Addition> additions_of(std::span<const TreeNode> nodes, std::int64_t shards,
                                            std::int64_t present) {
  TreeSum tree(shards, present);
  std::vector<std::size_t> in_slot;
  std::vector<TreeSum::Addition> all;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    in_slot.resize(tree.next_slot());
    in_slot.push_back(node);
    for (const TreeSum::Addition addition : tree.push(nodes[node]))
      all.push_back({in_slot[addition.to], in_slot[addition.from]});
  }
  return all;
}

}  // namespace

std::vector<WordRange> cut_into_parts(std::int64_t words, std::int64_t ranks) {
  const std::int64_t blocks = (words + kBlockWords - 1) / kBlockWords;
  std::vector<WordRange> parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    parts.push_back({std::min(words, blocks * rank / ranks * kBlockWords),
                     std::min(words, blocks * (rank + 1) / ranks * kBlockWords)});
  return parts;
}

TreeExchange::TreeExchange(Group& group, std::int64_t shards)
    : group_(group), shards_(shards), ranges_(deal_shards(shards, group.size())) {}

ShardRange TreeExchange::own_shards() const {
  return ranges_[static_cast<std::size_t>(group_.rank())];
}

void TreeExchange::sum(std::span<const std::span<const float>> nodes, std::int64_t present,
                       std::span<float> sum) {
  if (present < 1 || present > shards_)
    throw InternalError(fmt::format("a sum of {} of {} shards", present, shards_));
  const std::size_t own = nodes_of(own_shards(), shards_, present).size();
  if (nodes.size() != own)
    throw InternalError(fmt::format("rank {} hands over {} nodes; its shards make {}",
                                    group_.rank(), nodes.size(), own));
  for (const auto& node : nodes)
    if (node.size() != sum.size())
      throw InternalError(
          fmt::format("a node of {} words in a sum of {}", node.size(), sum.size()));
  const auto parts = cut_into_parts(static_cast<std::int64_t>(sum.size()), group_.size());
  const std::vector<Source> sources = collect(nodes, present, parts);
  add(sources, present, part_of(sum, parts[static_cast<std::size_t>(group_.rank())]));
  give_back(parts, sum);
}

std::vector<TreeExchange::Source> TreeExchange::collect(
    std::span<const std::span<const float>> nodes, std::int64_t present,
    const std::vector<WordRange>& parts) {
  const WordRange mine = parts[static_cast<std::size_t>(group_.rank())];
  std::vector<Source> sources;
  std::vector<Incoming> in;
  std::vector<Outgoing> out;
  std::vector<std::vector<TreeNode>> theirs;
  std::size_t others = 0;
  for (const ShardRange& range : ranges_) {
    theirs.push_back(nodes_of(range, shards_, present));
    others += theirs.back().size();
  }
  received_.resize((others - nodes.size()) * mine.size());
  std::span<float> free(received_);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::vector<TreeNode>& of_rank = theirs[static_cast<std::size_t>(rank)];
    for (std::size_t k = 0; k < of_rank.size(); ++k) {
      if (rank == group_.rank()) {
        sources.push_back({of_rank[k], part_of(nodes[k], mine), nullptr});
        continue;
      }
      const std::span<float> place = free.first(mine.size());
      free = free.subspan(mine.size());
      sources.push_back({of_rank[k], place, place.data()});
      in.push_back({rank, std::as_writable_bytes(place)});
    }
    if (rank == group_.rank()) continue;
    for (const auto& node : nodes)
      out.push_back({rank, std::as_bytes(part_of(node, parts[static_cast<std::size_t>(rank)]))});
  }
  if (group_.size() > 1) group_.exchange(out, in);
  return sources;
}

void TreeExchange::add(const std::vector<Source>& sources, std::int64_t present,
                       std::span<float> sum) const {
  std::vector<TreeNode> nodes;
  for (const Source& source : sources) nodes.push_back(source.node);
  const std::vector<TreeSum::Addition> additions = additions_of(nodes, shards_, present);
  if (additions.empty()) {
    if (!sum.empty()) std::memmove(sum.data(), sources.front().values.data(), sum.size_bytes());
    return;
  }
  std::vector<Step> steps;
  std::vector<Source> at = sources;
  for (const auto [to, from] : additions) {
    // Two nodes of one rank are no operands of one addition, or it would have handed over their
    // sum: one of the two was received, or made here.
    float* const place = at[to].writable != nullptr ? at[to].writable : at[from].writable;
    steps.push_back({at[to].values.data(), at[from].values.data(), place});
    at[to] = {{}, {place, sum.size()}, place};
  }
  steps.back().place = sum.data();
  // Block by block, so that what one addition makes is near for the next.
  for (std::size_t begin = 0; begin < sum.size(); begin += kBlockWords) {
    const std::size_t words = std::min(sum.size() - begin, std::size_t{kBlockWords});
    for (const Step& step : steps)
      add_values({step.left + begin, words}, {step.right + begin, words},
                 {step.place + begin, words});
  }
}

void TreeExchange::give_back(const std::vector<WordRange>& parts, std::span<float> sum) {
  if (group_.size() == 1) return;
  const auto own = std::as_bytes(part_of(sum, parts[static_cast<std::size_t>(group_.rank())]));
  std::vector<Incoming> in;
  std::vector<Outgoing> out;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) continue;
    out.push_back({rank, own});
    in.push_back(
        {rank, std::as_writable_bytes(part_of(sum, parts[static_cast<std::size_t>(rank)]))});
  }
  group_.exchange(out, in);
}

void sum_over_ranks(Group& group, std::span<const std::span<const float>> nodes,
                    std::int64_t shards, std::int64_t present, std::span<float> sum) {
  TreeExchange(group, shards).sum(nodes, present, sum);
}

}  // namespace segfuse::comm
