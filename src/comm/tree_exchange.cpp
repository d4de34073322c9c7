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

/// What is to be done with nodes that come in order, as indices of nodes.
struct Additions {
  std::vector<TreeSum::Addition> all;  ///< the values of `to` become those of `to` and `from`
  std::vector<std::size_t> left;       ///< which nodes have the sums then
};

Additions additions_of(std::span<const TreeNode> nodes, std::int64_t shards, std::int64_t present) {
  TreeSum tree(shards, present);
  Additions additions;
  std::vector<std::size_t>& in_slot = additions.left;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    in_slot.resize(tree.next_slot());
    in_slot.push_back(node);
    for (const TreeSum::Addition addition : tree.push(nodes[node]))
      additions.all.push_back({in_slot[addition.to], in_slot[addition.from]});
  }
  in_slot.resize(tree.held().size());
  return additions;
}

/// The ranks of each machine, in order; empty where ranks of one machine do not follow one another
/// or machines differ in their number, and where there is nothing to win.
std::vector<std::vector<int>> ranks_of_machines(std::span<const std::int64_t> machines) {
  std::vector<std::vector<int>> all;
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    if (rank == 0 || machines[rank] != machines[rank - 1]) {
      const auto before = machines.first(rank);
      if (std::ranges::find(before, machines[rank]) != before.end()) return {};
      all.emplace_back();
    }
    all.back().push_back(static_cast<int>(rank));
  }
  const auto as_many = [&](const std::vector<int>& ranks) { return ranks.size() == all[0].size(); };
  if (all.size() < 2 || all[0].size() < 2 || !std::ranges::all_of(all, as_many)) return {};
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

TreeExchange::TreeExchange(Group& group, std::int64_t shards,
                           std::span<const std::int64_t> machines)
    : group_(group), shards_(shards), ranges_(deal_shards(shards, group.size())) {
  const auto own = static_cast<std::size_t>(group.rank());
  const std::vector<std::vector<int>> of_machines = ranks_of_machines(machines);
  if (of_machines.empty()) {
    Circle& all = circles_.emplace_back(Circle{{}, ranges_, own});
    for (int rank = 0; rank < group.size(); ++rank) all.ranks.push_back(rank);
    return;
  }
  const std::size_t each = of_machines[0].size();
  Circle within{of_machines[own / each], {}, own % each};
  for (const int rank : within.ranks)
    within.ranges.push_back(ranges_[static_cast<std::size_t>(rank)]);
  Circle across{{}, {}, own / each};
  for (const std::vector<int>& ranks : of_machines) {
    across.ranks.push_back(ranks[own % each]);
    across.ranges.push_back({ranges_[static_cast<std::size_t>(ranks.front())].begin,
                             ranges_[static_cast<std::size_t>(ranks.back())].end});
  }
  circles_ = {std::move(within), std::move(across)};
}

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
  sum_in(0, nodes, present, sum);
}

void TreeExchange::sum_in(std::size_t number, Nodes nodes, std::int64_t present,
                          std::span<float> sum) {
  Circle& circle = circles_[number];
  const auto parts =
      cut_into_parts(static_cast<std::int64_t>(sum.size()), std::ssize(circle.ranks));
  const std::span<float> mine = part_of(sum, parts[circle.own]);
  const std::vector<Source> sources = collect(circle, nodes, present, parts);
  if (number + 1 == circles_.size())
    add(sources, present, mine);
  else
    sum_in(number + 1, add(sources, present, {}), present, mine);
  give_back(circle, parts, sum);
}

std::vector<TreeExchange::Source> TreeExchange::collect(Circle& circle, Nodes nodes,
                                                        std::int64_t present,
                                                        const std::vector<WordRange>& parts) {
  const WordRange mine = parts[circle.own];
  std::vector<Source> sources;
  std::vector<Incoming> in;
  std::vector<Outgoing> out;
  std::vector<std::vector<TreeNode>> theirs;
  std::size_t others = 0;
  for (const ShardRange& range : circle.ranges) {
    theirs.push_back(nodes_of(range, shards_, present));
    others += theirs.back().size();
  }
  circle.received.resize((others - nodes.size()) * mine.size());
  std::span<float> free(circle.received);
  for (std::size_t place = 0; place < circle.ranks.size(); ++place) {
    const int rank = circle.ranks[place];
    for (std::size_t k = 0; k < theirs[place].size(); ++k) {
      if (place == circle.own) {
        sources.push_back({theirs[place][k], part_of(nodes[k], mine), nullptr});
        continue;
      }
      const std::span<float> room = free.first(mine.size());
      free = free.subspan(mine.size());
      sources.push_back({theirs[place][k], room, room.data()});
      in.push_back({rank, std::as_writable_bytes(room)});
    }
    if (place == circle.own) continue;
    for (const auto& node : nodes)
      out.push_back({rank, std::as_bytes(part_of(node, parts[place]))});
  }
  if (circle.ranks.size() > 1) group_.exchange(out, in);
  return sources;
}

/// Adds what there is of each word. The whole sum goes to `sum`; where that is empty, the sums that
/// are left stay where they were made.
std::vector<std::span<const float>> TreeExchange::add(const std::vector<Source>& sources,
                                                      std::int64_t present,
                                                      std::span<float> sum) const {
  std::vector<TreeNode> nodes;
  for (const Source& source : sources) nodes.push_back(source.node);
  const Additions additions = additions_of(nodes, shards_, present);
  const std::size_t all_words = sources.empty() ? 0 : sources.front().values.size();
  std::vector<Step> steps;
  std::vector<Source> at = sources;
  for (const auto [to, from] : additions.all) {
    // Two nodes of one rank are no operands of one addition, or it would have handed over their
    // sum: one of the two was received, or made here.
    float* const place = at[to].writable != nullptr ? at[to].writable : at[from].writable;
    steps.push_back({at[to].values.data(), at[from].values.data(), place});
    at[to] = {{}, {place, all_words}, place};
  }
  std::vector<std::span<const float>> left;
  for (const std::size_t node : additions.left) left.push_back(at[node].values);
  if (!sum.empty() && steps.empty())
    std::memmove(sum.data(), left.front().data(), sum.size_bytes());
  else if (!sum.empty())
    steps.back().place = sum.data();
  // Block by block, so that what one addition makes is near for the next.
  for (std::size_t begin = 0; begin < all_words; begin += kBlockWords) {
    const std::size_t words = std::min(all_words - begin, std::size_t{kBlockWords});
    for (const Step& step : steps)
      add_values({step.left + begin, words}, {step.right + begin, words},
                 {step.place + begin, words});
  }
  return left;
}

void TreeExchange::give_back(const Circle& circle, const std::vector<WordRange>& parts,
                             std::span<float> sum) {
  if (circle.ranks.size() == 1) return;
  const auto own = std::as_bytes(part_of(sum, parts[circle.own]));
  std::vector<Incoming> in;
  std::vector<Outgoing> out;
  for (std::size_t place = 0; place < circle.ranks.size(); ++place) {
    if (place == circle.own) continue;
    out.push_back({circle.ranks[place], own});
    in.push_back({circle.ranks[place], std::as_writable_bytes(part_of(sum, parts[place]))});
  }
  group_.exchange(out, in);
}

void sum_over_ranks(Group& group, std::span<const std::span<const float>> nodes,
                    std::int64_t shards, std::int64_t present, std::span<float> sum) {
  TreeExchange(group, shards).sum(nodes, present, sum);
}

}  // namespace segfuse::comm
