// Processes that come in the place of ranks that were lost: what they say, and what comes out.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

#include "comm/launch/launch.h"
#include "comm/ranks_changed.h"
#include "support/meet/group.h"

namespace segfuse::comm::meet {
namespace {

using std::chrono::seconds;
using test::Group;
using test::ManualClock;
using test::PuppetRank;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Three ranks of which one has gone: rank 0 is `first`, rank 1 a puppet.
struct TwoOfThree {
  explicit TwoOfThree(const std::function<void(Meeting&)>& first, const Clock* clock = nullptr)
      : group(3, clock) {
    group.change = [](MeetingOptions& options) { options.min_ranks = 1; };
    group.start(0, [this, first](Meeting& meeting) {
      EXPECT_THROW(meeting.all_gather("old"), RanksChanged);
      meeting.renew();
      renewed = true;
      first(meeting);
    });
    one = come(1);
    auto two = come(2);
    await<Agreed>(*one);
    two.reset();
    EXPECT_THAT(await<Changed>(*one).ranks, ElementsAre(0, 1));
    while (!renewed) ::usleep(1000);  // another change before would be one with this
  }

  std::unique_ptr<PuppetRank> come(std::int64_t rank) const {
    auto puppet = std::make_unique<PuppetRank>(group.port(), rank, 3);
    if (puppet->connection) puppet->here();
    return puppet;
  }
  template <class T>
  static T await(PuppetRank& rank) {
    for (;;) {
      const auto message = rank.next();
      if (!message) throw CommError("the connection closed");
      if (const auto* found = std::get_if<T>(&*message)) return *found;
    }
  }
  /// The end of a puppet's work in this generation.
  void part(PuppetRank& rank, std::int64_t generation) {
    rank.send(Bye{generation});
    await<Bye>(rank);
  }
  /// Time passes while these report.
  void pass(ManualClock& clock, int count, const std::vector<PuppetRank*>& who) const {
    for (int second = 0; second < count; ++second) {
      clock.advance(seconds(1));
      for (PuppetRank* rank : who) rank->send(Beat{});
      while (group.look().rows[1].silent > 0.5 || group.look().rows[0].silent > 2.5) continue;
    }
  }

  std::atomic<bool> renewed = false;
  Group group;
  std::unique_ptr<PuppetRank> one;
};

/// Takes in who waits, and is one of the new ranks.
void admit(Meeting& meeting) {
  while (!meeting.somebody_waits()) ::usleep(1000);
  meeting.admit();
  EXPECT_THROW(meeting.await_change(), RanksChanged);
  EXPECT_THROW(meeting.check(), RanksChanged);
  meeting.renew();
}

TEST(Joining, ANewcomerIsOneOfTheRanksOnceItIsTakenIn) {
  TwoOfThree ranks([](Meeting& meeting) {
    EXPECT_FALSE(meeting.is_late());
    EXPECT_FALSE(meeting.somebody_waits());
    meeting.leave_note("shards", "8");
    admit(meeting);
    EXPECT_EQ(meeting.generation(), 2);
    EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1, 2));
    EXPECT_FALSE(meeting.somebody_waits());
    EXPECT_THAT(meeting.all_gather("0"), ElementsAre("0", "1", "2"));
  });
  ranks.group.start(2, [](Meeting& meeting) {
    EXPECT_TRUE(meeting.is_late());
    EXPECT_EQ(meeting.note("shards"), "8");
    meeting.enter();
    EXPECT_EQ(meeting.generation(), 2);
    EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1, 2));
    EXPECT_THAT(meeting.all_gather("2"), ElementsAre("0", "1", "2"));
  });
  const Changed changed = TwoOfThree::await<Changed>(*ranks.one);
  EXPECT_EQ(changed.generation, 2);
  EXPECT_EQ(changed.loss.rank, -1);
  EXPECT_THAT(changed.ranks, ElementsAre(0, 1, 2));
  ranks.one->send(Text{0, "1", 2});
  EXPECT_EQ(TwoOfThree::await<Texts>(*ranks.one).texts.size(), 3U);
  ranks.part(*ranks.one, 2);
  ranks.group.join();
  for (const std::int64_t rank : {0, 2}) EXPECT_EQ(ranks.group.outcome(rank).error, "");
}

TEST(Joining, WhoDiffersIsRefusedAndTheOthersGoOn) {
  std::atomic<bool> done = false;
  TwoOfThree ranks([&](Meeting& meeting) {
    while (!done) ::usleep(1000);
    EXPECT_EQ(meeting.generation(), 1);
    meeting.check();
  });
  ranks.group.change = [](MeetingOptions& options) { options.values["data"] = "xyz"; };
  ranks.group.start(2);
  while (ranks.group.ended() < 1) ::usleep(1000);
  EXPECT_TRUE(ranks.group.outcome(2).usage);
  EXPECT_THAT(ranks.group.outcome(2).error,
              AllOf(HasSubstr("the ranks do not agree on data: rank 2 (host "),
                    HasSubstr("has xyz; ranks 0 and 1 have abc")));
  const int port = ranks.group.port();
  EXPECT_THAT(PuppetRank(port, 2, 3, key_of("another")).why,
              HasSubstr("has another key (SEGFUSE_JOB_KEY)"));
  EXPECT_THAT(PuppetRank(port, 2, 4).why, HasSubstr("does not expect a rank 2 of 4"));
  EXPECT_THAT(PuppetRank(port, 1, 3).why,
              HasSubstr("another process has joined as rank 1 there already"));
  const auto waits = ranks.come(2);
  TwoOfThree::await<Agreed>(*waits);
  EXPECT_THAT(PuppetRank(port, 2, 3).why,
              HasSubstr("another process has joined as rank 2 there already"));
  EXPECT_EQ(ranks.group.look().failure, "");
  done = true;
  ranks.part(*ranks.one, 1);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
}

TEST(Joining, WhoComesWhenTheWorkIsDoneIsToldSo) {
  TwoOfThree ranks([](Meeting&) {});
  std::atomic<bool> late = false;
  ranks.group.start(2, [&](Meeting& meeting) {
    late = meeting.is_late();
    meeting.enter();
  });
  while (!late) ::usleep(1000);
  ranks.part(*ranks.one, 1);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
  EXPECT_THAT(ranks.group.outcome(2).error, HasSubstr("was done before rank 2 could join them"));
}

TEST(Joining, ANewcomerThatGoesOrIsSilentHarmsNobody) {
  ManualClock clock;
  std::atomic<int> seen = 0;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        for (int turn = 0; turn < 2; ++turn) {
          while (!meeting.somebody_waits()) ::usleep(1000);
          ++seen;
          while (meeting.somebody_waits()) ::usleep(1000);
          ++seen;
        }
        // Nobody is left: all learn it.
        meeting.admit();
        EXPECT_THROW(meeting.await_change(), RanksChanged);
        meeting.renew();
        EXPECT_EQ(meeting.generation(), 2);
        EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1));
      },
      &clock);
  auto goes = ranks.come(2);
  TwoOfThree::await<Agreed>(*goes);
  goes->send(Knock{});
  while (seen < 1) ::usleep(1000);
  goes.reset();
  while (seen < 2) ::usleep(1000);
  auto silent = ranks.come(2);
  TwoOfThree::await<Agreed>(*silent);
  silent->send(Knock{});
  while (seen < 3) ::usleep(1000);
  ranks.pass(clock, 6, {ranks.one.get()});
  EXPECT_THAT(TwoOfThree::await<Changed>(*ranks.one).ranks, ElementsAre(0, 1));
  ranks.part(*ranks.one, 2);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
}

/// What the others hear of a newcomer that reports and does no more after `gathers` gathers.
std::string loss_of_newcomer(int gathers, int before, int after) {
  ManualClock clock;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        admit(meeting);
        for (int round = 0; round < gathers; ++round) EXPECT_EQ(meeting.all_gather("0").size(), 3U);
        EXPECT_THROW(meeting.await_change(), RanksChanged);
        meeting.renew();
        EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1));
      },
      &clock);
  auto two = ranks.come(2);
  TwoOfThree::await<Agreed>(*two);
  two->send(Knock{});
  TwoOfThree::await<Changed>(*ranks.one);
  for (std::uint64_t round = 0; round < static_cast<std::uint64_t>(gathers); ++round) {
    for (PuppetRank* rank : {ranks.one.get(), two.get()}) rank->send(Text{round, "x", 2});
    TwoOfThree::await<Texts>(*ranks.one);
  }
  ranks.pass(clock, before, {ranks.one.get(), two.get()});
  EXPECT_EQ(ranks.group.look().generation, 2);
  ranks.pass(clock, after, {ranks.one.get(), two.get()});
  const Changed changed = TwoOfThree::await<Changed>(*ranks.one);
  EXPECT_EQ(TwoOfThree::await<Changed>(*two).loss.rank, -1);
  EXPECT_EQ(TwoOfThree::await<Changed>(*two).loss.rank, 2);  // it may be there still
  ranks.part(*ranks.one, 3);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
  return changed.loss.sentence;
}

TEST(Joining, ANewcomerThatHangsIsGivenUp) {
  EXPECT_THAT(loss_of_newcomer(0, 25, 8), HasSubstr("did not come to the others within 30 s"));
  EXPECT_THAT(loss_of_newcomer(1, 25, 8), HasSubstr("did not come to the others within 30 s"));
  EXPECT_THAT(loss_of_newcomer(2, 590, 12), HasSubstr("did not begin a step within 600 s"));
}

TEST(Joining, ANewcomerThatBeginsAStepHasArrived) {
  ManualClock clock;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        admit(meeting);
        EXPECT_EQ(meeting.all_gather("0").size(), 3U);
      },
      &clock);
  auto two = ranks.come(2);
  TwoOfThree::await<Agreed>(*two);
  two->send(Knock{});
  TwoOfThree::await<Changed>(*ranks.one);
  two->send(Beat{{.step = 1}});
  while (ranks.group.look().rows[2].state.step != 1) continue;
  ranks.pass(clock, 40, {ranks.one.get(), two.get()});
  EXPECT_EQ(ranks.group.look().generation, 2);
  for (PuppetRank* rank : {ranks.one.get(), two.get()}) {
    rank->send(Text{0, "x", 2});
    rank->send(Bye{2});
  }
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
}

TEST(Joining, OnlyRankZeroTakesIn) {
  TwoOfThree ranks([](Meeting& meeting) {
    EXPECT_THROW(meeting.await_change(), RanksChanged);
    meeting.renew();
    EXPECT_THAT(meeting.ranks(), ElementsAre(0));
  });
  ranks.one->send(Admit{1});
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
}

/// Processes of which some are replaced.
class JoiningProcesses : public ::testing::Test {
 protected:
  launch::LaunchResult run(std::int64_t count, int replacements,
                           const std::vector<std::string>& more) {
    launch::LaunchRequest request;
    request.arguments = {SEGFUSE_MEET_RANK, "min=1", "steps=12"};
    request.arguments.insert(request.arguments.end(), more.begin(), more.end());
    request.count = count;
    request.min_ranks = 1;
    request.grace = std::chrono::milliseconds(500);
    said.clear();
    errors.clear();
    lost.clear();
    pids.clear();
    replaced = 0;
    request.line = [this](std::int64_t rank, bool error, std::string_view line) {
      if (error)
        errors[rank] += std::string(line) + "\n";
      else
        said += line;
    };
    request.started = [this](std::int64_t, int pid) { pids.push_back(pid); };
    request.lost = [this](std::int64_t rank, std::string_view sentence) { lost[rank] = sentence; };
    request.replace = [this, replacements](std::int64_t, std::string_view) {
      return ++replaced <= replacements;
    };
    const launch::LaunchResult result = launch::launch(request);
    for (const int pid : pids) EXPECT_NE(::kill(pid, 0), 0) << pid << " is left";
    return result;
  }
  std::string value() const { return said.substr(0, said.find(' ')); }
  std::string all_errors() const {
    std::string all;
    for (const auto& [rank, text] : errors) all += text;
    return all;
  }

  std::string said;
  std::map<std::int64_t, std::string> errors;
  std::map<std::int64_t, std::string> lost;
  std::vector<int> pids;
  int replaced = 0;
};

TEST_F(JoiningProcesses, EightThenFiveThenEight) {
  ASSERT_EQ(run(3, 0, {}).exit_code, 0) << all_errors();
  const std::string expected = value();
  const auto result = run(8, 3, {"kill=2@2,5@2,7@3", "whole=5"});
  EXPECT_EQ(result.exit_code, 0) << result.sentence << all_errors();
  EXPECT_EQ(said, expected + " by 8");
  EXPECT_EQ(pids.size(), 11U);
  EXPECT_THAT(lost, IsEmpty());
  EXPECT_THAT(errors[0], HasSubstr("; 8 of 8 ranks go on (generation "));
}

TEST_F(JoiningProcesses, ANewcomerThatDiesIsNoLossForTheResult) {
  ASSERT_EQ(run(3, 0, {}).exit_code, 0) << all_errors();
  const std::string expected = value();
  // Before each step from the fourth on one joins and is killed in the unit in which it did. The
  // last one is told that the work is done.
  const auto inside = run(3, 100, {"kill=2@2", "inside=kill", "whole=4"});
  EXPECT_EQ(inside.exit_code, 0) << inside.sentence << all_errors();
  EXPECT_EQ(said, expected + " by 2");
  EXPECT_GE(replaced, 9);
  EXPECT_THAT(lost, IsEmpty());
  for (const char* const door : {"kill", "fail"}) {
    const auto result = run(3, 2, {"kill=2@2", fmt::format("door={}", door)});
    EXPECT_EQ(result.exit_code, 0) << result.sentence << all_errors();
    EXPECT_EQ(said, expected + " by 2");
    // One that fails by itself is not replaced, unless the launcher has heard of its end alone.
    EXPECT_LE(replaced, door[0] == 'k' ? 3 : 2);
  }
}

TEST_F(JoiningProcesses, AStoppedNewcomerIsNotLeftOver) {
  ASSERT_EQ(run(3, 0, {}).exit_code, 0) << all_errors();
  const std::string expected = value();
  for (const char* const where : {"door", "inside"}) {
    const bool inside = where[0] == 'i';
    std::vector<std::string> more = {"kill=2@2", fmt::format("{}=stop", where)};
    const auto result = run(3, 1, more);
    EXPECT_EQ(result.exit_code, 0) << result.sentence << all_errors();
    EXPECT_EQ(value(), expected) << inside;
  }
}

}  // namespace
}  // namespace segfuse::comm::meet
