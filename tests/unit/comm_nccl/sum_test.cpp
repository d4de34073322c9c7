// Sums over ranks on devices: the bits of one rank.

#include <gtest/gtest.h>

#include <atomic>

#include "comm/nccl/nccl_exchange.h"
#include "comm/tree_exchange.h"
#include "support/nccl/nccl_ranks.h"

namespace segfuse::comm {
namespace {

namespace sim = runtime::sim;
using test::first_difference;
using test::kOneStep;
using test::kTwoSteps;
using test::NcclRank;
using test::run_nccl_ranks;

class Sums : public testing::Test {
 protected:
  void SetUp() override { test::fake().reset(); }
  void TearDown() override {
    EXPECT_EQ(test::fake().misuse(), "");
    EXPECT_EQ(test::fake().alive(), 0);
  }
};

NcclOptions steps(std::int64_t one_step_bytes) { return {.one_step_bytes = one_step_bytes}; }

void expect_sums(int ranks, std::int64_t shards, test::Devices& devices, const NcclOptions& options,
                 std::vector<std::int64_t> presents, std::int64_t words, bool in_place = false) {
  run_nccl_ranks(ranks, shards, devices, options, [&](Group& group, NcclRank& rank) {
    for (const std::int64_t present : presents)
      ASSERT_EQ(first_difference(rank.sum(present, words, in_place),
                                 test::sum_of_shards(shards, present, words)),
                "")
          << "rank " << group.rank() << " of " << ranks << ", " << present << " of " << shards
          << ", " << words << " words";
  });
}

class SumsOf : public Sums, public testing::WithParamInterface<int> {};

TEST_P(SumsOf, HaveTheBitsOfOneRank) {
  const int ranks = GetParam();
  for (std::int64_t shards = 1; shards <= 16; shards *= 2) {
    if (ranks > shards) continue;
    std::vector<std::int64_t> presents;
    for (std::int64_t present = 1; present <= shards; ++present) presents.push_back(present);
    const auto devices = test::like_cuda(2);
    expect_sums(ranks, shards, *devices, steps(kOneStep), presents, 301);
    expect_sums(ranks, shards, *devices, steps(kTwoSteps), presents, ranks * kBlockWords + 300);
  }
}

TEST_P(SumsOf, OfAllSizesHaveAllTheirWords) {
  const int ranks = GetParam();
  constexpr std::int64_t block = kBlockWords;
  for (const std::int64_t words :
       {std::int64_t{0}, std::int64_t{1}, block - 1, block, ranks * block, ranks * block + 1,
        (2 * ranks - 1) * block + 7, 2 * ranks * block}) {
    const auto devices = test::like_cuda(1);
    expect_sums(ranks, 8, *devices, steps(kTwoSteps), {8, 3}, words);
    expect_sums(ranks, 8, *devices, steps(kTwoSteps), {8}, words, true);
    if (words < 2 * block) expect_sums(ranks, 8, *devices, steps(kOneStep), {8, 3}, words, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SumsOf, testing::Range(1, 9));

TEST_F(Sums, OnSimulatedDevicesUnderAllSchedules) {
  for (const int ranks : {2, 3})
    for (const auto& schedule : sim::all_schedules(2, 6)) {
      const auto devices = test::simulated(schedule.make);
      SCOPED_TRACE(std::string(schedule.name) + " " + std::to_string(schedule.number));
      expect_sums(ranks, 8, *devices, steps(kOneStep), {8, 5}, 300);
      expect_sums(ranks, 8, *devices, steps(kTwoSteps), {8, 5}, ranks * kBlockWords + 300);
    }
}

TEST_F(Sums, WaitUntilNcclHasLeftInProgress) {
  // However late NCCL puts its work on the stream: what comes behind it on other streams waits.
  for (const int asked : {0, 1, 7, 40}) {
    const auto devices = test::like_cuda(asked);
    run_nccl_ranks(2, 4, *devices, steps(kTwoSteps), [&](Group&, NcclRank& rank) {
      for (const std::int64_t words : {std::int64_t{100}, 2 * kBlockWords, 5 * kBlockWords})
        EXPECT_EQ(first_difference(rank.sum(4, words), test::sum_of_shards(4, 4, words)), "");
    });
  }
}

TEST_F(Sums, GoInOneStepWhereTheyAreShort) {
  const auto devices = test::like_cuda(1);
  run_nccl_ranks(2, 2, *devices, {}, [&](Group&, NcclRank& rank) {
    NcclExchange& exchange = rank.exchange();
    constexpr std::int64_t most = (4 << 20) / 2 / 4;
    EXPECT_EQ(exchange.plan(most, 2).parted, 0);
    EXPECT_EQ(exchange.plan(most + 1, 2).parted, most);
    EXPECT_EQ(exchange.plan(most + 1, 2).rest(), 1);
  });
  // Two nodes of each rank are twice the bytes.
  run_nccl_ranks(3, 8, *devices, {}, [&](Group&, NcclRank& rank) {
    constexpr std::int64_t most = (4 << 20) / 3 / 2 / 4;
    EXPECT_EQ(rank.exchange().plan(most, 8).parted, 0);
    EXPECT_EQ(rank.exchange().plan(most + 1, 8).parted, most / kBlockWords / 3 * 3 * kBlockWords);
  });
}

TEST_F(Sums, KeepTheirMemoryFromStepToStep) {
  const auto devices = test::like_cuda(1);
  run_nccl_ranks(2, 4, *devices, steps(kTwoSteps), [&](Group&, NcclRank& rank) {
    static_cast<void>(rank.sum(4, 4 * kBlockWords));
    const auto of_sums = [&] {
      std::size_t bytes = 0;
      for (const auto& entry : rank.device().heap().snapshot().entries)
        if (entry.label == "sum of shards" && entry.state == runtime::BlockState::kLive)
          bytes += entry.requested;
      return bytes;
    };
    const std::size_t before = of_sums();
    EXPECT_EQ(before, 2 * kBlockWords * sizeof(float));
    for (const std::int64_t words : {4 * kBlockWords, 2 * kBlockWords, std::int64_t{9}})
      static_cast<void>(rank.sum(4, words));
    EXPECT_EQ(of_sums(), before);
  });
  EXPECT_EQ(devices->held(), 0U);
}

TEST_F(Sums, OfManyBucketsAreEnqueuedBeforeTheFirstIsRead) {
  const auto devices = test::like_cuda(2);
  run_nccl_ranks(3, 4, *devices, steps(kTwoSteps), [&](Group&, NcclRank& rank) {
    for (int bucket = 0; bucket < 5; ++bucket) rank.enqueue_sum(4, 3 * kBlockWords + 5);
    rank.wait();
    EXPECT_EQ(first_difference(rank.read_sum(), test::sum_of_shards(4, 4, 3 * kBlockWords + 5)),
              "");
  });
}

TEST_F(Sums, OfWrongNodesAreRefused) {
  const auto with = [](std::int64_t shards, std::int64_t present, std::size_t nodes,
                       std::size_t words) {
    const auto devices = test::simulated(sim::eager);
    run_nccl_ranks(2, shards, *devices, {}, [&](Group&, NcclRank& rank) {
      runtime::OpenDevice& device = rank.device();
      const runtime::StreamId stream = device.timeline().create(device.device());
      const runtime::Buffer node = device.heap().allocate(4 * words, stream);
      const runtime::Buffer sum = device.heap().allocate(32, stream);
      rank.exchange().sum(std::vector<runtime::Buffer>(nodes, node), present, sum);
    });
  };
  EXPECT_THROW(with(4, 4, 2, 8), InternalError);
  EXPECT_THROW(with(4, 4, 0, 8), InternalError);
  EXPECT_THROW(with(4, 4, 1, 7), InternalError);
  EXPECT_THROW(with(4, 0, 1, 8), InternalError);
  EXPECT_THROW(with(4, 5, 1, 8), InternalError);
  EXPECT_THROW(with(1, 1, 1, 8), UsageError);
}

}  // namespace
}  // namespace segfuse::comm
