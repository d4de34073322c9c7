// Ranks that go on without one that is lost: what they say to each other, and what comes out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>

#include "comm/launch/launch.h"
#include "comm/ranks_changed.h"
#include "comm/tcp/tcp_group.h"
#include "support/meet/bound.h"
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

/// A group of which `least` ranks are enough.
struct Lasting {
  explicit Lasting(std::int64_t count, std::int64_t least, const Clock* clock = nullptr)
      : group(count, clock) {
    group.change = [least](MeetingOptions& options) { options.min_ranks = least; };
  }
  /// Rank 0 gathers until the ranks change; then it is one of the new ones.
  void start_first(const std::function<void(Meeting&)>& then) {
    group.start(0, [this, then](Meeting& meeting) {
      agreed = true;
      await_change(meeting);
      meeting.renew();
      then(meeting);
    });
  }
  static void await_change(Meeting& meeting) {
    EXPECT_THROW(meeting.all_gather("old"), RanksChanged);
    EXPECT_THROW(meeting.check(), RanksChanged);
  }
  Group group;
  std::atomic<bool> agreed = false;
};

/// A puppet that has met the others.
std::unique_ptr<PuppetRank> puppet(const Group& group, std::int64_t rank, std::int64_t count) {
  auto one = std::make_unique<PuppetRank>(group.port(), rank, count);
  one->here();
  return one;
}

template <class T>
T await(PuppetRank& rank) {
  for (;;) {
    const auto message = rank.next();
    if (!message) throw CommError("the connection closed");
    if (const auto* found = std::get_if<T>(&*message)) return *found;
  }
}

TEST(GoingOn, ThoseThatAreLeftGatherAgain) {
  Lasting ranks(4, 2);
  Group& group = ranks.group;
  for (const std::int64_t rank : {0, 1, 3})
    group.start(rank, [&](Meeting& meeting) {
      EXPECT_EQ(meeting.generation(), 0);
      Lasting::await_change(meeting);
      EXPECT_THROW(meeting.all_gather("still old"), RanksChanged);
      EXPECT_THROW(meeting.leave(), RanksChanged);
      meeting.renew();
      EXPECT_EQ(meeting.generation(), 1);
      EXPECT_THAT(meeting.ranks(), ElementsAre(0, 1, 3));
      for (int round = 0; round < 3; ++round)
        EXPECT_THAT(meeting.all_gather(std::to_string(meeting.rank())), ElementsAre("0", "1", "3"));
      if (meeting.rank() != 0) return;
      const Rows rows = group.look();
      EXPECT_EQ(rows.generation, 1);
      EXPECT_EQ(rows.failure, "");
      for (const Row& row : rows.rows) EXPECT_EQ(row.lost, row.rank == 2);
    });
  {
    auto gone = puppet(group, 2, 4);
    await<Agreed>(*gone);
  }
  group.join();
  for (const std::int64_t rank : {0, 1, 3}) EXPECT_EQ(group.outcome(rank).error, "");
}

TEST(GoingOn, WhatWasSaidInAnOlderGenerationDoesNotCount) {
  ManualClock clock;
  Lasting ranks(3, 1, &clock);
  Group& group = ranks.group;
  ranks.start_first([](Meeting& meeting) {
    EXPECT_THAT(meeting.all_gather("new 0"), ElementsAre("new 0", "new 1"));
    EXPECT_THAT(meeting.all_gather("newer 0"), ElementsAre("newer 0", "newer 1"));
  });
  auto one = puppet(group, 1, 3);
  auto two = puppet(group, 2, 3);
  await<Agreed>(*one);
  two.reset();
  const Changed changed = await<Changed>(*one);
  EXPECT_EQ(changed.generation, 1);
  EXPECT_EQ(changed.loss.rank, 2);
  EXPECT_THAT(changed.loss.sentence, HasSubstr("rank 2 (host puppet, pid 7) was lost in step 0"));
  one->send(Trouble{true, "its connection to rank 2 closed", 0, 0});
  one->send(Bye{0});
  one->send(Text{0, "old 1", 0});
  one->send(Beat{{.step = 5}});
  while (group.look().rows[1].state.step != 5) continue;
  EXPECT_FALSE(group.look().rows[1].left);
  one->send(Text{0, "new 1", 1});
  EXPECT_THAT(await<Texts>(*one).texts, ElementsAre("new 0", "new 1"));
  // The hint of the generation before has no time to become a failure.
  for (int second = 0; second < 10; ++second) {
    clock.advance(seconds(1));
    one->send(Beat{});
    // Rank 0 reports by itself, when its thread has run.
    while (group.look().rows[1].silent > 0.5 || group.look().rows[0].silent > 2.5) continue;
  }
  EXPECT_EQ(group.look().failure, "");
  one->send(Text{1, "newer 1", 1});
  EXPECT_EQ(await<Texts>(*one).generation, 1);
  one->send(Bye{1});
  await<Bye>(*one);
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(GoingOn, AGenerationThatIsStillToComeIsALoss) {
  Lasting ranks(3, 1);
  Group& group = ranks.group;
  ranks.start_first([](Meeting& meeting) {
    EXPECT_THAT(meeting.ranks(), ElementsAre(0, 2));
    EXPECT_THAT(meeting.all_gather("0"), ElementsAre("0", "2"));
  });
  auto one = puppet(group, 1, 3);
  auto two = puppet(group, 2, 3);
  await<Agreed>(*one);
  one->send(Text{0, "from the future", 5});
  EXPECT_THAT(await<Changed>(*two).loss.sentence,
              HasSubstr("a text that belongs to another gather"));
  two->send(Text{0, "2", 1});
  two->send(Bye{1});
  await<Bye>(*two);
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(GoingOn, WhoIsSilentIsLeftBehindAndEnds) {
  ManualClock clock;
  ManualClock stands;
  Lasting ranks(3, 2);
  Group& group = ranks.group;
  group.change = [&](MeetingOptions& options) {
    options.min_ranks = 2;
    options.clock = options.rank == 2 ? &stands : &clock;
  };
  std::atomic<int> agreed = 0;
  group.start(2, [&](Meeting& meeting) {
    ++agreed;
    while (!meeting.failure()) ::usleep(1000);
    meeting.check();
  });
  for (const std::int64_t rank : {0, 1})
    group.start(rank, [&](Meeting& meeting) {
      ++agreed;
      Lasting::await_change(meeting);
      meeting.renew();
      EXPECT_EQ(meeting.all_gather("x").size(), 2U);
    });
  while (agreed < 3) ::usleep(1000);
  while (group.ended() < 3) {
    clock.advance(std::chrono::milliseconds(500));
    ::usleep(20'000);
  }
  group.join();
  for (const std::int64_t rank : {0, 1}) EXPECT_EQ(group.outcome(rank).error, "");
  EXPECT_THAT(group.outcome(2).error,
              AllOf(HasSubstr("rank 2 (host "), HasSubstr("3 heartbeats are missing")));
}

TEST(GoingOn, ALossAfterTheLossStartsAnew) {
  Lasting ranks(4, 1);
  Group& group = ranks.group;
  std::atomic<int> renewed = 0;
  for (const std::int64_t rank : {0, 1})
    group.start(rank, [&](Meeting& meeting) {
      Lasting::await_change(meeting);
      meeting.renew();
      ++renewed;
      Lasting::await_change(meeting);
      meeting.renew();
      EXPECT_EQ(meeting.generation(), 2);
      EXPECT_THAT(meeting.all_gather(std::to_string(meeting.rank())), ElementsAre("0", "1"));
    });
  auto two = puppet(group, 2, 4);
  auto three = puppet(group, 3, 4);
  await<Agreed>(*two);
  two.reset();
  while (renewed < 2) ::usleep(1000);
  three.reset();
  group.join();
  for (const std::int64_t rank : {0, 1}) EXPECT_EQ(group.outcome(rank).error, "");
}

TEST(GoingOn, ARankThatLeftIsAwaitedAgain) {
  Lasting ranks(3, 2);
  Group& group = ranks.group;
  group.start(0, [](Meeting& meeting) {
    EXPECT_THROW(meeting.leave(), RanksChanged);
    meeting.renew();
    EXPECT_EQ(meeting.all_gather("x").size(), 2U);
  });
  auto one = puppet(group, 1, 3);
  auto two = puppet(group, 2, 3);
  await<Agreed>(*one);
  one->send(Bye{0});
  while (!group.look().rows[0].left || !group.look().rows[1].left) continue;
  two.reset();
  await<Changed>(*one);
  EXPECT_FALSE(group.look().rows[1].left);
  one->send(Text{0, "x", 1});
  one->send(Bye{1});
  await<Bye>(*one);
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

TEST(GoingOn, TooFewAreTheEndOfAll) {
  Lasting ranks(3, 2);
  Group& group = ranks.group;
  std::atomic<bool> once = false;
  ranks.start_first([&](Meeting& meeting) {
    once = true;
    meeting.all_gather("x");
    ADD_FAILURE() << "one rank was enough";
  });
  auto one = puppet(group, 1, 3);
  auto two = puppet(group, 2, 3);
  await<Agreed>(*one);
  two.reset();
  while (!once) ::usleep(1000);
  one.reset();
  group.join();
  EXPECT_THAT(group.outcome(0).error,
              AllOf(HasSubstr("rank 1 (host puppet, pid 7) was lost"),
                    HasSubstr("; 1 of 3 ranks would be left, and --min-ranks is 2")));
}

TEST(GoingOn, ARanksOwnFailureIsTheEndOfAll) {
  Lasting ranks(3, 1);
  Group& group = ranks.group;
  group.start_all([](Meeting& meeting) {
    if (meeting.rank() == 1) return meeting.fail("there is no paper");
    meeting.all_gather("x");
  });
  group.join();
  for (const std::int64_t rank : {0, 1, 2})
    EXPECT_THAT(group.outcome(rank).error, HasSubstr("there is no paper"));
}

/// A former rank, or a message that was long on its way, finds the port of the new links.
TEST(GoingOn, LinksAreOfOneGeneration) {
  Lasting ranks(2, 1);
  Group& group = ranks.group;
  group.start(0, [](Meeting& meeting) {
    const auto shared = std::shared_ptr<Meeting>(&meeting, [](Meeting*) {});
    const auto links = open_tcp_group(shared);
    EXPECT_EQ(links->size(), 2);
    run_rank(*links, [&] { meeting.leave(); });
  });
  auto one = puppet(group, 1, 2);
  one->send(Text{0, "1 127.0.0.1", 0});
  const std::string place = await<Texts>(*one).texts.at(0);
  const auto visit_as = [&](std::uint32_t generation) {
    const SteadyClock clock;
    return visit(resolve("127.0.0.1", std::stoi(place)).at(0), test::kKey,
                 {Role::kRank, 1, 2, generation}, clock.now() + seconds(60), clock, {});
  };
  EXPECT_THAT(visit_as(1).why, HasSubstr("does not expect a rank 1 of 2"));
  const Visit link = visit_as(0);
  EXPECT_EQ(link.why, "");
  one->send(Text{1, "0", 0});
  one->send(Bye{0});
  await<Bye>(*one);
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
}

/// Rank 2 of 3 over TCP comes to the end of the first unit, says so to `hearing` alone, and goes,
/// where `one_passes` once one has left the unit. How often ranks 0 and 1 did it.
std::array<int, 2> units_with(const std::vector<std::size_t>& hearing, bool one_passes) {
  Lasting ranks(3, 1);
  Group& group = ranks.group;
  std::array<std::atomic<int>, 2> times{};
  std::atomic<int> passed = 0;
  for (const std::int64_t rank : {0, 1})
    group.start(rank, [&, rank](Meeting& meeting) {
      const auto linked = open_tcp_group(std::shared_ptr<Meeting>(&meeting, [](Meeting*) {}));
      run_rank(*linked, [&] {
        together(*linked, [&] { ++times[static_cast<std::size_t>(rank)]; });
        ++passed;
        together(*linked, [&] { meeting.leave(); });
        EXPECT_EQ(linked->size(), 2);
      });
    });
  auto two = puppet(group, 2, 3);
  two->send(Text{0, "1 127.0.0.1", 0});
  const std::vector<std::string> places = await<Texts>(*two).texts;
  std::vector<Descriptor> sockets;
  for (const std::size_t rank : {0U, 1U}) {
    const SteadyClock clock;
    Visit met = visit(resolve("127.0.0.1", std::stoi(places.at(rank))).at(0), test::kKey,
                      {Role::kRank, 2, 3, 0}, clock.now() + seconds(60), clock, {});
    EXPECT_EQ(met.why, "");
    sockets.push_back(std::move(*met.connection).take());
  }
  two->send(Text{1, "0", 0});
  await<Texts>(*two);
  constexpr std::array<std::uint32_t, 4> kCommit = {5, 1, 0, 0};  // the call, its number, no bytes
  for (const std::size_t rank : hearing)
    EXPECT_EQ(::send(sockets[rank].get(), kCommit.data(), sizeof kCommit, 0), ssize_t{16});
  while (times[0] == 0 || times[1] == 0 || (one_passes && passed == 0)) ::usleep(1000);
  two.reset();
  group.join();
  for (const std::int64_t rank : {0, 1}) EXPECT_EQ(group.outcome(rank).error, "");
  return {times[0], times[1]};
}

TEST(GoingOn, AUnitIsDoneForAllOnceOneRankHasLeftIt) {
  EXPECT_THAT(units_with({1}, true), ElementsAre(1, 1));
  EXPECT_THAT(units_with({0}, true), ElementsAre(1, 1));
}

TEST(GoingOn, AUnitThatNobodyHasLeftIsDoneAgain) {
  EXPECT_THAT(units_with({}, false), ElementsAre(2, 2));
}

/// Processes that work in steps.
class GoingOnProcesses : public ::testing::Test {
 protected:
  launch::LaunchResult run(std::int64_t count, std::int64_t least,
                           const std::vector<std::string>& arguments, const std::string& die = "") {
    launch::LaunchRequest request;
    request.arguments = {SEGFUSE_MEET_RANK, "min=" + std::to_string(least),
                         "steps=" + std::to_string(kSteps)};
    request.arguments.insert(request.arguments.end(), arguments.begin(), arguments.end());
    request.count = count;
    request.min_ranks = least;
    request.grace = grace;
    request.variables = [die](std::int64_t) {
      std::map<std::string, std::string> variables;
      if (!die.empty()) variables["SEGFUSE_DIE_WITHIN"] = die;
      return variables;
    };
    said.clear();
    errors.clear();
    lost.clear();
    request.line = [this](std::int64_t rank, bool error, std::string_view line) {
      if (error)
        errors[rank] += std::string(line) + "\n";
      else
        said += line;
    };
    request.lost = [this](std::int64_t rank, std::string_view sentence) { lost[rank] = sentence; };
    test::Bound bound;
    request.started = [&](std::int64_t rank, int pid) { bound.started(rank, pid); };
    const launch::LaunchResult result = launch::launch(request);
    EXPECT_EQ(bound.stop(), "");
    return result;
  }
  /// What comes out, without the number of ranks that were left.
  std::string value() const { return said.substr(0, said.find(' ')); }
  std::string all_errors() const {
    std::string all;
    for (const auto& [rank, text] : errors) all += text;
    return all;
  }

  static constexpr int kSteps = 6;
  std::chrono::milliseconds grace{5000};
  std::string said;
  std::map<std::int64_t, std::string> errors;
  std::map<std::int64_t, std::string> lost;
};

TEST_F(GoingOnProcesses, WhatComesOutDoesNotDependOnWhoIsLost) {
  ASSERT_EQ(run(4, 4, {}).exit_code, 0) << all_errors();
  EXPECT_THAT(said, HasSubstr(" by 4"));
  const std::string expected = value();
  ASSERT_EQ(run(3, 1, {}).exit_code, 0) << all_errors();
  EXPECT_EQ(value(), expected);
  for (const std::int64_t victim : {1, 2, 3}) {
    const auto result = run(4, 2, {fmt::format("kill={}@3", victim)});
    EXPECT_EQ(result.exit_code, 0) << all_errors();
    EXPECT_EQ(result.sentence, "");
    EXPECT_EQ(said, expected + " by 3");
    ASSERT_EQ(lost.size(), 1U);
    EXPECT_THAT(lost[victim], HasSubstr("was killed by signal 9 (Killed) in step 3, backward, "));
    EXPECT_THAT(errors[0], HasSubstr(fmt::format("rank {} (host ", victim)));
    EXPECT_THAT(errors[0], HasSubstr("; 3 of 4 ranks go on (generation 1)"));
  }
}

TEST_F(GoingOnProcesses, ARankThatIsKilledWithinAMessageIsNoLossForTheResult) {
  ASSERT_EQ(run(3, 3, {}).exit_code, 0) << all_errors();
  const std::string expected = value();
  int died = 0;
  for (const char* const kind : {"data", "words"})
    for (long number = 1; number <= (kind[0] == 'd' ? 30 : 10); ++number) {
      constexpr std::array kBytes = {0, 7, 16, 20};  // nothing, of the header, it, of what follows
      const std::string die = fmt::format("{}:{}:{}:{}", 1 + number % 2, kind, number,
                                          kBytes[static_cast<std::size_t>(number) % 4]);
      const auto result = run(3, 1, {}, die);
      EXPECT_EQ(result.exit_code, 0) << die << all_errors();
      EXPECT_EQ(value(), expected) << die;
      died += lost.empty() ? 0 : 1;
    }
  EXPECT_GT(died, 20);
}

TEST_F(GoingOnProcesses, AStoppedRankIsLeftBehindAndNotLeftOver) {
  ASSERT_EQ(run(3, 3, {}).exit_code, 0) << all_errors();
  const std::string expected = value();
  grace = std::chrono::milliseconds(500);
  const auto result = run(3, 1, {"stop=1@4"});
  EXPECT_EQ(result.exit_code, 0) << result.sentence << all_errors();
  EXPECT_EQ(said, expected + " by 2");
  EXPECT_THAT(errors[0], HasSubstr("3 heartbeats are missing; 2 of 3 ranks go on"));
}

TEST_F(GoingOnProcesses, WhatCannotBeMendedEndsAsBefore) {
  const auto first = run(3, 1, {"kill=0@3"});
  EXPECT_EQ(first.exit_code, 4);
  EXPECT_EQ(first.rank, 0);
  EXPECT_THAT(first.sentence, HasSubstr("was killed by signal 9 (Killed) in step 3, backward"));
  for (const std::int64_t rank : {1, 2}) EXPECT_THAT(errors[rank], HasSubstr("rank 0 (host "));
  const auto few = run(3, 3, {"kill=2@3"});
  EXPECT_EQ(few.exit_code, 4);
  EXPECT_EQ(few.rank, 2);
  for (const std::int64_t rank : {0, 1})
    EXPECT_THAT(errors[rank], HasSubstr("2 of 3 ranks would be left, and --min-ranks is 3"));
  const auto own = run(6, 1, {"fail=2@3"});
  EXPECT_EQ(own.exit_code, 3) << own.sentence;
  EXPECT_EQ(own.rank, 2);
  EXPECT_TRUE(lost.empty()) << lost.begin()->second;
  EXPECT_THAT(errors[2], HasSubstr("there is no paper"));
}

}  // namespace
}  // namespace segfuse::comm::meet
