// Changes of a living process: what a watch says of them, and what a repair does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <map>
#include <string>
#include <thread>

#include "base/text.h"
#include "doctor/fork/act/repair.h"
#include "segfuse/doctor/fork.h"
#include "segfuse/error.h"
#include "unit/doctor/child.h"

namespace segfuse {
namespace {

using comm::CopyOnFork;
using test::Child;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::uint64_t hex(std::string_view text) {
  std::uint64_t value = 0;
  text.remove_prefix(2);
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

/// Where the plants of a victim are, by name.
std::map<std::string, std::uint64_t> plants_of(Child& child) {
  std::map<std::string, std::uint64_t> plants;
  for (const std::string& line : child.lines_until_ready()) {
    const auto fields = split(line, '\t');
    if (fields.size() == 6 && fields[0] == "plant") plants[std::string(fields[1])] = hex(fields[2]);
  }
  return plants;
}

int died_of(Child& child, int count) {
  child.say("fork " + std::to_string(count));
  const std::string line = child.line();
  const auto fields = split(line, '\t');
  return fields.size() < 5 ? -1 : static_cast<int>(*parse_int(fields[2]));
}

const comm::CopyOnForkProof kProven{CopyOnFork::kYes, "said so"};

#define SKIP_WITHOUT_REPAIR()                                                     \
  if (const auto& proof = comm::copy_on_fork(); proof.answer != CopyOnFork::kYes) \
  GTEST_SKIP() << "fork() is not seen to copy pinned memory here: " << proof.reason

class ForkRepairTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(How, ForkRepairTest, ::testing::Values("plain", "real"),
                         [](const auto& suite) { return std::string(suite.param); });

/// T19: every fork fails, one page is given back, every fork works; and the process notices
/// nothing.
TEST_P(ForkRepairTest, ABrokenProcessIsMended) {
  SKIP_WITHOUT_REPAIR();
  Child child({SEGFUSE_FORK_VICTIM, "arena", GetParam()});
  const auto plants = plants_of(child);
  ASSERT_EQ(plants.size(), 1U);
  EXPECT_EQ(died_of(child, 6), 6);
  const ForkRepair repair = repair_fork(child.pid(), plants.at("arena") + 100);
  EXPECT_EQ(repair.region.begin, plants.at("arena"));
  EXPECT_EQ(repair.region.risk, ForkRisk::kCrash);
  EXPECT_TRUE(repair.after.regions.empty()) << fork_report_text(repair.after);
  EXPECT_GT(repair.stopped_seconds, 0);
  EXPECT_EQ(died_of(child, 6), 0);
  EXPECT_THAT(fork_repair_text(repair), HasSubstr("given back to children"));
  EXPECT_THAT(fork_repair_json(repair), HasSubstr("\"kind\": \"arena header\""));
  // What is not kept any more cannot be given back again.
  EXPECT_THROW(repair_fork(child.pid(), plants.at("arena")), UsageError);
}

/// Threads that compute, wait, and get signals all the time are stopped and go on.
TEST(ForkRepairLiveTest, ABusyProcessGoesOnWhereItWas) {
  SKIP_WITHOUT_REPAIR();
  Child child({SEGFUSE_FORK_VICTIM, "busy"});
  std::uint64_t page = 0;
  for (const std::string& line : child.lines_until_ready())
    if (line.starts_with("page\t")) page = hex(split(line, '\t')[1]);
  ASSERT_NE(page, 0U);
  int mended = 0;
  for (int i = 0; i < 200; ++i) {
    child.say("keep");
    ASSERT_EQ(child.line(), "kept");
    try {
      const ForkRepair repair = repair_fork(child.pid(), page);
      ++mended;
      ASSERT_EQ(repair.region.risk, ForkRisk::kLosesData);
    } catch (const DeviceError& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_EQ(mended, 200);
  // It checks its own sums, and how often its calls failed.
  child.say("sums");
  EXPECT_EQ(child.line(), "sums\t0\t0");
}

std::string refusal_of(int pid, std::uint64_t address, const comm::CopyOnForkProof& proof) {
  try {
    doctor::repair_knowing(pid, address, proof);
  } catch (const UsageError& error) {
    return std::string("usage: ") + error.what();
  } catch (const DeviceError& error) {
    return std::string("device: ") + error.what();
  }
  return "";
}

TEST(ForkRepairLiveTest, WhatMayNotBeMendedIsRefusedAndStaysAsItIs) {
  Child child({SEGFUSE_FORK_VICTIM, "planted", "plain"});
  const auto plants = plants_of(child);
  const auto refusal = [&](const char* name, const comm::CopyOnForkProof& proof = kProven) {
    return refusal_of(child.pid(), plants.at(name), proof);
  };
  EXPECT_THAT(refusal("slab"), HasSubstr("does no harm to children (slab"));
  EXPECT_THAT(refusal("memfd"), HasSubstr("does no harm to children"));
  EXPECT_THAT(refusal("wiped"), HasSubstr("is not kept from children"));
  EXPECT_THAT(refusal_of(child.pid(), 0, kProven), HasSubstr("is not kept from children"));
  EXPECT_THAT(refusal_of(child.pid(), ~std::uint64_t{0}, kProven), HasSubstr("usage: "));
  for (const CopyOnFork answer : {CopyOnFork::kNo, CopyOnFork::kUnknown}) {
    const std::string said = refusal("arena", {answer, "the reason"});
    EXPECT_THAT(said, HasSubstr("device: "));
    EXPECT_THAT(said, HasSubstr("the reason; nothing was changed"));
  }
  EXPECT_EQ(examine_fork(child.pid()).regions.size(), 11U);
  EXPECT_THAT(refusal_of(0x3fffffff, 4096, kProven), HasSubstr("there is no process"));
  EXPECT_THAT(refusal_of(-1, 4096, kProven), HasSubstr("not a process id"));
  kill(child.pid(), SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(refusal("arena"), HasSubstr("is a zombie"));
}

TEST(ForkRepairLiveTest, AProcessUnderADebuggerIsLeftToIt) {
  Child child({SEGFUSE_FORK_VICTIM, "traced"});
  const auto lines = child.lines_until_ready();
  ASSERT_EQ(lines.size(), 2U);
  if (lines[0].starts_with("skip")) GTEST_SKIP() << "processes may not be traced here";
  const int traced = static_cast<int>(*parse_int(split(lines[0], '\t')[1]));
  const std::uint64_t page = hex(split(lines[1], '\t')[1]);
  EXPECT_THAT(refusal_of(traced, page, kProven), HasSubstr("is under a debugger already (process " +
                                                           std::to_string(child.pid()) + ")"));
}

TEST(ForkRepairLiveTest, AStoppedProcessIsMendedAndStaysStopped) {
  SKIP_WITHOUT_REPAIR();
  Child child({SEGFUSE_FORK_VICTIM, "arena", "plain"});
  const auto plants = plants_of(child);
  kill(child.pid(), SIGSTOP);
  const auto state = [&] {
    return test::line_of("/proc/" + std::to_string(child.pid()) + "/status", "State:");
  };
  for (int i = 0; i < 200 && state().find('T') == std::string::npos; ++i) usleep(1000);
  EXPECT_TRUE(repair_fork(child.pid(), plants.at("arena")).after.regions.empty());
  for (int i = 0; i < 200 && state().find('T') == std::string::npos; ++i) usleep(1000);
  EXPECT_THAT(state(), HasSubstr("T (stopped)"));
  kill(child.pid(), SIGCONT);
  EXPECT_EQ(died_of(child, 3), 0);
}

TEST(ForkRepairLiveTest, AProcessThatHasEndedIsAnError) {
  SKIP_WITHOUT_REPAIR();
  Child child({SEGFUSE_FORK_VICTIM, "arena", "plain"});
  const auto plants = plants_of(child);
  kill(child.pid(), SIGKILL);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THROW(repair_fork(child.pid(), plants.at("arena")), UsageError);
}

/// Killed at any moment of a repair, which is over before the later ones: an error or a repair, and
/// neither a hang nor another exception.
TEST(ForkRepairLiveTest, AProcessThatEndsMeanwhileIsAnErrorOrMended) {
  SKIP_WITHOUT_REPAIR();
  for (int i = 0; i < 60; ++i) {
    Child child({SEGFUSE_FORK_VICTIM, "arena", "plain"});
    const auto plants = plants_of(child);
    std::thread killer([&] {
      usleep(static_cast<useconds_t>(i * 100));
      kill(child.pid(), SIGKILL);
    });
    EXPECT_NO_THROW(
        try { repair_fork(child.pid(), plants.at("arena")); } catch (const UsageError&){});
    killer.join();
  }
}

/// What another user may not even read.
TEST(ForkRepairLiveTest, AProcessOfSomebodyElseIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  Child victim({SEGFUSE_FORK_VICTIM, "arena", "plain"});
  const auto plants = plants_of(victim);
  const pid_t other = fork();
  if (other == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(9);
    const std::string said = refusal_of(victim.pid(), plants.at("arena"), kProven);
    _exit(said.find("may not be read") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(examine_fork(victim.pid()).regions.size(), 1U);
}

// --- watch ---------------------------------------------------------------------------------------

ForkReport report_with(std::vector<ForkRegion> regions) {
  ForkReport report;
  report.regions = std::move(regions);
  return report;
}

ForkRegion region(std::uint64_t begin, ForkRisk risk) {
  ForkRegion region;
  region.begin = begin;
  region.end = begin + 4096;
  region.mechanism = kKeptFromChildren;
  region.owner = "somebody";
  region.risk = risk;
  return region;
}

std::vector<std::string> lines_of(const ForkReport& before, const ForkReport& after) {
  std::vector<std::string> lines;
  for (const ForkChange& change : fork_changes(before, after))
    lines.push_back(fork_change_name(change.kind) + " " + change.sentence.substr(0, 14));
  return lines;
}

TEST(ForkWatchTest, ChangesAreWhatAppearsGoesOrTurns) {
  const ForkReport none;
  const ForkReport two =
      report_with({region(0x2000, ForkRisk::kCrash), region(0x5000, ForkRisk::kBenign)});
  EXPECT_THAT(lines_of(none, none), ElementsAre());
  EXPECT_THAT(lines_of(two, two), ElementsAre());
  EXPECT_THAT(lines_of(none, two), ElementsAre("new 0x2000-0x3000 ", "new 0x5000-0x6000 "));
  EXPECT_THAT(lines_of(two, none), ElementsAre("gone 0x2000-0x3000 ", "gone 0x5000-0x6000 "));
  EXPECT_THAT(lines_of(two, report_with({region(0x2000, ForkRisk::kLosesData)})),
              ElementsAre("changed 0x2000-0x3000 ", "gone 0x5000-0x6000 "));
  ForkReport later = two;
  later.forecast.stall_seconds = 0.004;
  EXPECT_THAT(lines_of(two, later), ElementsAre()) << "nobody notices 4 ms";
  later.forecast.stall_seconds = 0.04;
  later.forecast.sentence = "fork() now: xxxxxxx";
  EXPECT_THAT(lines_of(two, later), ElementsAre("forecast fork() now: xx"));
  ForkReport still = later;
  still.forecast.stall_seconds = 0.05;
  EXPECT_THAT(lines_of(later, still), ElementsAre());
  still.warnings = {"too many maps"};
  EXPECT_THAT(lines_of(later, still), ElementsAre("risk too many maps"));
  EXPECT_THAT(lines_of(still, still), ElementsAre());
}

TEST(ForkWatchTest, ALivingProcessIsFollowedToItsEnd) {
  Child child({SEGFUSE_FORK_VICTIM, "later"});
  child.lines_until_ready();
  std::vector<std::string> said;
  std::atomic<int> firsts = 0;
  std::string why;
  ForkWatch watch;
  watch.interval = std::chrono::milliseconds(10);
  watch.stop = [] { return false; };
  watch.first = [&](const ForkReport& report) {
    EXPECT_FALSE(report.at_risk()) << fork_report_text(report);
    ++firsts;
    child.say("arena");
    child.line();
  };
  watch.changed = [&](const ForkChange& change, double seconds) {
    said.push_back(fork_change_text(change, seconds));
    EXPECT_THAT(fork_change_json(change, seconds), HasSubstr("\"change\":\""));
    if (change.kind == ForkChange::Kind::kForecast && said.size() < 4) {
      child.say("no arena");
      child.line();
    } else if (change.kind == ForkChange::Kind::kForecast) {
      kill(child.pid(), SIGKILL);
    }
  };
  watch.ended = [&](const std::string& reason) { why = reason; };
  EXPECT_TRUE(watch_fork(child.pid(), watch)) << "there was a risk";
  EXPECT_EQ(firsts, 1);
  ASSERT_EQ(said.size(), 4U) << ::testing::PrintToString(said);
  EXPECT_THAT(said[0], HasSubstr("new "));
  EXPECT_THAT(said[0], HasSubstr("crashes every fork, malloc arena"));
  EXPECT_THAT(said[1], HasSubstr("forecast"));
  EXPECT_THAT(said[1], HasSubstr("the child dies"));
  EXPECT_THAT(said[2], HasSubstr("gone "));
  EXPECT_THAT(said[3], HasSubstr("forecast"));
  EXPECT_THAT(why,
              ::testing::AnyOf(HasSubstr("zombie"), HasSubstr("ended"), HasSubstr("just ending")));
}

TEST(ForkWatchTest, ItEndsWhenAskedAndRefusesWhatCannotBe) {
  Child child({"/bin/cat"});
  ForkWatch watch;
  int asked = 0;
  watch.interval = std::chrono::milliseconds(20);
  watch.stop = [&] { return ++asked > 3; };
  watch.first = [](const ForkReport&) {};
  watch.changed = [](const ForkChange& change, double) { ADD_FAILURE() << change.sentence; };
  watch.ended = [](const std::string& why) { ADD_FAILURE() << why; };
  EXPECT_FALSE(watch_fork(child.pid(), watch));
  EXPECT_THROW(watch_fork(0x3fffffff, watch), UsageError);
  watch.interval = std::chrono::milliseconds(0);
  EXPECT_THROW(watch_fork(child.pid(), watch), UsageError);
}

}  // namespace
}  // namespace segfuse
