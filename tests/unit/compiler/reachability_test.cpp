// Reachability against brute force on random graphs and random merges; run orders against a
// recount.

#include "compiler/segment/reachability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "compiler/segment/run_order.h"
#include "support/slow_build.h"

namespace segfuse::compiler {
namespace {

using Node = Reachability::Node;
using Edges = std::vector<std::pair<Node, Node>>;

Edges random_edges(Rng& rng, Node count, std::uint64_t density) {
  Edges edges;
  for (Node to = 1; to < count; ++to)
    for (Node from = 0; from < to; ++from)
      if (rng.below(100) < density) edges.emplace_back(from, to);
  return edges;
}

/// The graph of groups, searched again for every question.
struct Oracle {
  Edges edges;
  std::vector<Node> group;

  /// All groups that a path of at least one edge leads to, not counting stays inside a group.
  std::set<Node> below(Node from) const {
    std::set<Node> seen;
    std::vector<Node> stack{from};
    while (!stack.empty()) {
      const Node at = stack.back();
      stack.pop_back();
      for (const auto& [a, b] : edges)
        if (group[a] == at && group[b] != at && seen.insert(group[b]).second)
          stack.push_back(group[b]);
    }
    return seen;
  }
  bool acyclic() const {
    for (const Node g : group)
      if (below(g).contains(g)) return false;
    return true;
  }
  Oracle merged(const std::vector<Node>& set) const {
    Oracle other = *this;
    const Node into = *std::min_element(set.begin(), set.end());
    for (Node& g : other.group)
      if (std::find(set.begin(), set.end(), g) != set.end()) g = into;
    return other;
  }
};

void check_everything(const Reachability& reach, const Oracle& oracle) {
  const auto count = static_cast<Node>(oracle.group.size());
  for (Node a = 0; a < count; ++a) {
    EXPECT_EQ(reach.find(a), reach.find(oracle.group[a]));
    const std::set<Node> below = oracle.below(oracle.group[a]);
    for (Node b = 0; b < count; ++b)
      EXPECT_EQ(reach.reaches(a, b), below.contains(oracle.group[b])) << a << " to " << b;
    for (Node b = 0; b < count; ++b)
      EXPECT_EQ(reach.find(a) == reach.find(b), oracle.group[a] == oracle.group[b]);
  }
}

TEST(Reachability, RandomLegalMergesAgreeWithBruteForce) {
  int legal = 0;
  int illegal = 0;
  for (std::uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 90);
    const auto count = static_cast<Node>(2 + rng.below(70));  // more than one word of bits
    Oracle oracle{random_edges(rng, count, 1 + rng.below(12)), std::vector<Node>(count)};
    std::iota(oracle.group.begin(), oracle.group.end(), 0);
    Reachability reach(count, oracle.edges);
    if (seed % 10 == 0) check_everything(reach, oracle);
    for (int step = 0; step < 60; ++step) {
      std::vector<Node> set;
      for (std::uint64_t i = 0; i < 2 + rng.below(3); ++i)
        set.push_back(oracle.group[rng.below(count)]);
      const Oracle next = oracle.merged(set);
      const bool possible = next.acyclic();
      ASSERT_EQ(reach.may_merge(set), possible);
      (possible ? legal : illegal)++;
      if (!possible) continue;
      for (const Node node : set) reach.merge(set[0], node);
      oracle = next;
      ASSERT_TRUE(oracle.acyclic());
    }
    check_everything(reach, oracle);
  }
  EXPECT_GE(legal, 500);
  EXPECT_GE(illegal, 500);
}

TEST(Reachability, TheHullIsTheLeastSetThatMayMerge) {
  for (std::uint64_t seed = 1; seed <= 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 91);
    const auto count = static_cast<Node>(3 + rng.below(20));
    Oracle oracle{random_edges(rng, count, 5 + rng.below(15)), std::vector<Node>(count)};
    std::iota(oracle.group.begin(), oracle.group.end(), 0);
    const Reachability reach(count, oracle.edges);
    for (Node a = 0; a < count; ++a) {
      for (Node b = a + 1; b < count; ++b) {
        const Node pair[] = {a, b};
        std::vector<Node> expected;
        for (Node x = 0; x < count; ++x)
          if (x == a || x == b || (oracle.below(a).contains(x) && oracle.below(x).contains(b)))
            expected.push_back(x);
        EXPECT_EQ(reach.hull(pair, expected.size()), expected);
        EXPECT_TRUE(reach.may_merge(expected));
        EXPECT_TRUE(oracle.merged(expected).acyclic());
        if (expected.size() > 2) {
          EXPECT_TRUE(reach.hull(pair, expected.size() - 1).empty());
        }
      }
    }
  }
}

TEST(Reachability, EdgesAreAddedUnlessTheyCloseACycle) {
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    Rng rng(seed, 92);
    const auto count = static_cast<Node>(2 + rng.below(12));
    Oracle oracle{random_edges(rng, count, 10), std::vector<Node>(count)};
    std::iota(oracle.group.begin(), oracle.group.end(), 0);
    Reachability reach(count, oracle.edges);
    for (int step = 0; step < 20; ++step) {
      const auto from = static_cast<Node>(rng.below(count));
      const auto to = static_cast<Node>(rng.below(count));
      const bool possible = from != to && !oracle.below(to).contains(from);
      ASSERT_EQ(reach.add_edge(from, to), possible);
      if (possible) oracle.edges.emplace_back(from, to);
    }
    check_everything(reach, oracle);
  }
}

// --- run order

std::vector<Lifetime> random_lifetimes(Rng& rng, std::uint32_t count) {
  std::vector<Lifetime> values;
  for (std::uint32_t writer = 0; writer < count; ++writer) {
    for (std::uint64_t v = 0; v < 1 + rng.below(2); ++v) {
      Lifetime value{writer, {}, static_cast<std::int64_t>(rng.below(100)), rng.below(5) == 0};
      for (std::uint32_t reader = writer + 1; reader < count; ++reader)
        if (rng.below(8) == 0) value.readers.push_back(reader);
      values.push_back(value);
    }
  }
  return values;
}

/// Allocates and frees one value after the other.
std::int64_t simulate(const std::vector<std::uint32_t>& order,
                      const std::vector<Lifetime>& values) {
  std::int64_t alive = 0;
  std::int64_t peak = 0;
  std::set<std::uint32_t> ran;
  for (const std::uint32_t group : order) {
    for (const Lifetime& value : values)
      if (value.writer == group) alive += value.bytes;
    peak = std::max(peak, alive);
    ran.insert(group);
    for (const Lifetime& value : values) {
      const bool last = value.readers.empty()
                            ? value.writer == group
                            : std::count(value.readers.begin(), value.readers.end(), group) > 0 &&
                                  std::all_of(value.readers.begin(), value.readers.end(),
                                              [&](std::uint32_t r) { return ran.contains(r); });
      if (last && !value.stays) alive -= value.bytes;
    }
  }
  return peak;
}

TEST(RunOrder, PredictionEqualsARecount) {
  int better = 0;
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(400) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 93);
    const auto count = static_cast<std::uint32_t>(1 + rng.below(25));
    const std::vector<Lifetime> values = random_lifetimes(rng, count);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> before;
    for (std::uint32_t i = 0; i + 1 < count; ++i)
      if (rng.below(10) == 0) before.emplace_back(i, i + 1);
    const RunOrder found = find_run_order(count, values, before);
    ASSERT_EQ(found.order.size(), count);
    std::vector<std::size_t> position(count);
    for (std::size_t i = 0; i < count; ++i) position[found.order[i]] = i;
    for (const Lifetime& value : values)
      for (const std::uint32_t reader : value.readers)
        EXPECT_LT(position[value.writer], position[reader]);
    for (const auto& [first, second] : before) EXPECT_LT(position[first], position[second]);
    EXPECT_EQ(found.peak_bytes, simulate(found.order, values));
    EXPECT_EQ(found.peak_bytes, peak_bytes(found.order, values));
    std::vector<std::uint32_t> given(count);
    std::iota(given.begin(), given.end(), 0);
    EXPECT_LE(found.peak_bytes, simulate(given, values));
    better += found.peak_bytes < simulate(given, values);
  }
  EXPECT_GE(better, static_cast<int>(::segfuse::testing::cases(400) / 10));
}

TEST(RunOrder, AChainNeedsTwoLinks) {
  std::vector<Lifetime> values;
  for (std::uint32_t i = 0; i < 9; ++i) values.push_back({i, {i + 1}, 10, false});
  values.push_back({9, {}, 10, true});
  EXPECT_EQ(find_run_order(10, values, {}).peak_bytes, 20);
}

/// Two long branches from one value: one after the other, not side by side.
TEST(RunOrder, BranchesRunOneAfterTheOther) {
  std::vector<Lifetime> values;
  values.push_back({0, {1, 2}, 1, false});
  values.push_back({1, {3}, 100, false});
  values.push_back({2, {4}, 100, false});
  values.push_back({3, {5}, 1, false});
  values.push_back({4, {5}, 1, false});
  values.push_back({5, {}, 1, true});
  EXPECT_EQ(find_run_order(6, values, {}).peak_bytes, 102);
  std::vector<std::uint32_t> side_by_side{0, 1, 2, 3, 4, 5};
  EXPECT_EQ(peak_bytes(side_by_side, values), 201);
}

}  // namespace
}  // namespace segfuse::compiler
