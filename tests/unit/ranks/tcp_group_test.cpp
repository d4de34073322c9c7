// Ranks that meet and exchange bytes over TCP; threads of this process, as far apart as processes.

#include "comm/tcp/tcp_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "comm/meet/job.h"
#include "comm/meet/wire/socket.h"
#include "comm/meet/wire/visit.h"
#include "comm/tree_exchange.h"
#include "segfuse/spawn.h"
#include "support/shard_sums.h"

namespace segfuse::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const std::string kKey = meet::key_of("the key of this test");

struct End {
  std::string said;  ///< empty: it ended in peace
  int code = 0;
  bool by_other = false;  ///< EndedByRank
};

using Work = std::function<void(Group&)>;

/// How each rank ended.
std::vector<End> run_tcp_ranks(int ranks, const Work& work, const std::string& host = "127.0.0.1") {
  Descriptor listening = meet::listen_at(host, 0);
  const int port = meet::port_of(listening.get());
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  const auto be = [&](int rank, Descriptor own) {
    try {
      meet::MeetingOptions options;
      options.rank = rank;
      options.count = ranks;
      options.host = host;
      options.port = port;
      options.key = kKey;
      options.listening = std::move(own);
      const auto meeting = std::make_shared<meet::Meeting>(std::move(options));
      const std::unique_ptr<Group> group = open_tcp_group(meeting);
      run_rank(*group, [&] { work(*group); });
      meeting->leave();
    } catch (const Error& error) {
      ends[static_cast<std::size_t>(rank)] = {error.what(), static_cast<int>(error.exit_code()),
                                              dynamic_cast<const EndedByRank*>(&error) != nullptr};
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back(
        [&, rank, own = rank == 0 ? std::move(listening) : Descriptor()]() mutable {
          be(rank, std::move(own));
        });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

std::vector<std::string> said_by(const std::vector<End>& ends) {
  std::vector<std::string> all;
  for (const End& end : ends) all.push_back(end.said);
  return all;
}

void expect_peace(int ranks, const Work& work) {
  EXPECT_THAT(said_by(run_tcp_ranks(ranks, work)), Each(""));
}

std::vector<std::byte> some_bytes(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(seed));
  return bytes;
}

TEST(TcpGroup, TextsOfAnySizeAreGatheredByRank) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    expect_peace(ranks, [&](Group& group) {
      EXPECT_EQ(group.size(), ranks);
      EXPECT_EQ(group.engine(), "TCP");
      for (const std::size_t length : {0U, 1U, 700U, 300000U}) {
        std::vector<std::string> expected;
        for (int rank = 0; rank < ranks; ++rank)
          expected.emplace_back(static_cast<std::size_t>(rank) * length,
                                static_cast<char>('a' + rank));
        EXPECT_EQ(group.gather(expected[static_cast<std::size_t>(group.rank())]), expected);
      }
    });
}

TEST(TcpGroup, EveryRootReachesAll) {
  for (const int ranks : {2, 3, 5, 8})
    expect_peace(ranks, [&](Group& group) {
      for (int root = 0; root < ranks; ++root)
        for (const std::size_t size : {0U, 1U, 5000U, 1000000U}) {
          auto bytes = some_bytes(size, group.rank());
          group.broadcast(bytes, root);
          EXPECT_EQ(bytes, some_bytes(size, root));
        }
    });
}

TEST(TcpGroup, NobodyPassesABarrierEarly) {
  std::atomic<int> come = 0;
  expect_peace(6, [&](Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      group.barrier();
      EXPECT_GE(come, round * 6);
      group.barrier();
    }
  });
}

/// More than sockets hold, both ways at once; two spans to each, of sizes that differ by pair.
TEST(TcpGroup, SpansForARankArriveInTheirOrder) {
  expect_peace(4, [](Group& group) {
    const auto size_of = [](int from, int to, int k) {
      return static_cast<std::size_t>(k == 0 ? from * 3 + to : 3000000 + from * 1000 + to);
    };
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::vector<std::byte>> places;
    std::vector<int> peers;
    for (int peer = 0; peer < group.size(); ++peer)
      for (int k = 0; k < 2 && peer != group.rank(); ++k) {
        peers.push_back(peer);
        sent.push_back(some_bytes(size_of(group.rank(), peer, k), group.rank()));
        places.emplace_back(size_of(peer, group.rank(), k));
      }
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (std::size_t i = 0; i < peers.size(); ++i) out.push_back({peers[i], sent[i]});
    for (std::size_t i = 0; i < peers.size(); ++i) in.push_back({peers[i], places[i]});
    group.exchange(out, in);
    for (std::size_t i = 0; i < peers.size(); ++i)
      EXPECT_TRUE(places[i] == some_bytes(places[i].size(), peers[i]));
  });
}

TEST(TcpGroup, SumsAreThoseOfTheTree) {
  for (const int ranks : {1, 2, 3, 4, 5})
    expect_peace(ranks, [](Group& group) {
      for (std::int64_t shards = 8; shards <= 16; shards *= 2)
        for (const std::int64_t words : {0, 1, 4097, 50000}) {
          TreeExchange exchange(group, shards);
          const auto nodes = test::nodes_of_range(exchange.own_shards(), shards, 7, words);
          test::Values sum(static_cast<std::size_t>(words), 77);
          exchange.sum(std::vector<std::span<const float>>(nodes.begin(), nodes.end()), 7, sum);
          EXPECT_EQ(test::first_difference(sum, test::sum_of_shards(shards, 7, words)), "");
        }
    });
}

TEST(TcpGroup, ARankThatThrowsEndsTheOthersWithItsReason) {
  for (int when = 0; when < 4; ++when) {
    const std::vector<End> ends = run_tcp_ranks(4, [&](Group& group) {
      int number = 0;
      const auto perhaps = [&] {
        if (number++ == when && group.rank() == 2) throw DataError("recording 'x.wav' ends early");
      };
      perhaps();
      group.gather("hello");
      perhaps();
      std::vector<std::byte> some(100);
      group.broadcast(some, 1);
      perhaps();
      group.barrier();
      perhaps();
      group.barrier();
    });
    EXPECT_EQ(ends[2].said, "recording 'x.wav' ends early");
    EXPECT_FALSE(ends[2].by_other);
    for (const std::size_t other : {0U, 1U, 3U}) {
      EXPECT_THAT(ends[other].said,
                  AllOf(HasSubstr("rank 2 (host "), HasSubstr("recording 'x.wav' ends early")));
      EXPECT_TRUE(ends[other].by_other);
      EXPECT_EQ(ends[other].code, 3);
    }
  }
}

TEST(TcpGroup, ARankThatThrowsIsSeenByWhoOnlyLooks) {
  const std::vector<End> ends = run_tcp_ranks(3, [](Group& group) {
    group.poll();
    group.barrier();
    if (group.rank() == 1) throw UsageError("label 7 is out of range");
    for (;;) group.poll();
  });
  for (const std::size_t other : {0U, 2U}) {
    EXPECT_THAT(ends[other].said, HasSubstr("label 7 is out of range"));
    EXPECT_EQ(ends[other].code, 2);
  }
}

TEST(TcpGroup, AnotherThreadMayEndAPendingCall) {
  const std::vector<End> ends = run_tcp_ranks(3, [](Group& group) {
    if (group.rank() == 0)
      for (;;) group.poll();
    std::thread watcher([&] {
      if (group.rank() == 1) group.abort("the watcher is tired");
    });
    try {
      group.barrier();
    } catch (...) {
      watcher.join();
      throw;
    }
    watcher.join();
  });
  EXPECT_THAT(said_by(ends), Each(HasSubstr("the watcher is tired")));
}

TEST(TcpGroup, RanksThatMakeDifferentCallsAreTold) {
  const auto expect = [](const Work& work, const std::string& text) {
    EXPECT_THAT(said_by(run_tcp_ranks(2, work)), Each(HasSubstr(text)));
  };
  expect([](Group& group) { group.rank() == 0 ? group.barrier() : (void)group.gather(""); },
         "the ranks make different calls: rank");
  expect(
      [](Group& group) {
        std::vector<std::byte> some(4 + static_cast<std::size_t>(group.rank()));
        group.broadcast(some, 0);
      },
      "rank 0 sends 4 bytes, and rank 1 expects 5");
  expect([](Group& group) { group.rank() == 0 ? group.barrier() : void(); },
         "the ranks make different calls: rank");
}

TEST(TcpGroup, NamesOfThisMachineWork) {
  EXPECT_THAT(
      said_by(run_tcp_ranks(3, [](Group& group) { group.barrier(); }, meet::own_host())), Each(""));
}

/// A guest that sends `bytes` in place of an answer, or what `visit` sends with a key.
bool lets_in(const std::string& key, const meet::Visitor& visitor, const std::string& bytes = "") {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const meet::SteadyClock clock;
  bool in = false;
  std::thread host([&] {
    const auto judge = [](const meet::Visitor& who) {
      return who.rank == 1 ? meet::Verdict::kWelcome : meet::Verdict::kTaken;
    };
    in = meet::admit(Descriptor(ends[0]), kKey, judge, clock.now() + std::chrono::seconds(60),
                     clock, {})
             .connection.has_value();
  });
  meet::Connection guest{Descriptor(ends[1])};
  std::optional<std::string> challenge;
  while (!challenge) {
    guest.receive();
    challenge = guest.next(meet::kLongestGreeting);
  }
  guest.send(bytes.empty()
                 ? meet::answer(key, *meet::read_challenge(*challenge), visitor, meet::new_nonce())
                 : bytes);
  guest.flush();
  guest.end();
  host.join();
  return in;
}

TEST(TcpLinks, OnlyRanksThatKnowTheKeyAreLetIn) {
  EXPECT_TRUE(lets_in(kKey, {meet::Role::kRank, 1, 2}));
  EXPECT_FALSE(lets_in(meet::key_of("another"), {meet::Role::kRank, 1, 2}));
  EXPECT_FALSE(lets_in(kKey, {meet::Role::kRank, 5, 2}));
  EXPECT_FALSE(lets_in(kKey, {}, "GET / HTTP/1.1"));
  EXPECT_FALSE(lets_in(kKey, {}, std::string(5000, 'x')));
}

/// Children share no byte and no connection with an exchange, however many come and go.
TEST(TcpGroup, SumsBesideAStormOfChildrenHaveTheirBits) {
  constexpr std::int64_t kWords = 3 * kBlockWords + 5;
  std::atomic<bool> over = false;
  std::atomic<int> children = 0;
  std::thread storm([&] {
    while (!over) {
      EXPECT_TRUE(spawn::run({{"/bin/true"}}).ok());
      ++children;
    }
  });
  expect_peace(3, [&](Group& group) {
    TreeExchange exchange(group, 8);
    const test::Values expected = test::sum_of_shards(8, 8, kWords);
    while (group.gather(children < 30 ? "more" : "")[0] == "more") {
      const auto values = test::nodes_of_range(exchange.own_shards(), 8, 8, kWords);
      const std::vector<std::span<const float>> nodes(values.begin(), values.end());
      test::Values sum(static_cast<std::size_t>(kWords));
      exchange.sum(nodes, 8, sum);
      ASSERT_EQ(test::first_difference(sum, expected), "");
    }
  });
  over = true;
  storm.join();
}

}  // namespace
}  // namespace segfuse::comm
