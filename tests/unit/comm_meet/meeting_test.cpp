// Whole meetings over sockets: ranks are threads of this program.

#include "comm/meet/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/os/ranks.h"
#include "comm/meet/board.h"
#include "support/files.h"
#include "support/meet/group.h"

namespace segfuse::comm::meet {
namespace {

using std::chrono::seconds;
using test::Group;
using test::kKey;
using test::ManualClock;
using test::PuppetRank;
using ::testing::HasSubstr;

/// Moves the clock in steps; after each, all of `living` have been heard within a heartbeat, so
/// that only those who are silent on purpose are silent. Until something fails.
void advance(ManualClock& clock, const Group& group, int count,
             const std::vector<std::size_t>& living, Duration step = seconds(1)) {
  for (int i = 0; i < count; ++i) {
    clock.advance(step);
    try {
      for (bool all = false; !all;) {
        const Rows rows = group.look();
        if (!rows.failure.empty()) return;
        all = true;
        for (const std::size_t rank : living) all = all && rows.rows[rank].silent <= 1;
      }
    } catch (const CommError&) {  // rank 0 has gone
      return;
    }
  }
}

/// Until rank 0 has heard that so many ranks are in this phase.
void await_phase(const Group& group, ManualClock& clock, Phase phase, std::size_t count) {
  for (;;) {
    std::size_t found = 0;
    std::vector<std::size_t> all;
    const Rows rows = group.look();
    ASSERT_EQ(rows.failure, "");
    for (const Row& row : rows.rows) {
      all.push_back(all.size());
      found += row.state.phase == phase ? 1 : 0;
    }
    if (found == count) return;
    advance(clock, group, 1, all, std::chrono::milliseconds(100));
  }
}

TEST(Meeting, OneToEightRanksMeetAndGather) {
  for (std::int64_t count = 1; count <= 8; ++count) {
    Group group(count);
    group.start_all([&](Meeting& meeting) {
      EXPECT_EQ(meeting.count(), count);
      for (int round = 0; round < 3; ++round) {
        const auto texts =
            meeting.all_gather(std::string(1, '\0') + std::to_string(10 * round + meeting.rank()));
        ASSERT_EQ(texts.size(), static_cast<std::size_t>(count));
        for (std::int64_t rank = 0; rank < count; ++rank)
          EXPECT_EQ(texts[static_cast<std::size_t>(rank)],
                    std::string(1, '\0') + std::to_string(10 * round + rank));
      }
    });
    group.join();
    for (std::int64_t rank = 0; rank < count; ++rank) EXPECT_EQ(group.outcome(rank).error, "");
  }
}

TEST(Meeting, LongTextsComeInPieces) {
  Group group(5);
  group.start_all([&](Meeting& meeting) {
    const auto texts =
        meeting.all_gather(std::string(kLongestText, static_cast<char>('a' + meeting.rank())));
    ASSERT_EQ(texts.size(), 5U);
    for (std::size_t rank = 0; rank < 5; ++rank)
      EXPECT_EQ(texts[rank], std::string(kLongestText, static_cast<char>('a' + rank)));
    EXPECT_THROW(meeting.all_gather(std::string(kLongestText + 1, 'x')), UsageError);
  });
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(Meeting, EveryRankSaysWhoDiffersInWhat) {
  Group group(3);
  group.change = [](MeetingOptions& options) {
    if (options.rank == 2) options.values["data"] = "other";
  };
  group.start_all([](Meeting&) { ADD_FAILURE() << "they met"; });
  group.join();
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(group.outcome(rank).usage);
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("the ranks do not agree on data: rank 2 (host "));
    EXPECT_THAT(group.outcome(rank).error, HasSubstr("has other; ranks 0 and 1 have abc"));
  }
}

TEST(Meeting, AWrongKeyDoesNotComeIn) {
  ManualClock clock;
  Group group(2, &clock);
  group.change = [](MeetingOptions& options) {
    if (options.rank == 1) options.key = key_of("another key");
  };
  group.start_all();
  while (!group.look().rows[0].here) continue;
  advance(clock, group, 61, {0});
  while (group.ended() < 2) {
    clock.advance(seconds(1));
    ::usleep(1000);
  }
  EXPECT_THAT(group.outcome(0).error, HasSubstr("rank 1 of 2 did not come to the meeting at"));
  EXPECT_THAT(group.outcome(0).error, HasSubstr("within 60 s"));
  EXPECT_THAT(group.outcome(1).error, HasSubstr("rank 1 could not join the meeting at"));
  EXPECT_FALSE(group.outcome(1).usage);
}

TEST(Meeting, WhatIsFoundAtThePortIsSaid) {
  Group group(3);
  group.start(0);
  PuppetRank first(group.port(), 1, 3);
  ASSERT_TRUE(first.connection);
  EXPECT_THAT(PuppetRank(group.port(), 1, 3).why,
              HasSubstr("another process has joined as rank 1"));
  EXPECT_THAT(PuppetRank(group.port(), 3, 3).why, HasSubstr("does not expect a rank 3 of 3"));
  EXPECT_THAT(PuppetRank(group.port(), 2, 4).why, HasSubstr("does not expect a rank 2 of 4"));
  EXPECT_THAT(PuppetRank(group.port(), 2, 3, key_of("another")).why, HasSubstr("SEGFUSE_JOB_KEY"));
  first.here();
  PuppetRank second(group.port(), 2, 3);
  second.here();
  ASSERT_TRUE(second.next());
  EXPECT_THAT(PuppetRank(group.port(), 2, 3).why, HasSubstr("all ranks"));
  for (PuppetRank* puppet : {&first, &second}) puppet->send(Bye{});
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(Meeting, ARankMayComeAgainBeforeItHasSaidWhoItIs) {
  Group group(2);
  group.start(0);
  {
    PuppetRank gone(group.port(), 1, 2);
  }
  // The end of the former connection may be noticed a moment later.
  while (!PuppetRank(group.port(), 1, 2).connection) continue;
  std::optional<PuppetRank> again;
  do again.emplace(group.port(), 1, 2);
  while (!again->connection);
  again->here();
  again->send(Bye{});
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(Meeting, ThePortThatSomebodyHasIsSaidWithItsOwner) {
  const Descriptor taken = listen_at("127.0.0.1", 0);
  const int port = port_of(taken.get());
  try {
    listen_at("127.0.0.1", port);
    ADD_FAILURE() << "two listen at one port";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("pid " + std::to_string(::getpid())));
    EXPECT_THAT(error.what(), HasSubstr("MASTER_PORT"));
  }
}

TEST(Meeting, AClosedConnectionIsTheFirstCauseOnEveryRank) {
  Group group(3);
  for (const std::int64_t rank : {0, 1})
    group.start(rank, [](Meeting& meeting) {
      meeting.all_gather("x");
      ADD_FAILURE() << "a rank was missing";
    });
  {
    PuppetRank puppet(group.port(), 2, 3);
    // Whoever comes when rank 0 has gone hears nothing.
    while (!group.look().rows[0].here || !group.look().rows[1].here) continue;
    puppet.here();
    puppet.send(Beat{{.step = 1201, .phase = Phase::kBackward}});
  }
  group.join();
  for (const std::int64_t rank : {0, 1}) {
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("rank 2 (host puppet, pid 7) was lost in step 1201, backward, "));
    EXPECT_THAT(group.outcome(rank).error, HasSubstr("its connection closed"));
    EXPECT_FALSE(group.outcome(rank).usage);
  }
}

TEST(Meeting, AMalformedMessageOfARankIsItsLoss) {
  Group group(2);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  PuppetRank puppet(group.port(), 1, 2);
  puppet.here();
  puppet.connection->send("\xff");
  puppet.connection->flush();
  group.join();
  EXPECT_THAT(group.outcome(0).error, HasSubstr("rank 1 (host puppet, pid 7) was lost"));
  EXPECT_THAT(group.outcome(0).error, HasSubstr("malformed"));
}

TEST(Meeting, ASilentRankIsLostByTheClockAlone) {
  ManualClock clock;
  Group group(3, &clock);
  for (const std::int64_t rank : {0, 1})
    group.start(rank, [](Meeting& meeting) { meeting.all_gather("x"); });
  PuppetRank puppet(group.port(), 2, 3);
  puppet.here();
  while (!std::holds_alternative<Agreed>(*puppet.next())) continue;
  advance(clock, group, 4, {0, 1});
  EXPECT_EQ(group.look().failure, "");
  advance(clock, group, 2, {0, 1});
  group.join();
  for (const std::int64_t rank : {0, 1})
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("rank 2 (host puppet, pid 7) was lost in step 0, "
                          "starting, 5.0 s after its last report: 3 "
                          "heartbeats are missing"));
}

TEST(Meeting, RankZeroThatIsSilentIsLostForTheOthers) {
  // Its threads are there, but its clock stands still, as in a process that was stopped.
  ManualClock stands;
  ManualClock runs;
  Group group(2);
  group.change = [&](MeetingOptions& options) {
    options.clock = options.rank == 0 ? &stands : &runs;
  };
  std::atomic<bool> agreed = false;
  group.start(0, [](Meeting& meeting) {
    while (!meeting.failure()) ::usleep(1000);
  });
  group.start(1, [&](Meeting& meeting) {
    agreed = true;
    meeting.all_gather("x");
    ADD_FAILURE() << "rank 0 did not gather";
  });
  while (!agreed) ::usleep(1000);
  while (group.ended() < 2) {
    runs.advance(seconds(1));
    ::usleep(1000);
  }
  EXPECT_THAT(group.outcome(1).error, HasSubstr("rank 0 (host "));
  EXPECT_THAT(group.outcome(1).error, HasSubstr("3 heartbeats are missing"));
}

TEST(Meeting, AStuckRankIsNamedWithWhatItDoes) {
  ManualClock clock;
  Group group(3, &clock);
  group.change = [](MeetingOptions& options) { options.timings.stuck = seconds(8); };
  std::atomic<bool> over = false;
  for (const std::int64_t rank : {0, 1, 2})
    group.start(rank, [&, rank](Meeting& meeting) {
      if (rank == 1) {
        meeting.report({.step = 3, .phase = Phase::kReadingData, .doing = "recording 'x.flac'"});
        while (!over && !meeting.failure()) ::usleep(1000);
        meeting.check();
      }
      meeting.report({.step = 3, .bucket = 2, .phase = Phase::kExchange});
      meeting.all_gather("x");
    });
  while (group.look().rows.size() != 3 || !group.look().rows[2].here) continue;
  await_phase(group, clock, Phase::kExchange, 2);
  await_phase(group, clock, Phase::kReadingData, 1);
  const Rows rows = group.look();
  EXPECT_FALSE(rows.rows[0].awaited);
  EXPECT_TRUE(rows.rows[1].awaited);
  EXPECT_EQ(rows.rows[1].pid, ::getpid());
  advance(clock, group, 12, {0, 1, 2});
  over = true;
  group.join();
  for (const std::int64_t rank : {0, 1, 2}) {
    EXPECT_THAT(group.outcome(rank).error, HasSubstr("rank 1 (host "));
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("has been reading data (recording 'x.flac') for"));
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("and has not joined bucket 2 of step 3; 2 ranks wait"));
  }
}

TEST(Meeting, ARanksOwnFailureReachesTheOthers) {
  Group group(3);
  std::atomic<int> told = 0;
  const auto board = std::make_shared<Board>(3);
  group.change = [&](MeetingOptions& options) {
    options.board = board;
    options.failed = [&](const Failure& failure) {
      EXPECT_EQ(failure.rank, 1);
      ++told;
    };
  };
  group.start_all([](Meeting& meeting) {
    meeting.report({.step = 4, .phase = Phase::kReadingData});
    if (meeting.rank() == 1) meeting.note_own_fault();
    if (meeting.rank() == 1) return meeting.fail("there is no paper");
    meeting.all_gather("x");
  });
  group.join();
  for (const std::int64_t rank : {0, 1, 2})
    EXPECT_THAT(group.outcome(rank).error,
                HasSubstr("failed in step 4, reading data: there is no paper"));
  EXPECT_EQ(told, 3);
  for (const std::int64_t rank : {0, 1, 2}) {
    EXPECT_EQ(board->read(rank)->cause, 1);
    EXPECT_EQ(board->read(rank)->own_fault, rank == 1);
  }
}

TEST(Meeting, TheFirstCauseStaysTheFirst) {
  ManualClock clock;
  Group group(3, &clock);
  std::atomic<bool> over = false;
  std::atomic<bool> agreed = false;
  group.start(0, [&](Meeting&) {
    agreed = true;
    while (!over) ::usleep(1000);
  });
  PuppetRank one(group.port(), 1, 3);
  one.here();
  PuppetRank two(group.port(), 2, 3);
  two.here();
  while (!agreed) ::usleep(1000);
  one.send(Trouble{false, "the first"});
  while (!std::holds_alternative<Ended>(*two.next())) continue;
  two.send(Beat{{.step = 77}});
  two.send(Trouble{false, "the second"});
  while (group.look().rows[2].state.step != 77) continue;
  EXPECT_THAT(group.look().failure, HasSubstr("the first"));
  over = true;
  group.join();
  EXPECT_THAT(group.outcome(0).error, HasSubstr("the first"));
}

TEST(Meeting, ARankThatEndsEarlyIsNamed) {
  Group group(2);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  group.start(1, [](Meeting&) { throw DataError("a file is wrong"); });
  group.join();
  EXPECT_THAT(group.outcome(0).error, HasSubstr("rank 1 (host "));
  EXPECT_THAT(group.outcome(0).error, HasSubstr("ended before its work was done"));
  EXPECT_EQ(group.outcome(1).error, "a file is wrong");
}

TEST(Meeting, AHintWaitsForTheCause) {
  ManualClock clock;  // stands still: only the closed connection can end this
  Group group(2, &clock);
  std::atomic<bool> hinted = false;
  group.start(0, [&](Meeting& meeting) {
    hinted = true;
    meeting.throw_cause("NCCL: remote error");
  });
  {
    PuppetRank puppet(group.port(), 1, 2);
    puppet.here();
    while (!hinted) ::usleep(1000);
  }
  group.join();
  EXPECT_THAT(group.outcome(0).error, HasSubstr("rank 1 (host puppet, pid 7) was lost"));
}

TEST(Meeting, AHintWithoutACauseIsTheCause) {
  ManualClock clock;
  Group group(2, &clock);
  group.start(0, [&](Meeting& meeting) { meeting.throw_cause("NCCL: remote error"); });
  group.start(1, [&](Meeting& meeting) { meeting.all_gather("x"); });
  while (!group.look().rows[1].here) continue;
  while (group.ended() < 2) advance(clock, group, 1, {0, 1});
  for (const std::int64_t rank : {0, 1})
    EXPECT_THAT(group.outcome(rank).error, HasSubstr("NCCL: remote error"));
}

TEST(Meeting, ItIsFoundInTheFolderWhileItLasts) {
  const segfuse::test::TemporaryDirectory temporary;
  const std::filesystem::path& folder = temporary.path();
  Group group(2);
  group.start_all([&](Meeting& meeting) {
    meeting.publish(folder);
    if (meeting.rank() == 0) {
      meeting.report({.step = 9, .phase = Phase::kScoring});
      struct stat status{};
      EXPECT_EQ(::stat((folder / kPlaceFile).c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, 0600U);
      const Place place = read_place(folder / kPlaceFile);
      EXPECT_EQ(place.key, kKey);
      EXPECT_EQ(place.count, 2);
      EXPECT_EQ(look(place, SteadyClock(), {}).rows.size(), 2U);
      Place other = place;
      other.key = key_of("another");
      EXPECT_THROW(look(other, SteadyClock(), {}), CommError);
    }
    meeting.all_gather("x");
  });
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
  EXPECT_FALSE(std::filesystem::exists(folder / kPlaceFile));
}

/// Whoever fails goes on at once, while the meeting's thread still removes the place.
TEST(Meeting, ItsPlaceIsRemovedWhileAFailedRankLeaves) {
  const segfuse::test::TemporaryDirectory temporary;
  const std::filesystem::path& folder = temporary.path();  // longer than a short string
  for (int round = 0; round < 200; ++round) {
    Group group(2);
    group.start_all([&](Meeting& meeting) {
      meeting.publish(folder);
      meeting.all_gather("x");
      if (meeting.rank() == 0) meeting.fail("no more data", ExitCode::kData);
      meeting.check();
    });
    group.join();
    EXPECT_THAT(group.outcome(0).error + group.outcome(1).error, HasSubstr("no more data"));
    EXPECT_FALSE(std::filesystem::exists(folder / kPlaceFile));
  }
}

TEST(Meeting, WaitingForTheOthersCanBeInterrupted) {
  Group group(2);
  group.change = [](MeetingOptions& options) { options.stop = [] { return true; }; };
  group.start(0);
  group.start(1);
  group.join();
  EXPECT_THAT(group.outcome(0).error, HasSubstr("interrupted while the other ranks were awaited"));
}

TEST(Job, KeysComeFromASecretOrAJob) {
  ::unsetenv(kKeyVariable);
  EXPECT_THROW(key_of_environment(""), UsageError);
  const Key weak = key_of_environment("Slurm 99.2");
  EXPECT_TRUE(weak.weak);
  EXPECT_EQ(weak.bytes.size(), 32U);
  EXPECT_NE(weak.bytes, key_of_environment("Slurm 99.3").bytes);
  ::setenv(kKeyVariable, "short", 1);
  EXPECT_THROW(key_of_environment("Slurm 99.2"), UsageError);
  ::setenv(kKeyVariable, "a secret of some length", 1);
  const Key strong = key_of_environment("Slurm 99.2");
  EXPECT_FALSE(strong.weak);
  EXPECT_EQ(strong.bytes, key_of("a secret of some length"));
  ::unsetenv(kKeyVariable);
  EXPECT_NE(new_secret(), new_secret());
}

TEST(Job, WhatIsMissingIsSaid) {
  ::setenv(kKeyVariable, "a secret of some length", 1);
  Ranks ranks;
  ranks.count = 4;
  ranks.launcher = "MPI";
  EXPECT_THROW(options_of(ranks), UsageError);  // MASTER_ADDR
  ranks.host = "127.0.0.1";
  EXPECT_THROW(options_of(ranks), UsageError);  // MASTER_PORT
  ranks.job = "PMI_JOBID 5";
  const int port = options_of(ranks).port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(options_of(ranks).port, port);
  ranks.port = 29500;
  EXPECT_EQ(options_of(ranks).port, 29500);
  ::unsetenv(kKeyVariable);
}

}  // namespace
}  // namespace segfuse::comm::meet
