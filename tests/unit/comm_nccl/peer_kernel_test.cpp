// The kernel over peer memory in the emulator: the bits of one rank, however ranks come and go.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/peer/peer_plan.h"
#include "comm/tree_exchange.h"
#include "support/nccl/nccl_ranks.h"
#include "support/nccl/peer_emulator.h"
#include "support/shard_sums.h"

namespace segfuse::comm {
namespace {

using test::first_difference;
using test::kOneStep;
using test::kTwoSteps;
using test::PeerLaunch;
using test::Values;

/// A sum to be made.
struct Sum {
  std::int64_t present = 1;
  std::int64_t words = 1;
  bool two_steps = false;
  bool in_place = false;
  int shift = 0;  ///< words that memory lies off a multiple of 16 bytes
};

/// Values at an address that is off by some words.
class Shifted {
 public:
  Shifted(const Values& values, int shift)
      : words_(values.size()), memory_((values.size() + 8) / 4 + 1) {
    at_ = memory_.front().word + shift;
    std::ranges::copy(values, at_);
  }
  float* at() const { return at_; }
  Values values() const { return {at_, at_ + words_}; }

 private:
  struct alignas(16) Four {
    float word[4];
  };
  std::size_t words_;
  std::vector<Four> memory_;
  float* at_;
};

/// Ranks with small memory, so that tiles follow one another in it.
class PeerMachine {
 public:
  PeerMachine(int ranks, std::int64_t shards, std::int64_t tile_bytes = 2048)
      : shards_(shards), ranges_(deal_shards(shards, ranks)) {
    options_.tile_bytes = tile_bytes;
    for (int rank = 0; rank < ranks; ++rank) {
      memories_.emplace_back(options_.memory_bytes(static_cast<std::size_t>(ranks)) / 16);
      addresses_.push_back(reinterpret_cast<std::byte*>(memories_.back().data()));
    }
  }
  int ranks() const { return static_cast<int>(ranges_.size()); }
  std::vector<int> all() const {
    std::vector<int> order(ranges_.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  void end() { over_ = 1; }

  /// Makes the sums one after the other and compares them on all ranks.
  void expect(const std::vector<Sum>& sums, const std::vector<int>& order, std::uint64_t seed) {
    struct Made {
      std::vector<Shifted> nodes;
      std::vector<Values> before;
      Shifted sum;
    };
    std::vector<std::vector<Made>> made(ranges_.size());
    std::vector<std::vector<PeerLaunch>> launches(ranges_.size());
    for (std::size_t rank = 0; rank < ranges_.size(); ++rank) {
      made[rank].reserve(sums.size());
      for (const Sum& sum : sums) {
        PeerOptions options = options_;
        options.one_step_bytes = sum.two_steps ? kTwoSteps : kOneStep;
        options.blocks = 3;
        Made& now = made[rank].emplace_back(
            Made{{}, {}, {Values(static_cast<std::size_t>(sum.words), 77), sum.shift}});
        now.before = test::nodes_of_range(ranges_[rank], shards_, sum.present, sum.words);
        std::vector<const float*> at;
        for (const Values& values : now.before) now.nodes.emplace_back(values, sum.shift);
        for (const Shifted& node : now.nodes) at.push_back(node.at());
        const bool in_place = sum.in_place && !at.empty();
        const PeerPlan plan = make_peer_plan(ranges_, shards_, sum.present, sum.words, options);
        float* const to = in_place ? now.nodes.back().at() : now.sum.at();
        launches[rank].push_back(
            {peer_arguments(plan, options, static_cast<int>(rank), addresses_, at, to, &over_),
             plan.blocks});
      }
    }
    test::run_peers(launches, order, seed);
    if (over_ != 0) return;
    for (const int number : order)
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const Sum& sum = sums[i];
        const Made& now = made[static_cast<std::size_t>(number)][i];
        const bool in_place = sum.in_place && !now.nodes.empty();
        ASSERT_EQ(first_difference(in_place ? now.nodes.back().values() : now.sum.values(),
                                   test::sum_of_shards(shards_, sum.present, sum.words)),
                  "")
            << "rank " << number << " of " << ranks() << ", sum " << i << ": " << sum.present
            << " of " << shards_ << " shards, " << sum.words << " words, "
            << (sum.two_steps ? "two steps" : "one step") << ", seed " << seed;
        for (std::size_t k = 0; k + (in_place ? 1 : 0) < now.nodes.size(); ++k)
          ASSERT_EQ(first_difference(now.nodes[k].values(), now.before[k]), "")
              << "a node was changed";
      }
  }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16] = {};
  };
  std::int64_t shards_;
  PeerOptions options_;
  std::vector<ShardRange> ranges_;
  std::vector<std::vector<Unit>> memories_;
  std::vector<std::byte*> addresses_;
  unsigned over_ = 0;
};

class PeerKernelOf : public testing::TestWithParam<int> {};

TEST_P(PeerKernelOf, HasTheBitsOfOneRank) {
  const int ranks = GetParam();
  for (std::int64_t shards = 1; shards <= 16; shards *= 2) {
    if (ranks > shards) continue;
    PeerMachine machine(ranks, shards);
    std::vector<Sum> sums;
    for (std::int64_t present = 1; present <= shards; ++present)
      for (const bool two_steps : {false, true})
        sums.push_back({present, 301, two_steps, present % 2 == 0, static_cast<int>(present % 3)});
    machine.expect(sums, machine.all(), 1);
  }
}

TEST_P(PeerKernelOf, OfAllSizesMakesAllWords) {
  PeerMachine machine(GetParam(), 8);
  std::vector<Sum> sums;
  for (const std::int64_t words : {1, 2, 3, 4, 5, 7, 16, 33, 257, 4096, 6151, 30011})
    for (const bool two_steps : {false, true})
      for (const int shift : {0, 1}) {
        if (words > 6151 && shift > 0) continue;
        sums.push_back({8, words, two_steps, shift > 0, shift});
      }
  machine.expect(sums, machine.all(), 2);
}

/// Ranks that are far ahead of others, in tiles of one sum and in sums that follow one another.
TEST_P(PeerKernelOf, ReusesItsMemoryInTime) {
  const int ranks = GetParam();
  std::vector<Sum> sums;
  for (const std::int64_t words : {9000, 5, 12000, 300, 300, 300, 300, 300, 300, 7001, 40, 9000})
    sums.push_back({8, words, (words + sums.size()) % 3 != 0, false, 0});
  std::vector<std::vector<int>> orders;
  PeerMachine any(ranks, 8);
  orders.push_back(any.all());
  orders.push_back(any.all());
  std::ranges::reverse(orders.back());
  orders.push_back(any.all());
  std::rotate(orders.back().begin(), orders.back().begin() + ranks / 2, orders.back().end());
  for (const auto& order : orders)
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      PeerMachine machine(ranks, 8, 1024);
      machine.expect(sums, order, seed);
      machine.expect(sums, order, seed + 100);  // with the counts of before
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerKernelOf, testing::Range(1, 9));

TEST(PeerKernel, WaitsForARankThatDoesNotCome) {
  for (const bool two_steps : {false, true}) {
    PeerMachine machine(3, 4);
    EXPECT_THROW(machine.expect({{4, 5000, two_steps}}, {0, 2}, 1), std::logic_error);
  }
}

TEST(PeerKernel, EndsWhenAllIsOver) {
  for (const bool two_steps : {false, true}) {
    PeerMachine machine(3, 4);
    machine.end();
    machine.expect({{4, 5000, two_steps}, {4, 5000, two_steps}}, {0, 2}, 1);
  }
}

TEST(PeerPlan, CutsInEqualTilesThatHaveRoom) {
  const PeerOptions options;
  for (const int ranks : {2, 3, 8, 16}) {
    const auto ranges = deal_shards(16, ranks);
    for (std::int64_t words = 1; words < (std::int64_t{1} << 31); words = words * 5 + 3) {
      const PeerPlan plan = make_peer_plan(ranges, 16, 16, words, options);
      const int most = std::ranges::max(plan.nodes);
      EXPECT_EQ(plan.two_steps, most * (ranks - 1) * words * 4 > options.one_step_bytes);
      EXPECT_EQ(plan.part % 4, 0);
      EXPECT_LE(plan.part * most * 4, options.place_bytes(static_cast<std::size_t>(ranks)));
      const std::int64_t tile = plan.part * (plan.two_steps ? ranks : 1);
      const std::int64_t tiles = (words + tile - 1) / tile;
      EXPECT_LE(plan.blocks, words < 2000000 ? options.blocks : options.most_blocks);
      // The blocks' numbers of tiles differ by one at most, and not by a whole round more.
      if (words <= 100000) continue;
      EXPECT_GT(tiles % plan.blocks == 0 ? plan.blocks : tiles % plan.blocks, plan.blocks / 2);
    }
  }
}

TEST(PeerPlan, KnowsWhichNodesAreBalanced) {
  const auto balanced = [](std::vector<unsigned char> additions) {
    PeerPlan plan;
    plan.nodes.assign(additions.size(), 1);
    plan.additions = std::move(additions);
    const std::vector<std::byte*> memory(plan.nodes.size());
    return peer_arguments(plan, {}, 0, memory, {}, nullptr, nullptr).balanced;
  };
  EXPECT_EQ(balanced({0, 1}), 2);
  EXPECT_EQ(balanced({0, 1, 0, 2}), 4);
  EXPECT_EQ(balanced({0, 1, 1, 1}), 0);
  EXPECT_EQ(balanced({0, 0, 1, 2}), 0);
  EXPECT_EQ(balanced({0, 1, 1}), 0);
  EXPECT_EQ(balanced({0}), 0);
}

}  // namespace
}  // namespace segfuse::comm
