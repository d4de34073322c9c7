// Processes that come in the place of ranks that were lost: what comes out of the work.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

#include "comm/launch/launch.h"
#include "support/meet/bound.h"

namespace segfuse::comm::meet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Processes of which some are replaced.
class JoiningProcesses : public ::testing::Test {
 protected:
  launch::LaunchResult run(std::int64_t count, int replacements,
                           const std::vector<std::string>& more) {
    launch::LaunchRequest request;
    request.arguments = {SEGFUSE_MEET_RANK, "min=1", "steps=12"};
    request.arguments.insert(request.arguments.end(), more.begin(), more.end());
    request.count = count;
    request.min_ranks = least;
    request.grace = std::chrono::milliseconds(500);
    said.clear();
    errors.clear();
    lost.clear();
    pids.clear();
    replaced = 0;
    request.line = [this](std::int64_t rank, bool error, std::string_view line) {
      if (error)
        errors[rank] += std::string(line) + "\n";
      else if (rank == 0)
        said += line;
      if (on_line) on_line(line);
    };
    test::Bound bound;
    request.started = [&](std::int64_t rank, int pid) {
      pids.push_back(pid);
      bound.started(rank, pid);
    };
    request.lost = [this](std::int64_t rank, std::string_view sentence) { lost[rank] = sentence; };
    request.replace = [this, replacements](std::int64_t, std::string_view) {
      return ++replaced <= replacements;
    };
    const launch::LaunchResult result = launch::launch(request);
    EXPECT_EQ(bound.stop(), "");
    for (const int pid : pids) EXPECT_NE(::kill(pid, 0), 0) << pid << " is left";
    return result;
  }
  std::string value() const { return said.substr(0, said.find(' ')); }
  std::string all_errors() const {
    std::string all;
    for (const auto& [rank, text] : errors) all += text;
    return all;
  }

  std::function<void(std::string_view)> on_line;
  std::string said;
  std::map<std::int64_t, std::string> errors;
  std::map<std::int64_t, std::string> lost;
  std::vector<int> pids;
  std::int64_t least = 1;
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
  for (const char* const how : {"door=kill", "door=fail", "inside=fail"}) {
    const bool once = how[0] == 'i';
    const auto result = run(3, 2, {"kill=2@2", how, once ? "first=4" : "first=99"});
    EXPECT_EQ(result.exit_code, 0) << how << result.sentence << all_errors();
    EXPECT_EQ(said, expected + " by 2") << how;
    EXPECT_LE(replaced, std::string_view(how).ends_with("kill") ? 3 : 1) << how;
  }
}

TEST_F(JoiningProcesses, WhoHasNotJoinedIsNotThereYet) {
  least = 2;
  const auto result = run(3, 5, {"min=2", "kill=1@2,2@3", "door=stop"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.sentence, HasSubstr("was killed by signal 9 (Killed) in step "));
  EXPECT_LE(replaced, 1);
  EXPECT_TRUE(result.may_be_mended);
  EXPECT_THAT(lost, IsEmpty());
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
  // Also after Ctrl-C, where ranks have the time that they need.
  on_line = [](std::string_view line) {
    if (line == "stops") ::kill(::getpid(), SIGINT);
  };
  const auto asked = run(3, 1, {"kill=2@2", "door=stop", "whole=3"});
  EXPECT_EQ(asked.exit_code, 130) << asked.sentence << all_errors();
  EXPECT_THAT(lost, IsEmpty());
}

TEST_F(JoiningProcesses, AWishToEndIsNoLoss) {
  const auto result = run(3, 5, {"ask=1@3", "last=0"});
  EXPECT_EQ(result.exit_code, 130) << result.sentence << all_errors();
  EXPECT_EQ(replaced, 0);
  EXPECT_THAT(lost, IsEmpty());
}

}  // namespace
}  // namespace segfuse::comm::meet
