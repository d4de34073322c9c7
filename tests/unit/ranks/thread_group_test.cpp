#include "comm/threads/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/mutex.h"
#include "comm/tree_exchange.h"
#include "support/shard_sums.h"

namespace segfuse::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<std::byte> bytes(std::string_view text) {
  std::vector<std::byte> all(text.size());
  std::memcpy(all.data(), text.data(), text.size());
  return all;
}

TEST(ThreadGroup, EveryRankKnowsItsPlace) {
  std::atomic<int> seen = 0;
  run_ranks(5, [&](Group& group) {
    EXPECT_EQ(group.size(), 5);
    EXPECT_EQ(group.engine(), "threads");
    seen += 1 << group.rank();
  });
  EXPECT_EQ(seen, 31);
  EXPECT_THROW(run_ranks(0, [](Group&) {}), UsageError);
}

TEST(ThreadGroup, TextsOfAnySizeAreGatheredByRank) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    run_ranks(ranks, [&](Group& group) {
      for (std::size_t round = 0; round < 3; ++round) {
        std::vector<std::string> expected;
        for (int rank = 0; rank < ranks; ++rank)
          expected.emplace_back(static_cast<std::size_t>(rank) * round,
                                static_cast<char>('a' + rank));
        EXPECT_EQ(group.gather(expected[static_cast<std::size_t>(group.rank())]), expected);
      }
    });
}

TEST(ThreadGroup, EveryRootReachesAll) {
  run_ranks(4, [](Group& group) {
    for (int root = 0; root < 4; ++root) {
      auto mine = bytes("rank " + std::to_string(group.rank()));
      group.broadcast(mine, root);
      EXPECT_EQ(mine, bytes("rank " + std::to_string(root)));
    }
    group.broadcast({}, 2);
  });
}

TEST(ThreadGroup, NobodyPassesABarrierEarly) {
  std::atomic<int> come = 0;
  run_ranks(6, [&](Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      group.barrier();
      EXPECT_GE(come, round * 6);
      group.barrier();
    }
  });
}

TEST(ThreadGroup, SpansForARankArriveInTheirOrder) {
  run_ranks(3, [](Group& group) {
    const int rank = group.rank();
    const auto text = [](int from, int to, int k) {
      return bytes(std::string(static_cast<std::size_t>(k), '-') + std::to_string(from * 10 + to));
    };
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::vector<std::byte>> expected;
    std::vector<Outgoing> out;
    for (int k = 0; k < 3; ++k)
      for (int to = 0; to < 3; ++to)
        if (to != rank) sent.push_back(text(rank, to, k));
    auto next = sent.begin();
    for (int k = 0; k < 3; ++k)
      for (int to = 0; to < 3; ++to)
        if (to != rank) out.push_back({to, *next++});
    std::vector<std::vector<std::byte>> places;
    std::vector<Incoming> in;
    for (int from = 2; from >= 0; --from)
      for (int k = 0; k < 3; ++k)
        if (from != rank) expected.push_back(text(from, rank, k));
    for (const auto& one : expected) places.emplace_back(one.size());
    auto place = places.begin();
    for (int from = 2; from >= 0; --from)
      for (int k = 0; k < 3; ++k)
        if (from != rank) in.push_back({from, *place++});
    group.exchange(out, in);
    EXPECT_EQ(places, expected);
  });
}

TEST(ThreadGroup, PeersThatAreNoneAreRefused) {
  const auto with = [](const std::function<void(Group&)>& work) { run_ranks(2, work); };
  std::vector<std::byte> some(1);
  EXPECT_THROW(with([&](Group& group) { group.broadcast(some, 2); }), InternalError);
  EXPECT_THROW(with([&](Group& group) { group.broadcast(some, -1); }), InternalError);
  EXPECT_THROW(with([&](Group& group) {
                 const Outgoing out{group.rank(), some};
                 group.exchange({&out, 1}, {});
               }),
               InternalError);
  EXPECT_THROW(with([&](Group& group) {
                 const Incoming in{2, some};
                 group.exchange({}, {&in, 1});
               }),
               InternalError);
}

/// The message that `work` ends with on each rank; "" where it returns.
std::vector<std::string> ends(int ranks, const std::function<void(Group&)>& work) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  try {
    run_ranks(ranks, [&](Group& group) {
      try {
        work(group);
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(group.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return said;
}

/// The calls of a step, one after the other; rank 2 throws before the one of that number.
void step_with_a_fault(Group& group, int faulty) {
  int number = 0;
  const auto perhaps = [&] {
    if (number++ == faulty && group.rank() == 2) throw DataError("recording 'x.wav' ends early");
  };
  perhaps();
  group.gather("hello");
  perhaps();
  std::vector<std::byte> some(100);
  group.broadcast(some, 1);
  perhaps();
  TreeExchange exchange(group, 8);
  const auto nodes = test::nodes_of_range(exchange.own_shards(), 8, 8, 100);
  test::Values sum(100);
  exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), 8, sum);
  perhaps();
  group.barrier();
  perhaps();
}

class RankThatThrows : public ::testing::TestWithParam<int> {};

TEST_P(RankThatThrows, EndsTheOthersWithItsReason) {
  for (int round = 0; round < 20; ++round) {
    const auto said = ends(4, [](Group& group) {
      step_with_a_fault(group, GetParam());
      group.barrier();
    });
    EXPECT_EQ(said[2], "recording 'x.wav' ends early");
    for (const std::size_t other : {0U, 1U, 3U})
      EXPECT_EQ(said[other], "rank 2 ended the work of all ranks: recording 'x.wav' ends early");
  }
  EXPECT_THROW(run_ranks(4, [](Group& group) { step_with_a_fault(group, GetParam()); }), DataError);
}

INSTANTIATE_TEST_SUITE_P(Phase, RankThatThrows, ::testing::Range(0, 5));

/// An engine of exchange() that fails at a given call: what happens between the two of a sum.
class Failing final : public Group {
 public:
  Failing(Group& real, int at) : Group(real.rank(), real.size(), "failing"), real_(real), at_(at) {}

 private:
  std::vector<std::string> do_gather(std::string_view mine) override { return real_.gather(mine); }
  void do_broadcast(std::span<std::byte> some, int root) override { real_.broadcast(some, root); }
  void do_barrier() override { real_.barrier(); }
  void do_finish() override { real_.finish(); }
  void do_poll() override { real_.poll(); }
  void do_abort(std::string_view reason, ExitCode code) override { real_.abort(reason, code); }
  void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    if (rank() == 1 && at_-- == 0) throw CommError("the cable was pulled");
    real_.exchange(out, in);
  }
  Group& real_;
  int at_;
};

TEST(RankThatThrows, BetweenTheTwoHalvesOfASum) {
  for (const int at : {0, 1}) {
    const auto said = ends(3, [&](Group& real) {
      Failing group(real, at);
      TreeExchange exchange(group, 4);
      const auto nodes = test::nodes_of_range(exchange.own_shards(), 4, 4, 50);
      test::Values sum(50);
      exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), 4, sum);
      real.barrier();
    });
    EXPECT_EQ(said[1], "the cable was pulled");
    for (const std::size_t other : {0U, 2U}) EXPECT_THAT(said[other], HasSubstr("rank 1"));
    for (const std::size_t other : {0U, 2U}) EXPECT_THAT(said[other], HasSubstr("the cable"));
  }
}

TEST(RankThatThrows, IsSeenByWhoOnlyLooks) {
  const auto said = ends(3, [](Group& group) {
    group.poll();
    group.barrier();
    if (group.rank() == 2) throw DataError("label 7 is out of range");
    for (;;) group.poll();
  });
  for (const std::size_t other : {0U, 1U})
    EXPECT_EQ(said[other], "rank 2 ended the work of all ranks: label 7 is out of range");
}

TEST(RankThatThrows, TheFirstReasonStays) {
  const auto said = ends(3, [](Group& group) {
    if (group.rank() == 0) group.abort("the disk is full");
    if (group.rank() == 1) {
      try {
        group.barrier();
      } catch (const CommError&) {
        group.abort("something else");
      }
    }
    group.barrier();
  });
  EXPECT_THAT(said, Each("rank 0 ended the work of all ranks: the disk is full"));
}

TEST(RankThatThrows, SomethingThatIsNoExceptionOfStd) {
  EXPECT_THROW(run_ranks(2,
                         [](Group& group) {
                           if (group.rank() == 1) throw 5;
                           group.barrier();
                         }),
               int);
}

TEST(ThreadGroup, AnotherThreadMayEndAPendingCall) {
  const auto said = ends(2, [](Group& group) {
    if (group.rank() == 1) {  // as a watcher of heartbeats does; rank 0 never comes
      std::thread watcher([&] { group.abort("rank 0 has not been heard of for 60 s"); });
      try {
        group.barrier();
      } catch (...) {
        watcher.join();
        throw;
      }
      watcher.join();
      return;
    }
    while (true) group.gather("");  // another call, or one that ends with the reason
  });
  for (const auto& one : said)
    EXPECT_THAT(one, ::testing::AnyOf(HasSubstr("rank 0 has not been heard of"),
                                      HasSubstr("the ranks make different calls")));
}

TEST(ThreadGroup, RanksThatMakeDifferentCallsAreTold) {
  const auto said = ends(2, [](Group& group) {
    if (group.rank() == 0) group.barrier();
    if (group.rank() == 1) group.gather("");
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("barrier"),
                               HasSubstr("gather"))));
}

TEST(ThreadGroup, ARankThatIsDoneLeavesNobodyWaiting) {
  const auto said = ends(2, [](Group& group) {
    if (group.rank() == 0) group.barrier();
  });
  EXPECT_THAT(said[0], AllOf(HasSubstr("barrier"), HasSubstr("finish")));
  EXPECT_THROW(run_ranks(2,
                         [](Group& group) {
                           if (group.rank() == 0) group.barrier();
                         }),
               CommError);
}

TEST(ThreadGroup, RootsAndSizesOfABroadcastAreCompared) {
  EXPECT_THAT(ends(2,
                   [](Group& group) {
                     std::vector<std::byte> some(4);
                     group.broadcast(some, group.rank());
                   }),
              Each(HasSubstr("different calls")));
  EXPECT_THAT(ends(2,
                   [](Group& group) {
                     std::vector<std::byte> some(4 + static_cast<std::size_t>(group.rank()));
                     group.broadcast(some, 0);
                   }),
              Each(HasSubstr("different calls")));
}

TEST(ThreadGroup, SpansThatNobodyExpectsAreTold) {
  const auto with = [](std::vector<std::size_t> sent, std::vector<std::size_t> expected) {
    run_ranks(2, [&](Group& group) {
      std::vector<std::byte> memory(16);
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      const std::span<std::byte> all(memory);
      if (group.rank() == 0)
        for (const std::size_t size : sent) out.push_back({1, all.first(size)});
      else
        for (const std::size_t size : expected) in.push_back({0, all.first(size)});
      group.exchange(out, in);
    });
  };
  with({3, 0, 5}, {3, 0, 5});
  EXPECT_THROW(with({3}, {4}), CommError);
  EXPECT_THROW(with({3}, {3, 1}), CommError);
  EXPECT_THROW(with({3, 1}, {3}), CommError);
  EXPECT_THROW(with({3, 1}, {}), CommError);
}

}  // namespace
}  // namespace segfuse::comm
