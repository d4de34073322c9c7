#include "comm/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

/// The recursion that the order of additions is defined by.
std::optional<float> sum_below(TreeNode node, std::span<const float> present) {
  if (node.index << node.level >= static_cast<std::int64_t>(present.size())) return {};
  if (node.level == 0) return present[static_cast<std::size_t>(node.index)];
  const auto left = sum_below({node.level - 1, node.index * 2}, present);
  const auto right = sum_below({node.level - 1, node.index * 2 + 1}, present);
  if (!right) return left;
  return *left + *right;
}

std::vector<float> awkward_values(std::int64_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float some[] = {-0.0F, 1e8F,   -1e8F,   3.14159F, 1e-40F, -7.25F, 0.1F, -1e-3F,
                        2e30F, -2e30F, 1.0e-8F, 0.0F,     5e-45F, 12.5F,  -0.3F};
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(i == 37 ? kInfinity : some[static_cast<std::size_t>(i * 7 % 15)]);
  return values;
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// What ranks of the given shards add among themselves, and the owner of the word from their nodes.
float sum_dealt_out(std::span<const ShardRange> ranges, std::int64_t shards,
                    std::span<const float> present) {
  const auto count = static_cast<std::int64_t>(present.size());
  const auto add = [](TreeSum& sum, std::vector<float>& slots, TreeNode node, float value) {
    if (slots.size() <= sum.next_slot()) slots.resize(sum.next_slot() + 1);
    slots[sum.next_slot()] = value;
    for (const TreeSum::Addition a : sum.push(node)) slots[a.to] += slots[a.from];
  };
  TreeSum all(shards, count);
  std::vector<float> totals;
  for (const ShardRange& range : ranges) {
    TreeSum own(shards, count);
    std::vector<float> slots;
    for (std::int64_t s = range.begin; s < std::min(range.end, count); ++s)
      add(own, slots, {0, s}, present[static_cast<std::size_t>(s)]);
    EXPECT_EQ(nodes_of(range, shards, count).size(), own.held().size());
    for (const TreeSum::Held& held : own.held()) add(all, totals, held.node, slots[held.slot]);
  }
  EXPECT_EQ(all.held().size(), 1U);
  EXPECT_EQ(all.held()[0].slot, 0U);
  return totals[0];
}

TEST(Tree, AnyRanksMakeTheBitsOfTheRecursion) {
  for (std::int64_t shards = 1; shards <= 64; shards *= 2)
    for (std::int64_t ranks = 1; ranks <= shards; ++ranks) {
      const std::vector<ShardRange> ranges = deal_shards(shards, ranks);
      for (std::int64_t present = 1; present <= shards; ++present) {
        const std::vector<float> values = awkward_values(present);
        const TreeNode root{std::countr_zero(static_cast<std::uint64_t>(shards)), 0};
        ASSERT_EQ(bits(sum_dealt_out(ranges, shards, values)), bits(*sum_below(root, values)))
            << shards << " shards, " << present << " present, " << ranks << " ranks";
      }
    }
}

TEST(Tree, AnAbsentShardIsNoOperand) {
  const std::vector<float> values = {-0.0F};
  EXPECT_EQ(bits(sum_dealt_out(deal_shards(4, 2), 4, values)), bits(-0.0F));
  const std::vector<float> three = {-0.0F, -0.0F, -0.0F};
  EXPECT_EQ(bits(sum_dealt_out(deal_shards(4, 3), 4, three)), bits(-0.0F));
}

TEST(Tree, RangesAreConsecutiveAndEven) {
  for (std::int64_t shards = 1; shards <= 64; shards *= 2)
    for (std::int64_t ranks = 1; ranks <= shards; ++ranks) {
      std::int64_t at = 0;
      for (const ShardRange& range : deal_shards(shards, ranks)) {
        ASSERT_EQ(range.begin, at);
        ASSERT_GT(range.end, range.begin);
        ASSERT_LE(range.end - range.begin, (shards + ranks - 1) / ranks);
        at = range.end;
      }
      ASSERT_EQ(at, shards);
    }
}

/// Nodes of a range never overlap, cover its present shards, and are the largest there can be.
TEST(Tree, NodesCoverTheirRange) {
  for (std::int64_t begin = 0; begin < 32; ++begin)
    for (std::int64_t end = begin + 1; end <= 32; ++end) {
      std::int64_t at = begin;
      const std::vector<TreeNode> nodes = nodes_of({begin, end}, 32, 32);
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        ASSERT_EQ(nodes[i].index << nodes[i].level, at);
        at += std::int64_t{1} << nodes[i].level;
        if (i > 0) {
          const TreeNode sibling{nodes[i].level, nodes[i].index ^ 1};
          ASSERT_FALSE(nodes[i - 1] == sibling);
        }
      }
      ASSERT_EQ(at, end);
    }
}

/// A power of two of ranks hands over one node each; the table of the design for 3 of 8.
TEST(Tree, FewNodesAreHandedOver) {
  const auto handed_over = [](std::int64_t shards, std::int64_t ranks) {
    std::size_t count = 0;
    for (const ShardRange& range : deal_shards(shards, ranks))
      count += nodes_of(range, shards, shards).size();
    return count;
  };
  for (std::int64_t ranks = 1; ranks <= 64; ranks *= 2)
    EXPECT_EQ(handed_over(64, ranks), static_cast<std::size_t>(ranks));
  EXPECT_EQ(handed_over(8, 3), 5U);
  EXPECT_EQ(handed_over(256, 24), 72U);
  EXPECT_LE(handed_over(4096, 1500), 4500U);
  EXPECT_EQ(deal_shards(8, 3), (std::vector<ShardRange>{{0, 2}, {2, 5}, {5, 8}}));
}

TEST(Tree, TheSumsOfManyShardsTakeFewSlots) {
  TreeSum sum(4096, 4096);
  std::size_t most = 0;
  for (std::int64_t shard = 0; shard < 4096; ++shard) {
    most = std::max(most, sum.next_slot());
    static_cast<void>(sum.push({0, shard}));
  }
  EXPECT_LE(most + 1, 13U);
}

TEST(Tree, NumbersThatAreNotPossibleAreRefused) {
  EXPECT_TRUE(valid_shards(1));
  EXPECT_TRUE(valid_shards(4096));
  for (const std::int64_t wrong : {-2, 0, 3, 12, 8192}) EXPECT_FALSE(valid_shards(wrong)) << wrong;
  EXPECT_EQ(least_shards(1), 1);
  EXPECT_EQ(least_shards(5), 8);
  EXPECT_THROW(static_cast<void>(least_shards(5000)), UsageError);
  EXPECT_THROW(static_cast<void>(deal_shards(6, 2)), UsageError);
  try {
    static_cast<void>(deal_shards(2, 3));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("2 shards feed 2 ranks at most"));
    EXPECT_THAT(error.what(), testing::HasSubstr("training.shards to 4"));
  }
}

}  // namespace
}  // namespace segfuse::comm
