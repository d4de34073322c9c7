#include "runtime/check/access_history.h"

#include <algorithm>
#include <iterator>

namespace segfuse::runtime {

void join(VectorClock& clock, const VectorClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

AccessHistory::Nodes::const_iterator AccessHistory::first_in(Range range) const {
  auto node = nodes_.upper_bound(range.first);
  if (node != nodes_.begin() && std::prev(node)->second.end > range.first) --node;
  return node;
}

void AccessHistory::conflicts(Range range, bool write, const VectorClock& clock,
                              const std::function<void(const PastUse&, Range)>& report) const {
  for (auto node = first_in(range); node != nodes_.end() && node->first < range.second; ++node) {
    const Range part = {std::max(range.first, node->first),
                        std::min(range.second, node->second.end)};
    for (const PastUse& use : node->second.uses)
      if ((write || use.write) && !use.before(clock)) report(use, part);
  }
}

/// Makes `at` a border if it lies within a node.
void AccessHistory::split(std::uintptr_t at) {
  auto node = nodes_.upper_bound(at);
  if (node == nodes_.begin()) return;
  --node;
  if (node->first == at || node->second.end <= at) return;
  Node rest = node->second;
  node->second.end = at;
  nodes_.emplace_hint(std::next(node), at, std::move(rest));
}

void AccessHistory::add(Range range, const PastUse& use, const VectorClock& clock,
                        const VectorClock& host) {
  if (range.first >= range.second) return;
  split(range.first);
  split(range.second);
  std::uintptr_t at = range.first;
  while (at < range.second) {
    auto node = nodes_.lower_bound(at);
    if (node == nodes_.end() || node->first > at) {
      const std::uintptr_t end =
          node == nodes_.end() ? range.second : std::min(node->first, range.second);
      node = nodes_.emplace_hint(node, at, Node{end, {}});
    }
    std::vector<PastUse>& uses = node->second.uses;
    std::erase_if(uses, [&](const PastUse& past) {
      return past.before(host) || ((use.write || !past.write) && past.before(clock));
    });
    uses.push_back(use);
    at = node->second.end;
    merge(node);
  }
  if (const auto next = nodes_.find(range.second); next != nodes_.end()) merge(next);
  if (nodes_.size() > sweep_at_) sweep(host);
}

/// Joins a node with the one before it if they touch and have the same uses.
AccessHistory::Nodes::iterator AccessHistory::merge(Nodes::iterator node) {
  if (node == nodes_.begin()) return node;
  const auto former = std::prev(node);
  if (former->second.end != node->first || former->second.uses != node->second.uses) return node;
  former->second.end = node->second.end;
  nodes_.erase(node);
  return former;
}

void AccessHistory::forget(Range range) {
  split(range.first);
  split(range.second);
  nodes_.erase(nodes_.lower_bound(range.first), nodes_.lower_bound(range.second));
}

void AccessHistory::forget_before(Range range, const VectorClock& clock) {
  split(range.first);
  split(range.second);
  const auto end = nodes_.lower_bound(range.second);
  for (auto node = nodes_.lower_bound(range.first); node != end;) {
    std::erase_if(node->second.uses, [&](const PastUse& use) { return use.before(clock); });
    node = node->second.uses.empty() ? nodes_.erase(node) : std::next(node);
  }
}

void AccessHistory::sweep(const VectorClock& host) {
  std::erase_if(nodes_, [&](const auto& node) {
    return std::ranges::all_of(node.second.uses,
                               [&](const PastUse& use) { return use.before(host); });
  });
  sweep_at_ = std::max<std::size_t>(1024, 2 * nodes_.size());
}

}  // namespace segfuse::runtime
