#include "segfuse/semicrf/orders.h"
#include "base/sizes.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "segfuse/error.h"

namespace segfuse::semicrf {
namespace {

void check_orders(const LabelOrders& orders) {
  const std::int64_t count = std::ssize(orders.nodes);
  for (std::int64_t n = 0; n < count; ++n)
    for (const std::int32_t next : orders.nodes[at(n)].next)
      if (next <= n || next >= count)
        throw UsageError(fmt::format(
            "semicrf: node {} of {} is followed by node {}; expected a greater number below {}", n,
            count, next, count));
}

/// Nodes of one label that the same labels lead to, rising.
using Together = std::vector<std::int32_t>;

/// The nodes by their labels, each group sorted and without doubles.
std::map<std::int32_t, Together> by_label(const LabelOrders& orders, const Together& nodes) {
  std::map<std::int32_t, Together> groups;
  for (const std::int32_t n : nodes) groups[orders.nodes[at(n)].label].push_back(n);
  for (auto& [label, group] : groups) {
    std::ranges::sort(group);
    group.erase(std::unique(group.begin(), group.end()), group.end());
  }
  return groups;
}

/// The subset construction. Every edge leads to a group whose least node is greater.
class Subsets {
 public:
  Subsets(const LabelOrders& orders, std::int64_t most) : orders_(orders), most_(most) {}

  LabelOrders find() {
    Together starts;
    for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
      if (orders_.nodes[n].first) starts.push_back(static_cast<std::int32_t>(n));
    for (const auto& [label, group] : by_label(orders_, starts)) reach(group).first = true;
    while (!open_.empty()) {
      const Together group = open_.front();
      open_.pop_front();
      Together after;
      for (const std::int32_t n : group)
        after.insert(after.end(), orders_.nodes[at(n)].next.begin(),
                     orders_.nodes[at(n)].next.end());
      work(std::ssize(after));
      std::vector<Together> next;
      for (auto& [label, followers] : by_label(orders_, after)) {
        reach(followers);
        count(1 + std::ssize(followers));
        next.push_back(std::move(followers));
      }
      found_.at(group).next = std::move(next);
    }
    return numbered();
  }

 private:
  struct State {
    bool first = false;
    std::vector<Together> next;
  };

  State& reach(const Together& group) {
    const auto [place, is_new] = found_.try_emplace(group);
    if (is_new) {
      count(std::ssize(group));
      open_.push_back(group);
    }
    return place->second;
  }
  /// What is kept, in nodes and edges.
  void count(std::int64_t more) {
    size_ += more;
    refuse_beyond(size_, most_);
  }
  /// What is looked at.
  void work(std::int64_t more) {
    constexpr std::int64_t kLooks = 16;  // at each of what may be kept
    looked_at_ += more;
    refuse_beyond(looked_at_, kLooks * most_);
  }
  void refuse_beyond(std::int64_t found, std::int64_t most) const {
    if (found > most)
      throw UsageError(fmt::format(
          "semicrf: the orders of labels have more than {} nodes and edges once each order has one "
          "path; expected a shorter order, or fewer variants and optional labels in a row",
          most_));
  }
  /// Groups are ordered by their least nodes, so numbers rise along edges.
  LabelOrders numbered() const {
    std::map<Together, std::int32_t> number;
    for (const auto& [group, state] : found_)
      number.emplace(group, static_cast<std::int32_t>(number.size()));
    LabelOrders out;
    for (const auto& [group, state] : found_) {
      LabelOrders::Node& node = out.nodes.emplace_back();
      node.label = orders_.nodes[at(group.front())].label;
      node.first = state.first;
      node.last =
          std::ranges::any_of(group, [&](std::int32_t n) { return orders_.nodes[at(n)].last; });
      for (const Together& next : state.next) node.next.push_back(number.at(next));
      std::ranges::sort(node.next);
    }
    return out;
  }

  const LabelOrders& orders_;
  std::int64_t most_;
  std::int64_t looked_at_ = 0;
  std::int64_t size_ = 0;
  std::map<Together, State> found_;
  std::deque<Together> open_;
};

}  // namespace

LabelOrders one_path_each(const LabelOrders& orders, std::int64_t most) {
  check_orders(orders);
  return Subsets(orders, most).find();
}

FrameRange frames_of(const LabelOrders& orders, std::span<const std::int64_t> shortest,
                     std::span<const std::int64_t> longest, std::span<const PieceRule> pieces) {
  check_orders(orders);
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::int64_t count = std::ssize(orders.nodes);
  std::vector<FrameRange> from(at(count), {kNone, 0});  // of paths from each node to an end
  FrameRange all{kNone, 0};
  const auto widen = [](FrameRange& range, const FrameRange& other) {
    range.fewest = std::min(range.fewest, other.fewest);
    range.most = range.most < 0 || other.most < 0 ? -1 : std::max(range.most, other.most);
  };
  for (std::int64_t n = count - 1; n >= 0; --n) {
    const LabelOrders::Node& node = orders.nodes[at(n)];
    FrameRange rest{kNone, 0};
    if (node.last) rest = {0, 0};
    for (const std::int32_t next : node.next)
      if (from[at(next)].fewest != kNone) widen(rest, from[at(next)]);
    if (rest.fewest == kNone) continue;
    const bool endless = !pieces.empty() && pieces[at(node.label)] != PieceRule::kOne;
    FrameRange& mine = from[at(n)];
    mine.fewest = rest.fewest + shortest[at(node.label)];
    mine.most = rest.most < 0 || endless ? -1 : rest.most + longest[at(node.label)];
    if (node.first) widen(all, mine);
  }
  return all.fewest == kNone ? FrameRange{} : all;
}

}  // namespace segfuse::semicrf
