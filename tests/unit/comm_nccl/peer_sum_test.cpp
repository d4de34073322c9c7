// Sums over peer memory between threads, on devices of a fake CUDA driver: what surrounds the
// kernel. The thread sanitizer sees every byte that ranks write and read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "comm/peer/peer_exchange.h"
#include "comm/peer/trial_sum.h"
#include "comm/threads/thread_group.h"
#include "runtime/cuda/cuda_device.h"
#include "support/nccl/nccl_ranks.h"
#include "support/system/fake_cuda.h"

namespace segfuse::comm {
namespace {

namespace cuda = runtime::cuda;
using test::first_difference;
using test::kOneStep;
using test::kTwoSteps;
using test::NcclRank;
using test::run_peer_ranks;
using testing::HasSubstr;

constexpr std::size_t kMemory = std::size_t{256} << 20;

PeerOptions small(std::int64_t one_step_bytes) {
  return {.blocks = 3, .one_step_bytes = one_step_bytes, .tile_bytes = 4096};
}

class PeerSumsOf : public testing::TestWithParam<int> {};

TEST_P(PeerSumsOf, HaveTheBitsOfOneRank) {
  const int ranks = GetParam();
  for (const std::int64_t one_step : {kOneStep, kTwoSteps}) {
    const auto devices = test::like_cuda(0, kMemory);
    run_peer_ranks(ranks, 8, *devices, small(one_step), [&](Group& group, NcclRank& rank) {
      for (const std::int64_t words : {1, 3, 300, 9001, 300, 0, 40000})
        for (const std::int64_t present : {8, 5, 1})
          ASSERT_EQ(first_difference(rank.sum(present, words, words % 2 == 1),
                                     test::sum_of_shards(8, present, words)),
                    "")
              << "rank " << group.rank() << ", " << words << " words, " << present << " shards";
    });
    EXPECT_EQ(devices->held(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerSumsOf, testing::Range(1, 9));

TEST(PeerSums, OfManyBucketsAreEnqueuedBeforeTheFirstIsRead) {
  const auto devices = test::like_cuda(0, kMemory);
  run_peer_ranks(3, 4, *devices, small(kTwoSteps), [&](Group&, NcclRank& rank) {
    for (int bucket = 0; bucket < 20; ++bucket) rank.enqueue_sum(4, 5005 + bucket);
    rank.wait();
    EXPECT_EQ(first_difference(rank.read_sum(), test::sum_of_shards(4, 4, 5024)), "");
  });
}

TEST(PeerSums, OfWrongNodesAreRefused) {
  const auto with = [](std::int64_t shards, std::int64_t present, std::size_t nodes,
                       std::size_t words) {
    const auto devices = test::like_cuda(0, kMemory);
    run_peer_ranks(2, shards, *devices, small(kTwoSteps), [&](Group&, NcclRank& rank) {
      runtime::OpenDevice& device = rank.device();
      const runtime::StreamId stream = device.timeline().create(device.device());
      const runtime::Buffer node = device.heap().allocate(4 * words, stream);
      const runtime::Buffer sum = device.heap().allocate(32, stream);
      rank.any_exchange().sum(std::vector<runtime::Buffer>(nodes, node), present, sum);
    });
  };
  EXPECT_THROW(with(4, 4, 2, 8), InternalError);
  EXPECT_THROW(with(4, 4, 1, 7), InternalError);
  EXPECT_THROW(with(4, 0, 1, 8), InternalError);
  EXPECT_THROW(with(1, 1, 1, 8), UsageError);
}

/// What one rank that leaves in the middle leaves of the others.
void one_leaves(test::Devices& devices, int leaves, std::int64_t one_step, bool blind = false) {
  try {
    run_peer_ranks(3, 4, devices, small(one_step), [&](Group& group, NcclRank& rank) {
      static_cast<void>(rank.sum(4, 5000));
      if (group.rank() == leaves) throw DataError("this rank has no data");
      // Its kernel waits for the one that does not come.
      rank.enqueue_sum(4, 5000);
      rank.enqueue_sum(4, 100);
      // As hosts do that wait for something else: nobody asks for the other ranks.
      if (blind) rank.device().device().drain();
      rank.wait();
      ADD_FAILURE() << "a sum without a rank";
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("this rank has no data"));
  }
}

TEST(PeerSums, ARankThatLeavesEndsTheKernelsOfTheOthers) {
  const auto devices = test::like_cuda(0, kMemory);
  for (const std::int64_t one_step : {kOneStep, kTwoSteps})
    for (int leaves = 0; leaves < 3; ++leaves) {
      one_leaves(*devices, leaves, one_step);
      EXPECT_EQ(devices->held(), 0U);
    }
  run_peer_ranks(3, 4, *devices, small(kTwoSteps), [&](Group&, NcclRank& rank) {
    EXPECT_EQ(first_difference(rank.sum(4, 5000), test::sum_of_shards(4, 4, 5000)), "");
  });
}

TEST(PeerSums, ARankThatLeavesEndsThemAlsoWhereTheHostWaitsForItsDevice) {
  const auto devices = test::like_cuda(0, kMemory);
  for (const std::int64_t one_step : {kOneStep, kTwoSteps})
    for (int leaves = 0; leaves < 3; ++leaves) one_leaves(*devices, leaves, one_step, true);
  EXPECT_EQ(devices->held(), 0U);
}

TEST(PeerSums, AfterAnAbortHaveTheFirstReason) {
  const auto devices = test::like_cuda(0, kMemory);
  const auto run = [&] {
    run_peer_ranks(2, 2, *devices, small(kTwoSteps), [&](Group&, NcclRank& rank) {
      rank.any_exchange().abort("the test wants it");
      rank.any_exchange().abort("and again");
      rank.enqueue_sum(2, 1000);
    });
  };
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "the test wants it");
  }
  EXPECT_EQ(devices->held(), 0U);
}

/// What ranks are told where they cannot use each other's memory.
std::vector<std::string> reasons(
    int ranks, const std::function<std::shared_ptr<runtime::OpenDevice>(int)>& device_of,
    const PeerOptions& options) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Group& group) {
    const auto device = device_of(group.rank());
    const runtime::StreamId stream = device->timeline().create(device->device());
    const auto exchange = PeerExchange::open(group, 64, *device, stream,
                                             all[static_cast<std::size_t>(group.rank())], options);
    if (exchange) exchange->finish();
    device->timeline().retire(stream);
  });
  return all;
}

TEST(PeerSums, NeedMemoryThatOtherDevicesReach) {
  const auto simulated = test::simulated(runtime::sim::eager);
  for (const std::string& reason :
       reasons(2, [&](int rank) { return simulated->open(rank); }, small(0)))
    EXPECT_THAT(reason, HasSubstr("rank 0: sim has no memory that other devices reach"));
  const auto little = test::like_cuda(0, std::size_t{3} << 20);
  for (const std::string& reason :
       reasons(2, [&](int rank) { return little->open(rank); }, small(0)))
    EXPECT_THAT(reason, HasSubstr("the GPU has no memory left for it"));
  EXPECT_EQ(little->held(), 0U);
}

TEST(PeerSums, AfterATrialThatIsWrongOnOneRankNoRankBeginsTheNext) {
  for (const std::int64_t wrong : {0, 1, 2, 3}) {
    std::vector<std::vector<std::int64_t>> begun(3);
    std::vector<std::string> found(3);
    run_ranks(3, [&](Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      const std::int64_t trials[] = {0, 1, 2};
      found[rank] = until_one_is_wrong(group, trials, [&](std::int64_t trial) -> std::string {
        begun[rank].push_back(trial);
        return trial == wrong && rank == 1 ? "it is wrong" : "";
      });
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(begun[rank].size(), static_cast<std::size_t>(std::min<std::int64_t>(wrong + 1, 3)));
      EXPECT_EQ(found[rank], rank == 1 && wrong < 3 ? "it is wrong" : "");
    }
  }
}

cuda::Result (*retain)(cuda::Context*, cuda::Device) = nullptr;
cuda::Result (*hand_out)(cuda::IpcHandle*, cuda::DevicePtr) = nullptr;
cuda::Result (*reach)(cuda::Context, unsigned) = nullptr;
cuda::Result (*let_go)(cuda::DevicePtr) = nullptr;
int retained = 0;
int mode = 0;  ///< of captures: 0 is the strictest
cuda::Result in_relaxed_mode(cuda::Result result) {
  EXPECT_EQ(mode, cuda::kCaptureRelaxed);
  return result;
}

TEST(PeerMemory, OfThisProcessRetainsNoContextAndIsReachedBesideCaptures) {
  test::FakeCuda fake(kMemory);
  cuda::Driver driver = fake.driver();
  retain = std::exchange(driver.primary_context, [](cuda::Context* context, cuda::Device device) {
    ++retained;
    return retain(context, device);
  });
  hand_out = std::exchange(driver.share_memory, [](cuda::IpcHandle* to, cuda::DevicePtr address) {
    return in_relaxed_mode(hand_out(to, address));
  });
  reach = std::exchange(driver.reach_context, [](cuda::Context context, unsigned flags) {
    return in_relaxed_mode(reach(context, flags));
  });
  let_go = std::exchange(driver.mem_free,
                         [](cuda::DevicePtr address) { return in_relaxed_mode(let_go(address)); });
  driver.device_count = [](int* count) { return *count = 2, 0; };
  driver.capture_mode = [](int* wanted) { return std::swap(mode, *wanted), 0; };
  retained = mode = 0;
  {
    const auto first = runtime::open_cuda_device(driver, 0, {});
    const auto second = runtime::open_cuda_device(driver, 1, {});
    EXPECT_EQ(retained, 2);
    const std::shared_ptr<std::byte> memory = first->allocate_shared(100);
    EXPECT_EQ(second->reach_shared(first->share(memory)), memory);
  }
  EXPECT_EQ(retained, 2);
  EXPECT_EQ(mode, 0);
}

TEST(PeerSums, AreForSixteenRanksAtMost) {
  const auto devices = test::like_cuda(0, kMemory);
  const auto open = [&](int rank) { return devices->open(rank); };
  for (const std::string& reason : reasons(17, open, small(0)))
    EXPECT_THAT(reason, HasSubstr("there are 17 ranks, and 16 can be"));
  for (const std::string& reason : reasons(16, open, small(0))) EXPECT_EQ(reason, "");
}

}  // namespace
}  // namespace segfuse::comm
