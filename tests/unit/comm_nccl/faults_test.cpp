// NCCL that fails, at every call: who hears what, and what is left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "comm/nccl/add_nodes.h"
#include "comm/nccl/nccl_exchange.h"
#include "comm/threads/thread_group.h"
#include "comm/tree_exchange.h"
#include "support/nccl/nccl_ranks.h"

namespace segfuse::comm {
namespace {

using test::fake;
using test::FakeFault;
using test::first_difference;
using test::NcclRank;
using test::run_nccl_ranks;
using testing::AnyOf;
using testing::HasSubstr;

constexpr std::int64_t kWords = 3 * kBlockWords + 11;

/// A run of three ranks: a sum in two steps, and one in one step.
void run(test::Devices& devices, const std::function<void(Group&)>& before = {}) {
  run_nccl_ranks(
      3, 4, devices, {.one_step_bytes = 3 * 4 * 2 * 100}, [&](Group& group, NcclRank& rank) {
        if (before) before(group);
        for (const std::int64_t words : {kWords, std::int64_t{100}}) {
          rank.enqueue_sum(4, words);
          rank.wait();
          EXPECT_EQ(first_difference(rank.read_sum(), test::sum_of_shards(4, 4, words)), "");
        }
      });
}

/// Tells a thread of the test when a rank's NCCL is stuck; that thread ends the work of all, as
/// whoever looks after the ranks does.
class Watcher {
 public:
  Watcher() : thread_([this] { watch(); }) {
    fake().on_stuck([this] { set([this] { stuck_ = true; }); });
  }
  ~Watcher() {
    set([this] { over_ = true; });
    thread_.join();
  }
  void watches(Group& group) {
    set([&] { group_ = &group; });
  }

 private:
  void set(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  void watch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_ || (stuck_ && group_ != nullptr); });
    if (!over_) group_->abort("rank 1 has not moved for a minute");
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stuck_ = false;
  bool over_ = false;
  Group* group_ = nullptr;
  std::thread thread_;
};

class Faults : public testing::TestWithParam<FakeFault> {
 protected:
  void SetUp() override { fake().reset(); }
};

/// What a run with the fault ends with.
std::string message_of(test::Devices& devices, FakeFault how) {
  try {
    Watcher watcher;
    run_ranks(3, [&](Group& group) {
      fake().begin_rank(group.rank());
      if (how == FakeFault::kNever && group.rank() == 0) watcher.watches(group);
      // The group lives as long as somebody may end it.
      NcclRank rank(group, 4, devices, {.one_step_bytes = 3 * 4 * 2 * 100});
      for (const std::int64_t words : {kWords, std::int64_t{100}}) {
        rank.enqueue_sum(4, words);
        rank.wait();
      }
      rank.finish();
    });
  } catch (const CommError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kDevice);
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "no CommError, but: " << error.what();
  }
  return "";
}

TEST_P(Faults, OfAnyCallEndAllRanksAndTheNextRunWorks) {
  std::unique_ptr<test::Devices> devices = test::like_cuda(2);
  run(*devices);
  for (const int rank : {0, 1}) {
    const std::uint64_t calls = fake().calls(rank);
    ASSERT_GT(calls, 10U);
    for (std::uint64_t k = 1; k <= calls; ++k) {
      const std::string call = fake().call(rank, k);
      // Without a communicator nothing can fail later.
      if (GetParam() != FakeFault::kAtOnce &&
          (call == "ncclGetUniqueId" || call == "ncclGroupStart" || call == "ncclCommDestroy"))
        continue;
      SCOPED_TRACE(call + ", call " + std::to_string(k) + " of rank " + std::to_string(rank));
      fake().fail(rank, k, GetParam());
      const std::string message = message_of(*devices, GetParam());
      if (GetParam() == FakeFault::kAtOnce) {
        EXPECT_THAT(message, HasSubstr(call));
        EXPECT_THAT(message, HasSubstr("failed on rank " + std::to_string(rank) + " of 3"));
        EXPECT_THAT(message, HasSubstr("NCCL 2.28.9): unhandled system error"));
      } else if (GetParam() == FakeFault::kLater) {
        EXPECT_THAT(message, HasSubstr("failed on rank " + std::to_string(rank) + " of 3"));
        EXPECT_THAT(message, HasSubstr("remote process exited"));
      } else {
        EXPECT_THAT(message, HasSubstr("rank 1 has not moved for a minute"));
      }
      EXPECT_EQ(fake().alive(), 0);
      EXPECT_EQ(fake().misuse(), "");
      EXPECT_EQ(devices->held(), 0U);
      fake().fail(rank, 0, GetParam());
      run(*devices);
      EXPECT_EQ(fake().alive(), 0);
      EXPECT_EQ(fake().calls(rank), calls);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(How, Faults,
                         testing::Values(FakeFault::kAtOnce, FakeFault::kLater, FakeFault::kNever));

/// What each of three ranks is told.
std::vector<std::string> told(const std::function<void(Group&)>& work) {
  std::vector<std::string> all(3);
  try {
    run_ranks(3, [&](Group& group) {
      if (group.rank() == 0) fake().begin_rank(0);
      try {
        work(group);
      } catch (const CommError& error) {
        all[static_cast<std::size_t>(group.rank())] = error.what();
        throw;
      }
    });
  } catch (const Error&) {
  }
  EXPECT_EQ(fake().alive(), 0);
  EXPECT_EQ(fake().misuse(), "");
  fake().reset();
  return all;
}

TEST_F(Faults, ARankThatLeavesIsNamedToThoseWhoWaitForIt) {
  for (const bool before_start : {true, false}) {
    const auto devices = test::like_cuda(1);
    const auto said = told([&](Group& group) {
      const auto leave = [&] {
        if (group.rank() == 2) throw DataError("recording 'x.wav' ends early");
      };
      if (before_start) {
        // The others have the id, and wait in NCCL for the third.
        if (group.rank() == 2) {
          static_cast<void>(group.gather("2.28.9"));
          std::array<std::byte, 128> id;
          group.broadcast(id, 0);
        }
        leave();
      }
      NcclRank rank(group, 4, *devices);
      leave();
      rank.enqueue_sum(4, 100);
      rank.wait();
    });
    for (const std::size_t other : {0U, 1U})
      EXPECT_EQ(said[other], "rank 2 ended the work of all ranks: recording 'x.wav' ends early");
    EXPECT_EQ(devices->held(), 0U);
  }
}

TEST_F(Faults, ARankThatLeavesEndsWorkAlsoWhereTheHostWaitsForItsDevice) {
  const auto devices = test::like_cuda(1);
  const auto said = told([&](Group& group) {
    NcclRank rank(group, 4, *devices);
    static_cast<void>(rank.sum(4, 100));
    if (group.rank() == 2) throw DataError("recording 'x.wav' ends early");
    rank.enqueue_sum(4, 100);
    // As hosts do that wait for something else: nobody asks for the other ranks.
    rank.device().device().drain();
    rank.wait();
  });
  for (const std::size_t other : {0U, 1U})
    EXPECT_EQ(said[other], "rank 2 ended the work of all ranks: recording 'x.wav' ends early");
  EXPECT_EQ(devices->held(), 0U);
}

TEST_F(Faults, AnAbortFromAnotherThreadEndsWorkOnTheStream) {
  const auto devices = test::like_cuda(1);
  std::vector<std::string> said(3);
  run_ranks(3, [&](Group& group) {
    NcclRank rank(group, 4, *devices);
    if (group.rank() != 2) {
      rank.enqueue_sum(4, 100);  // rank 2 never comes
      std::thread other([&] { rank.exchange().abort("rank 2 was killed by signal 9"); });
      // What waits for the stream without a look at NCCL goes on.
      rank.device().timeline().synchronize(
          rank.device().timeline().streams(rank.device().device()).back());
      other.join();
      rank.exchange().abort("a later reason");
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { rank.wait(); }, [&] { rank.enqueue_sum(4, 100); }, [&] { rank.finish(); }})
        try {
          call();
          ADD_FAILURE() << "a call after the abort succeeds";
        } catch (const CommError& error) {
          EXPECT_STREQ(error.what(), "rank 2 was killed by signal 9");
        }
    }
    group.barrier();
  });
  EXPECT_EQ(fake().alive(), 0);
  EXPECT_EQ(fake().misuse(), "");
}

TEST_F(Faults, AnAbortFromAnotherThreadEndsACallInProgress) {
  const auto devices = test::like_cuda(1);
  run_ranks(1, [&](Group& group) {
    fake().begin_rank(0);
    NcclRank rank(group, 4, *devices);
    fake().fail(0, 4, FakeFault::kNever);
    std::promise<void> stuck;
    fake().on_stuck([&] { stuck.set_value(); });
    std::thread other([&] {
      stuck.get_future().wait();
      rank.exchange().abort("rank 0 was told to stop");
    });
    try {
      rank.enqueue_sum(4, 100);
      ADD_FAILURE() << "a call in progress is done";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "rank 0 was told to stop");
    }
    other.join();
  });
  EXPECT_EQ(fake().alive(), 0);
  EXPECT_EQ(fake().misuse(), "");
}

TEST_F(Faults, ACallThatTakesLongerThanTheLimitIsOne) {
  const auto devices = test::like_cuda(1);
  fake().fail(1, 4, FakeFault::kNever);  // its first ncclGroupEnd
  try {
    run_nccl_ranks(3, 4, *devices, {.limit = std::chrono::milliseconds(50)},
                   [&](Group&, NcclRank& rank) {
                     rank.enqueue_sum(4, 100);
                     rank.wait();
                   });
    ADD_FAILURE() << "nobody noticed";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("is still in progress on rank 1 of 3 (NCCL 2.28.9) after "));
    EXPECT_THAT(error.what(), HasSubstr("another rank has not joined"));
  }
  EXPECT_EQ(fake().alive(), 0);
}

TEST_F(Faults, OnASimulatedDeviceEndTheStream) {
  for (const auto how : {FakeFault::kAtOnce, FakeFault::kLater})
    for (std::uint64_t k = 1; k <= 9; ++k) {
      const auto devices = test::simulated(runtime::sim::lazy);
      fake().fail(1, k, how);
      if (how == FakeFault::kLater && (k == 2)) continue;
      EXPECT_THAT(message_of(*devices, how), HasSubstr("failed on rank 1 of 3")) << k;
      EXPECT_EQ(fake().alive(), 0);
      EXPECT_EQ(fake().misuse(), "");
      fake().reset();
    }
}

TEST_F(Faults, RanksWithOtherVersionsAreToldSo) {
  const auto devices = test::like_cuda(1);
  NcclApi other = test::fake_api();
  other.version = "2.27.3";
  const auto said = told([&](Group& group) {
    NcclOptions options;
    if (group.rank() == 1) options.api = &other;
    NcclRank rank(group, 4, *devices, options);
  });
  for (const std::string& message : said)
    EXPECT_THAT(message, HasSubstr("rank 0 has NCCL 2.28.9, and rank 1 has NCCL 2.27.3"));
}

TEST_F(Faults, RanksWithOtherSizesAreToldSo) {
  const auto devices = test::like_cuda(1);
  const auto said = told([&](Group& group) {
    NcclRank rank(group, 4, *devices);
    rank.enqueue_sum(4, group.rank() == 0 ? 100 : 101);
    rank.wait();
  });
  EXPECT_THAT(said, testing::Contains(HasSubstr("invalid usage")));
}

TEST_F(Faults, MoreNodesThanOneLaunchAddsAreRefused) {
  const auto devices = test::simulated(runtime::sim::eager);
  EXPECT_THROW(run_nccl_ranks(1, 4096, *devices, {},
                              [&](Group&, NcclRank& rank) {
                                EXPECT_EQ(rank.exchange().plan(10, 4096).additions.size(), 1U);
                                static_cast<void>(nodes_of_ranks(deal_shards(512, 512), 512, 257));
                              }),
               CommError);
}

}  // namespace
}  // namespace segfuse::comm
