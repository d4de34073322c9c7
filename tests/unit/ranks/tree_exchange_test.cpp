#include "comm/tree_exchange.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_group.h"
#include "support/shard_sums.h"

namespace segfuse::comm {
namespace {

using test::Values;

/// What each rank gets.
std::vector<Values> sums(int ranks, std::int64_t shards, std::int64_t present, std::int64_t words,
                         const std::vector<std::int64_t>& machines = {}) {
  std::vector<Values> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Group& group) {
    TreeExchange exchange(group, shards, machines);
    const auto nodes = test::nodes_of_range(exchange.own_shards(), shards, present, words);
    Values sum(static_cast<std::size_t>(words), 77);
    exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), present, sum);
    const auto again = test::nodes_of_range(exchange.own_shards(), shards, present, words);
    for (std::size_t k = 0; k < nodes.size(); ++k)
      EXPECT_EQ(test::first_difference(nodes[k], again[k]), "") << "a node was changed";
    all[static_cast<std::size_t>(group.rank())] = sum;
  });
  return all;
}

class TreeExchangeOf : public ::testing::TestWithParam<int> {};

TEST_P(TreeExchangeOf, RanksGetTheBitsOfOneRank) {
  const int ranks = GetParam();
  for (std::int64_t shards = 1; shards <= 16; shards *= 2)
    for (std::int64_t present = 1; ranks <= shards && present <= shards; ++present) {
      const std::int64_t words = 300;
      const Values expected = test::sum_of_shards(shards, present, words);
      int rank = 0;
      for (const Values& sum : sums(ranks, shards, present, words))
        ASSERT_EQ(test::first_difference(sum, expected), "")
            << "rank " << rank++ << " of " << ranks << ", " << present << " of " << shards;
    }
}

TEST_P(TreeExchangeOf, PartsOfAllSizesArriveInTheirPlace) {
  const int ranks = GetParam();
  constexpr std::int64_t shards = 8;
  constexpr std::int64_t block = kBlockWords;
  for (const std::int64_t words : {std::int64_t{0}, std::int64_t{1}, block - 1, block, block + 1,
                                   ranks * block, ranks * block + 5, 11 * block - 3})
    for (const std::int64_t present : {std::int64_t{3}, shards}) {
      const Values expected = test::sum_of_shards(shards, present, words);
      for (const Values& sum : sums(ranks, shards, present, words))
        ASSERT_EQ(test::first_difference(sum, expected), "") << ranks << " ranks, " << words;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TreeExchangeOf, ::testing::Range(1, 9));

TEST(TreeExchange, RanksOfSeveralMachinesGetTheBitsOfOneRank) {
  using Machines = std::vector<std::int64_t>;
  for (const Machines& machines :
       {Machines{0, 0, 1, 1}, Machines{7, 7, 7, 3, 3, 3}, Machines{0, 0, 1, 1, 2, 2},
        Machines{0, 0, 1, 1, 2, 2, 3, 3}, Machines{0, 0, 0, 0, 1, 1, 1, 1},
        // As if they were not known: one machine, machines that differ, and ranks in turn.
        Machines{5, 5, 5}, Machines{0, 0, 1}, Machines{0, 1, 2}, Machines{0, 1, 0, 1}}) {
    const auto ranks = static_cast<int>(machines.size());
    for (const std::int64_t shards : {8, 16})
      for (std::int64_t present = 1; present <= shards; ++present)
        for (const std::int64_t words : {std::int64_t{1}, 9 * kBlockWords + 5}) {
          if (words > 1 && present % 5 != 0) continue;
          const Values expected = test::sum_of_shards(shards, present, words);
          for (const Values& sum : sums(ranks, shards, present, words, machines))
            ASSERT_EQ(test::first_difference(sum, expected), "")
                << testing::PrintToString(machines) << ", " << present << " of " << shards;
        }
  }
}

TEST(TreeExchange, RanksOfAMachineAreTogetherIfTheyAreInOrderAndAsManyAsOnOthers) {
  const auto machines = [](const std::vector<std::int64_t>& of_ranks) {
    std::size_t found = 0;
    run_ranks(static_cast<int>(of_ranks.size()), [&](Group& group) {
      const TreeExchange exchange(group, 8, of_ranks);
      if (group.rank() == 0) found = exchange.machines();
    });
    return found;
  };
  EXPECT_EQ(machines({4, 4, 0, 0, 2, 2}), 3U);
  EXPECT_EQ(machines({4, 4, 0, 0, 4, 4}), 1U);
  EXPECT_EQ(machines({0, 0, 0, 1, 1}), 1U);
  EXPECT_EQ(machines({0, 1, 2}), 1U);
  EXPECT_EQ(machines({3, 3, 3}), 1U);
}

/// Bytes that a rank sends to ranks of other machines.
class CountedGroup final : public Group {
 public:
  CountedGroup(Group& group, const std::vector<std::int64_t>& machines)
      : Group(group.rank(), group.size(), "counted"), group_(group), machines_(machines) {}
  std::size_t sent_away = 0;

 protected:
  std::vector<std::string> do_gather(std::string_view mine) override { return group_.gather(mine); }
  void do_broadcast(std::span<std::byte> bytes, int root) override {
    group_.broadcast(bytes, root);
  }
  void do_barrier() override { group_.barrier(); }
  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    for (const Outgoing& one : out)
      if (machine_of(one.to) != machine_of(rank())) sent_away += one.bytes.size();
    group_.exchange(out, in);
  }
  void do_finish() override {}
  void do_poll() override { group_.poll(); }
  void do_abort(std::string_view reason, ExitCode code) override { group_.abort(reason, code); }

 private:
  std::int64_t machine_of(int rank) const { return machines_[static_cast<std::size_t>(rank)]; }

  Group& group_;
  const std::vector<std::int64_t>& machines_;
};

TEST(TreeExchange, AMachineSendsTheBytesOfOneRank) {
  const std::vector<std::int64_t> machines = {0, 0, 0, 0, 1, 1, 1, 1};
  constexpr std::size_t words = 16 * kBlockWords;
  run_ranks(8, [&](Group& group) {
    const auto sent = [&](const std::vector<std::int64_t>& known) {
      CountedGroup counted(group, machines);
      TreeExchange exchange(counted, 8, known);
      Values sum(words);
      const Values node(words, 1);
      exchange.sum(std::vector<std::span<const float>>{node}, 8, sum);
      EXPECT_EQ(sum[words - 1], 8);
      return counted.sent_away;
    };
    // Half of its node and of its part's sum go to each rank of the other machine, or to one.
    EXPECT_EQ(sent({}), words * sizeof(float));
    EXPECT_EQ(sent(machines), words * sizeof(float) / 4);
  });
}

TEST(TreeExchange, TheSumMayTakeThePlaceOfANode) {
  constexpr std::int64_t words = 3 * kBlockWords + 7;
  for (const int ranks : {1, 2, 3, 4}) {
    const Values expected = test::sum_of_shards(4, 4, words);
    const std::vector<std::int64_t> machines =
        ranks == 4 ? std::vector<std::int64_t>{0, 0, 1, 1} : std::vector<std::int64_t>{};
    run_ranks(ranks, [&](Group& group) {
      TreeExchange exchange(group, 4, machines);
      auto nodes = test::nodes_of_range(exchange.own_shards(), 4, 4, words);
      const std::vector<std::span<const float>> views(nodes.begin(), nodes.end());
      exchange.sum(views, 4, nodes.back());
      EXPECT_EQ(test::first_difference(nodes.back(), expected), "");
    });
  }
}

TEST(TreeExchange, OneMakesTheSumsOfManySteps) {
  run_ranks(3, [](Group& group) {
    TreeExchange exchange(group, 8);
    for (const std::int64_t words : {9000, 20, 30000})
      for (const std::int64_t present : {8, 1, 5}) {
        const auto nodes = test::nodes_of_range(exchange.own_shards(), 8, present, words);
        Values sum(static_cast<std::size_t>(words));
        exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), present, sum);
        EXPECT_EQ(test::first_difference(sum, test::sum_of_shards(8, present, words)), "");
      }
  });
}

TEST(TreeExchange, PartsAreCutAtBlocks) {
  const auto ends = [](std::int64_t words, std::int64_t ranks) {
    std::vector<std::int64_t> all;
    for (const WordRange& part : cut_into_parts(words, ranks)) all.push_back(part.end);
    return all;
  };
  using Ends = std::vector<std::int64_t>;
  EXPECT_EQ(ends(0, 2), Ends({0, 0}));
  EXPECT_EQ(ends(5, 3), Ends({0, 0, 5}));
  EXPECT_EQ(ends(4096 * 3, 3), Ends({4096, 8192, 12288}));
  EXPECT_EQ(ends(4096 * 3 + 1, 2), Ends({8192, 12289}));
  for (std::int64_t words = 0; words < 9 * kBlockWords; words += 1117)
    for (std::int64_t ranks = 1; ranks < 12; ++ranks) {
      std::int64_t at = 0;
      for (const WordRange& part : cut_into_parts(words, ranks)) {
        EXPECT_EQ(part.begin, at);
        EXPECT_TRUE(part.end == words || part.end % kBlockWords == 0);
        at = part.end;
      }
      EXPECT_EQ(at, words);
    }
}

TEST(TreeExchange, WrongNodesAreRefused) {
  const auto with = [](std::int64_t shards, std::int64_t present, std::size_t nodes,
                       std::size_t words) {
    const Values node(words);
    Values sum(8);
    run_ranks(2, [&](Group& group) {
      TreeExchange(group, shards)
          .sum(std::vector<std::span<const float>>(nodes, node), present, sum);
    });
  };
  EXPECT_THROW(with(4, 4, 2, 8), InternalError);
  EXPECT_THROW(with(4, 4, 0, 8), InternalError);
  EXPECT_THROW(with(4, 4, 1, 7), InternalError);
  EXPECT_THROW(with(4, 0, 1, 8), InternalError);
  EXPECT_THROW(with(4, 5, 1, 8), InternalError);
  EXPECT_THROW(with(1, 1, 1, 8), UsageError);
}

TEST(TreeExchange, RanksWithOtherSizesAreToldSo) {
  EXPECT_THROW(run_ranks(2,
                         [](Group& group) {
                           const std::size_t words = group.rank() == 0 ? 10 : 11;
                           Values node(words);
                           const std::vector<std::span<const float>> nodes = {node};
                           sum_over_ranks(group, nodes, 2, 2, node);
                         }),
               CommError);
}

}  // namespace
}  // namespace segfuse::comm
