#include "comm/tree_exchange.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_group.h"
#include "support/shard_sums.h"

namespace segfuse::comm {
namespace {

using test::Values;

/// What each rank gets.
std::vector<Values> sums(int ranks, std::int64_t shards, std::int64_t present, std::int64_t words) {
  std::vector<Values> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Group& group) {
    TreeExchange exchange(group, shards);
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

TEST(TreeExchange, TheSumMayTakeThePlaceOfANode) {
  constexpr std::int64_t words = 3 * kBlockWords + 7;
  for (const int ranks : {1, 2, 3}) {
    const Values expected = test::sum_of_shards(4, 4, words);
    run_ranks(ranks, [&](Group& group) {
      TreeExchange exchange(group, 4);
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
