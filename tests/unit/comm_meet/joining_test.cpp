// Processes that come in the place of ranks that were lost: what they say, and what comes out.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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
    rank.connection.reset();  // rank 0 waits for that
  }
  /// Time passes while these report.
  void pass(ManualClock& clock, int count, const std::vector<PuppetRank*>& who) const {
    for (int second = 0; second < count; ++second) {
      clock.advance(seconds(1));
      for (PuppetRank* rank : who) rank->send(Beat{});
      const auto is_behind = [&] {
        const std::vector<Row> rows = group.look().rows;
        return (rows[1].silent > 0.5 && !rows[1].lost) || rows[0].silent > 2.5;
      };
      while (is_behind()) continue;
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

/// The end of a pipe that a launcher has, in `other`.
void come_from_a_launcher(MeetingOptions& options, Descriptor& other) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  options.launcher = Descriptor(ends[0]);
  other = Descriptor(ends[1]);
}

TEST(Joining, WhoHasOnlyGreetedIsToldOfTheEnd) {
  for (const bool fails : {true, false}) {
    std::atomic<bool> ended = false;
    std::atomic<bool> done = false;
    TwoOfThree ranks([&](Meeting& meeting) {
      if (fails)
        EXPECT_THROW(meeting.await_change(), CommError);
      else
        meeting.leave();
      ended = true;
      while (!done) ::usleep(1000);
    });
    PuppetRank greeted(ranks.group.port(), 2, 3);
    if (fails)
      ranks.one->send(Trouble{false, "it is broken", 0, 1});
    else
      ranks.one->send(Bye{1});
    while (!ended) ::usleep(1000);
    greeted.here();  // says no more than it was told already
    if (fails)
      EXPECT_THAT(TwoOfThree::await<Ended>(greeted).failure.sentence, HasSubstr("it is broken"));
    else
      TwoOfThree::await<Bye>(greeted);
    greeted.connection.reset();
    if (!fails) {
      Descriptor launcher;
      MeetingOptions options = ranks.group.options(2);
      come_from_a_launcher(options, launcher);
      EXPECT_THROW(Meeting(std::move(options)), EndedByRank);
      EXPECT_THROW(Meeting(ranks.group.options(2)), CommError);
    }
    done = true;
    ranks.group.join();
  }
}

TEST(Joining, TheEndIsUnderstoodAlsoWhereItComesFirst) {
  const SteadyClock clock;
  const Time limit = clock.now() + seconds(60);
  for (const bool launched : {true, false}) {
    Group group(3);
    MeetingOptions options = group.options(2);
    const Descriptor listening = std::move(group.options(0).listening);
    std::thread first([&] {  // rank 0 of others that end just now
      ASSERT_TRUE(wait_for(listening.get(), POLLIN, limit, clock, {}));
      Guest guest =
          comm::meet::admit(accept_one(listening.get()), test::kKey,
                            [](const Visitor&) { return Verdict::kWelcome; }, limit, clock, {});
      ASSERT_TRUE(guest.connection);
      guest.connection->send(encode(Bye{1}));
      EXPECT_TRUE(guest.connection->flush());
      guest.connection->end();
      while (guest.connection->receive()) ::usleep(1000);
    });
    Descriptor launcher;
    if (launched) {
      come_from_a_launcher(options, launcher);
      EXPECT_THROW(Meeting(std::move(options)), EndedByRank);
    } else {
      try {
        Meeting meeting(std::move(options));
        ADD_FAILURE() << "there is nobody to meet";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("was done before rank 2 could join them"));
      }
    }
    first.join();
  }
}

/// Rank 0 alone takes in ranks 1 and 2 together. Which one is given up after `happens` and, by the
/// clock, as many seconds; the other one goes on.
std::int64_t given_up_of_two(int passes,
                             const std::function<void(PuppetRank&, PuppetRank&)>& happens) {
  ManualClock clock;
  std::atomic<bool> both = false;
  std::atomic<bool> gathered = false;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        EXPECT_THROW(meeting.await_change(), RanksChanged);
        meeting.renew();
        while (!both) ::usleep(1000);
        admit(meeting);
        EXPECT_EQ(meeting.all_gather("0").size(), 3U);
        gathered = true;
        EXPECT_THROW(meeting.await_change(), RanksChanged);
        meeting.renew();
        EXPECT_EQ(meeting.ranks().size(), 2U);
      },
      &clock);
  ranks.one.reset();
  while (ranks.group.look().generation < 2) ::usleep(1000);
  ranks.one = ranks.come(1);
  const auto two = ranks.come(2);
  for (PuppetRank* rank : {ranks.one.get(), two.get()}) {
    TwoOfThree::await<Agreed>(*rank);
    rank->send(Knock{});
  }
  EXPECT_EQ(ranks.group.look().generation, 2);  // both knocks were heard before that
  both = true;
  for (PuppetRank* rank : {ranks.one.get(), two.get()}) {
    TwoOfThree::await<Changed>(*rank);
    rank->send(Text{0, "x", 3});
  }
  for (PuppetRank* rank : {ranks.one.get(), two.get()}) TwoOfThree::await<Texts>(*rank);
  while (!gathered) ::usleep(1000);  // a change before would be what that call throws
  happens(*ranks.one, *two);
  ranks.pass(clock, passes, {ranks.one.get(), two.get()});
  const std::int64_t given_up = TwoOfThree::await<Changed>(*ranks.one).loss.rank;
  EXPECT_EQ(TwoOfThree::await<Changed>(*two).loss.rank, given_up);
  (given_up == 1 ? *ranks.one : *two).connection.reset();
  ranks.part(given_up == 1 ? *two : *ranks.one, 4);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
  return given_up;
}

TEST(Joining, OfThoseThatHangTheLastIsGivenUp) {
  EXPECT_EQ(given_up_of_two(31, [](PuppetRank&, PuppetRank&) {}), 2);
}

TEST(Joining, OfTwoThatCannotConnectTheOneThatIsNotReachedIsGivenUp) {
  EXPECT_EQ(given_up_of_two(7,
                            [](PuppetRank&, PuppetRank& two) {
                              two.send(Trouble{true, "nobody listens there", 0, 3, 1});
                            }),
            1);
  EXPECT_EQ(given_up_of_two(7,
                            [](PuppetRank&, PuppetRank& two) {
                              two.send(Trouble{true, "nobody listens there", 0, 3, 0});
                            }),
            2);
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

/// What the others hear where `who` of ranks 1 and 2, of which 2 was just taken in, tells of
/// trouble; where that is a hint, with rank `about`.
std::string loss_after_trouble(std::int64_t who, std::int64_t about = -1) {
  const bool hint = about >= 0;
  ManualClock clock;
  std::atomic<bool> taken_in = false;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        admit(meeting);
        taken_in = true;
        EXPECT_THROW(meeting.await_change(), RanksChanged);
        meeting.renew();
        EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1));
      },
      &clock);
  auto two = ranks.come(2);
  TwoOfThree::await<Agreed>(*two);
  two->send(Knock{});
  TwoOfThree::await<Changed>(*ranks.one);
  while (!taken_in) ::usleep(1000);
  (who == 1 ? *ranks.one : *two).send(Trouble{hint, "a cable is broken", hint ? 0 : 4, 2, about});
  ranks.pass(clock, hint ? 7 : 0, {ranks.one.get(), two.get()});
  const Changed changed = TwoOfThree::await<Changed>(*ranks.one);
  EXPECT_EQ(changed.loss.rank, 2);
  EXPECT_EQ(TwoOfThree::await<Changed>(*two).loss.rank, -1);
  EXPECT_EQ(TwoOfThree::await<Changed>(*two).loss.rank, 2);
  two.reset();
  ranks.part(*ranks.one, 3);
  ranks.group.join();
  EXPECT_EQ(ranks.group.outcome(0).error, "");
  return changed.loss.sentence;
}

TEST(Joining, ANewcomerThatFailsBeforeItsFirstStepIsGivenUp) {
  EXPECT_THAT(
      loss_after_trouble(2),
      HasSubstr("rank 2 (host puppet, pid 7) failed in step 0, starting: a cable is broken"));
}

TEST(Joining, ANewcomerThatCannotConnectIsGivenUp) {
  EXPECT_THAT(
      loss_after_trouble(2, 0),
      HasSubstr("rank 2 (host puppet, pid 7) failed in step 0, starting: a cable is broken"));
  EXPECT_THAT(
      loss_after_trouble(1, 2),
      AllOf(HasSubstr("rank 2 (host puppet, pid 7) was lost in step 0, starting"),
            HasSubstr("rank 1 (host puppet, pid 7) failed in step 0, starting: a cable is")));
}

TEST(Joining, ANewcomerIsNotToBlameForAConnectionOfOthers) {
  ManualClock clock;
  std::atomic<bool> taken_in = false;
  TwoOfThree ranks(
      [&](Meeting& meeting) {
        admit(meeting);
        taken_in = true;
        EXPECT_THROW(meeting.await_change(), CommError);
        EXPECT_EQ(meeting.generation(), 2);
      },
      &clock);
  auto two = ranks.come(2);
  TwoOfThree::await<Agreed>(*two);
  two->send(Knock{});
  TwoOfThree::await<Changed>(*ranks.one);
  while (!taken_in) ::usleep(1000);
  ranks.one->send(Trouble{true, "a cable is broken", 0, 2, 0});
  ranks.pass(clock, 4, {ranks.one.get(), two.get()});
  clock.advance(seconds(2));  // then nobody answers any more
  EXPECT_EQ(TwoOfThree::await<Ended>(*two).failure.rank, 1);
  ranks.group.join();
}

TEST(Joining, OneThatHasBegunAStepEndsAllWhereItFails) {
  std::atomic<bool> taken_in = false;
  TwoOfThree ranks([&](Meeting& meeting) {
    admit(meeting);
    taken_in = true;
    EXPECT_THROW(meeting.await_change(), CommError);
    EXPECT_EQ(meeting.generation(), 2);
  });
  auto two = ranks.come(2);
  TwoOfThree::await<Agreed>(*two);
  two->send(Knock{});
  TwoOfThree::await<Changed>(*ranks.one);
  while (!taken_in) ::usleep(1000);
  two->send(Beat{{.step = 1}});
  two->send(Trouble{false, "it is broken", 0, 2});
  EXPECT_EQ(TwoOfThree::await<Ended>(*ranks.one).failure.rank, 2);
  ranks.group.join();
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

}  // namespace
}  // namespace segfuse::comm::meet
