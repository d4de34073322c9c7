// The same on GPUs with the real NCCL: SEGFUSE_TEST_DEVICE=cuda, and SEGFUSE_NCCL where the loader
// does not find it.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "comm/nccl/add_nodes.h"
#include "comm/nccl/nccl_exchange.h"
#include "comm/threads/thread_group.h"
#include "comm/tree_exchange.h"
#include "support/nccl/host_kernels.h"
#include "support/nccl/nccl_ranks.h"

namespace segfuse::comm {
namespace {

using test::first_difference;
using test::NcclRank;
using test::run_nccl_ranks;
using test::Values;

/// The sum of all shards, each a node, by the kernel alone; `shift`: words that nodes lie off a
/// multiple of 16 bytes.
Values add_on(runtime::OpenDevice& device, std::int64_t shards, std::int64_t present,
              std::int64_t words, std::int64_t shift) {
  runtime::Executor& executor = device.executor();
  const runtime::StreamId stream = device.timeline().create(device.device());
  const std::size_t each = static_cast<std::size_t>(words + 4) / 4 * 4 + 4;
  const std::size_t bytes = each * sizeof(float) * static_cast<std::size_t>(present + 1);
  std::byte* const staged = device.device().allocate_pinned(bytes);
  auto* const host = reinterpret_cast<float*>(staged);
  const runtime::Buffer memory = device.heap().allocate(bytes, stream);
  std::vector<const float*> at;
  const auto place = [&](std::int64_t k) {
    return static_cast<std::size_t>(k) * each + static_cast<std::size_t>(shift);
  };
  for (std::int64_t k = 0; k < present; ++k) {
    const Values values = test::values_of_shard(k, words);
    std::memcpy(host + place(k), values.data(), values.size() * sizeof(float));
    at.push_back(reinterpret_cast<const float*>(memory.address()) + place(k));
  }
  executor.copy_in(stream, memory, 0, staged, bytes);
  const AddNodes kernel(device.kernels());
  // Each rank has one shard, so each node is a shard.
  const auto additions = nodes_of_ranks(deal_shards(shards, shards), shards, present).additions;
  auto* const sum = reinterpret_cast<float*>(memory.address()) + place(present);
  executor.launch(
      stream,
      {"add", [&](runtime::StreamHandle on) { kernel.launch(on, at, additions, words, sum); }},
      {writes(memory)});
  executor.copy_out(stream, staged, memory, 0, bytes);
  device.timeline().synchronize(stream);
  Values got(host + place(present), host + place(present) + words);
  device.timeline().retire(stream);
  device.device().release_pinned(staged, bytes);
  return got;
}

void expect_additions(runtime::OpenDevice& device) {
  for (const std::int64_t shards : {1, 2, 8, 64, 256})
    for (const std::int64_t present : {shards, shards / 2 + 1, std::int64_t{1}})
      for (const std::int64_t words : {1, 3, 1029})
        for (const std::int64_t shift : {0, 1})
          ASSERT_EQ(first_difference(add_on(device, shards, present, words, shift),
                                     test::sum_of_shards(shards, present, words)),
                    "")
              << present << " of " << shards << " shards, " << words << " words";
}

TEST(AddNodes, HasTheBitsOfTheHost) {
  runtime::OpenDevice device(std::make_unique<runtime::sim::SimDevice>(runtime::sim::lazy()),
                             test::make_host_kernels());
  expect_additions(device);
}

TEST(AddNodes, HasTheBitsOfTheHostOnAGpu) {
  std::string reason;
  const auto devices = test::real_gpus(1, reason);
  if (!devices) GTEST_SKIP() << reason;
  expect_additions(*devices->open(0));
}

void expect_sums_on_gpus(int ranks) {
  std::string reason;
  const auto devices = test::real_gpus(ranks, reason);
  if (!devices) GTEST_SKIP() << reason;
  for (int run = 0; run < 2; ++run)  // the second has new communicators in the same process
    for (const std::int64_t one_step_bytes : {std::int64_t{0}, std::int64_t{512} << 10})
      run_nccl_ranks(
          ranks, 8, *devices, {.one_step_bytes = one_step_bytes},
          [&](Group& group, NcclRank& rank) {
            for (const std::int64_t words : {std::int64_t{1}, std::int64_t{300},
                                             ranks * kBlockWords + 5, std::int64_t{1} << 20})
              for (const std::int64_t present : {8, 5, 1})
                ASSERT_EQ(first_difference(rank.sum(present, words),
                                           test::sum_of_shards(8, present, words)),
                          "")
                    << "rank " << group.rank() << ", " << words << " words, " << present
                    << " of 8 shards";
          });
}

TEST(NcclOnGpus, OneRankGetsItsBits) { expect_sums_on_gpus(1); }
TEST(NcclOnGpus, TwoRanksGetTheBitsOfOne) { expect_sums_on_gpus(2); }

void expect_peer_sums_on_gpus(int ranks) {
  std::string reason;
  const auto devices = test::real_gpus(ranks, reason);
  if (!devices) GTEST_SKIP() << reason;
  const std::int64_t many = ranks * kBlockWords + 5;
  for (const PeerOptions& options :
       {PeerOptions{}, PeerOptions{.one_step_bytes = 0},
        PeerOptions{.blocks = 3, .one_step_bytes = 0, .tile_bytes = 4096}})
    test::run_peer_ranks(ranks, 8, *devices, options, [&](Group& group, NcclRank& rank) {
      for (int run = 0; run < 3; ++run)
        for (const std::int64_t words : {std::int64_t{1}, std::int64_t{300}, many,
                                         std::int64_t{1} << 20, std::int64_t{3000001}})
          for (const std::int64_t present : {8, 5, 1})
            ASSERT_EQ(first_difference(rank.sum(present, words, run == 1),
                                       test::sum_of_shards(8, present, words)),
                      "")
                << "rank " << group.rank() << ", " << words << " words, " << present
                << " of 8 shards";
    });
}

TEST(PeersOnGpus, OneRankGetsItsBits) { expect_peer_sums_on_gpus(1); }
TEST(PeersOnGpus, TwoRanksGetTheBitsOfOne) { expect_peer_sums_on_gpus(2); }
TEST(PeersOnGpus, FourRanksGetTheBitsOfOne) { expect_peer_sums_on_gpus(4); }

TEST(PeersOnGpus, ARankThatLeavesEndsTheKernelsOfTheOthers) {
  std::string reason;
  const auto devices = test::real_gpus(2, reason);
  if (!devices) GTEST_SKIP() << reason;
  for (int run = 0; run < 4; ++run)
    EXPECT_THROW(test::run_peer_ranks(2, 4, *devices, {.one_step_bytes = 0},
                                      [&](Group& group, NcclRank& rank) {
                                        static_cast<void>(rank.sum(4, 100000));
                                        if (group.rank() == run % 2) throw DataError("no data");
                                        rank.enqueue_sum(4, 100000);
                                        rank.wait();
                                      }),
                 DataError);
  test::run_peer_ranks(2, 4, *devices, {}, [&](Group&, NcclRank& rank) {
    EXPECT_EQ(first_difference(rank.sum(4, 1000), test::sum_of_shards(4, 4, 1000)), "");
  });
}

TEST(NcclOnGpus, AnAbortLeavesADeviceThatWorks) {
  std::string reason;
  const auto devices = test::real_gpus(1, reason);
  if (!devices) GTEST_SKIP() << reason;
  for (int run = 0; run < 2; ++run)
    EXPECT_THROW(run_ranks(1,
                           [&](Group& group) {
                             NcclRank rank(group, 4, *devices);
                             static_cast<void>(rank.sum(4, 1000));
                             rank.exchange().abort("the test wants it");
                             rank.enqueue_sum(4, 1000);
                           }),
                 CommError);
  run_nccl_ranks(1, 4, *devices, {}, [&](Group&, NcclRank& rank) {
    EXPECT_EQ(first_difference(rank.sum(4, 1000), test::sum_of_shards(4, 4, 1000)), "");
  });
}

TEST(NcclOnGpus, ARankThatNeverComesIsNotWaitedForLongerThanTheLimit) {
  std::string reason;
  const auto devices = test::real_gpus(1, reason);
  if (!devices) GTEST_SKIP() << reason;
  EXPECT_THROW(
      run_ranks(
          2,
          [&](Group& group) {
            if (group.rank() == 0)
              NcclRank(group, 4, *devices, {.limit = std::chrono::milliseconds(300)}).finish();
            // What the other one hears before it would start.
            static_cast<void>(group.gather(devices->api().version));
            std::array<std::byte, 128> id;
            group.broadcast(id, 0);
            group.barrier();
          }),
      CommError);
}

/// Times of one sum on one rank, printed: the host's for one sum, and from the first of many to the
/// last.
TEST(NcclOnGpus, Times) {
  std::string reason;
  const auto devices = test::real_gpus(1, reason);
  if (!devices) GTEST_SKIP() << reason;
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration time, int count) {
    return std::chrono::duration<double, std::micro>(time).count() / count;
  };
  for (const bool one_step : {true, false})
    run_nccl_ranks(
        1, 2, *devices, {.one_step_bytes = one_step ? std::int64_t{1} << 40 : 0},
        [&](Group&, NcclRank& rank) {
          runtime::OpenDevice& device = rank.device();
          const runtime::StreamId stream = device.timeline().create(device.device());
          for (const std::int64_t words : {1 << 12, 1 << 16, 1 << 22}) {
            const auto bytes = static_cast<std::size_t>(words) * sizeof(float);
            const runtime::Buffer node = device.heap().allocate(bytes, stream);
            const runtime::Buffer sum = device.heap().allocate(bytes, stream);
            device.executor().fill(stream, node, 0);
            constexpr int kTimes = 200;
            Clock::time_point begin;
            for (int i = -20; i < kTimes; ++i) {
              if (i == 0) begin = Clock::now();
              rank.exchange().sum({&node, 1}, 2, sum);
            }
            const Clock::time_point enqueued = Clock::now();
            rank.exchange().wait();
            const Clock::time_point end = Clock::now();
            std::printf("%s, %lld words: %.1f us of the host, %.1f us each\n",
                        one_step ? "one step" : "two steps", static_cast<long long>(words),
                        microseconds(enqueued - begin, kTimes), microseconds(end - begin, kTimes));
          }
        });
}

/// Times of sums of two ranks over peer memory, printed: of the host for one, and from the first of
/// many to the last.
TEST(PeersOnGpus, Times) {
  std::string reason;
  const auto devices = test::real_gpus(2, reason);
  if (!devices) GTEST_SKIP() << reason;
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration time, int count) {
    return std::chrono::duration<double, std::micro>(time).count() / count;
  };
  for (const int blocks : {32, 24, 16, 8})
    for (const std::int64_t one_step : {test::kOneStep, test::kTwoSteps})
      for (const std::int64_t tile : {128, 256, 512})
        test::run_peer_ranks(
            2, 2, *devices,
            {.blocks = blocks, .one_step_bytes = one_step, .tile_bytes = tile << 10},
            [&](Group& group, NcclRank& rank) {
              runtime::OpenDevice& device = rank.device();
              const runtime::StreamId stream = device.timeline().create(device.device());
              for (std::int64_t words = 1 << 10; words <= 1 << 28; words *= 4) {
                const auto bytes = static_cast<std::size_t>(words) * sizeof(float);
                const runtime::Buffer node = device.heap().allocate(bytes, stream);
                device.executor().fill(stream, node, 0);
                device.timeline().synchronize(stream);
                const int times = words < 1 << 22 ? 200 : 10;
                Clock::time_point begin;
                for (int i = -5; i < times; ++i) {
                  if (i == 0) {
                    rank.any_exchange().wait();
                    group.barrier();
                    begin = Clock::now();
                  }
                  rank.any_exchange().sum({&node, 1}, 2, node);
                }
                const Clock::time_point enqueued = Clock::now();
                rank.any_exchange().wait();
                if (group.rank() == 0)
                  std::printf(
                      "%d blocks, %s, tile %lld KiB, %9lld KiB: %.1f us of the host, %.1f "
                      "us each\n",
                      blocks, one_step > 0 ? "one step " : "two steps",
                      static_cast<long long>(tile), static_cast<long long>(words / 256),
                      microseconds(enqueued - begin, times),
                      microseconds(Clock::now() - begin, times));
              }
            });
}

}  // namespace
}  // namespace segfuse::comm
