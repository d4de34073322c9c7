// Ranks as processes: how they end, what is said of it, and that nothing is left.

#include "comm/launch/launch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "base/rng.h"
#include "comm/launch/oom.h"
#include "comm/meet/wire/socket.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"
#include "support/files.h"
#include "support/meet/bound.h"

namespace segfuse::comm::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTag = "SEGFUSE_TEST_LAUNCH";

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    names.insert(entry.path().filename());
  return names;
}

/// Others may work with shared memory beside us.
std::set<std::string> shared_memory() {
  std::set<std::string> names = names_in("/dev/shm");
  std::erase_if(names, [](const std::string& name) { return name.find("segfuse") == name.npos; });
  return names;
}

std::set<int> open_descriptors() {
  std::set<int> out;
  for (int number = 0; number < 4096; ++number)
    if (::fcntl(number, F_GETFD) >= 0) out.insert(number);
  return out;
}

/// Processes that were started with the tag.
std::set<int> tagged(const std::string& tag) {
  std::set<int> pids;
  for (const std::string& name : names_in("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in("/proc/" + name + "/environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.find(std::string(kTag) + "=" + tag + '\0') != std::string::npos)
      pids.insert(std::stoi(name));
  }
  return pids;
}

class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    tag_ = fmt::format("{}.{}", ::getpid(), ++count_);
    descriptors_ = open_descriptors();
    shared_ = shared_memory();
  }
  void TearDown() override {
    EXPECT_EQ(bound_.stop(), "");
    // What was killed may take a moment to go.
    for (int i = 0; i < 1000 && !tagged(tag_).empty(); ++i) ::usleep(10'000);
    EXPECT_TRUE(tagged(tag_).empty()) << "a process was left";
    EXPECT_EQ(open_descriptors(), descriptors_);
    EXPECT_EQ(shared_memory(), shared_);
    if (port_ > 0) {
      EXPECT_EQ(meet::listener_at(port_), "");
    }
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child was not collected";
  }

  LaunchRequest ranks(std::int64_t count, std::vector<std::string> arguments) {
    LaunchRequest request;
    request.arguments = {SEGFUSE_MEET_RANK};
    request.arguments.insert(request.arguments.end(), arguments.begin(), arguments.end());
    return completed(std::move(request), count);
  }
  LaunchRequest shell(std::int64_t count, const std::string& line) {
    LaunchRequest request;
    request.arguments = {"/bin/sh", "-c", line};
    return completed(std::move(request), count);
  }
  LaunchRequest completed(LaunchRequest request, std::int64_t count) {
    request.count = count;
    request.variables = [this](std::int64_t) {
      return std::map<std::string, std::string>{{kTag, tag_}};
    };
    request.line = [this](std::int64_t rank, bool error, std::string_view line) {
      if (error)
        errors_[rank] += std::string(line) + "\n";
      else
        lines_[rank].emplace_back(line);
      if (each_line) each_line(rank, line);
    };
    request.started = [this](std::int64_t rank, int pid) {
      pids_[rank] = pid;
      bound_.started(rank, pid);
    };
    return request;
  }

  std::function<void(std::int64_t, std::string_view)> each_line;
  std::map<std::int64_t, std::vector<std::string>> lines_;
  std::map<std::int64_t, std::string> errors_;
  std::map<std::int64_t, int> pids_;
  std::string tag_;
  int port_ = 0;

 private:
  test::Bound bound_;
  static int count_;
  std::set<int> descriptors_;
  std::set<std::string> shared_;
};
int Launch::count_ = 0;

TEST_F(Launch, RanksMeetWorkAndEnd) {
  for (const std::int64_t count : {1, 2, 4}) {
    lines_.clear();
    const LaunchResult result = launch(ranks(count, {"steps=3"}));
    // One rank alone is no company; the program of this test wants some.
    if (count == 1) {
      EXPECT_EQ(result.exit_code, 2);
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.sentence << errors_[0];
    EXPECT_EQ(result.sentence, "");
    for (std::int64_t rank = 0; rank < count; ++rank)
      EXPECT_EQ(lines_[rank], (std::vector<std::string>{"step 1", "step 2", "step 3"}));
  }
}

TEST_F(Launch, EachRankIsToldWhoItIsAndNothingElse) {
  ::setenv("SLURM_PROCID", "0", 1);
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  const LaunchResult result =
      launch(shell(2,
                   "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                   "${SLURM_PROCID-none} ${#SEGFUSE_JOB_KEY}; echo $MASTER_PORT; echo wrong >&2"));
  ::unsetenv("SLURM_PROCID");
  ::unsetenv("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_[1].at(0), "1 2 1 2 127.0.0.1 none 64");
  EXPECT_EQ(errors_[0], "wrong\n");
  EXPECT_EQ(lines_[0].at(1), lines_[1].at(1));
  port_ = std::stoi(lines_[0].at(1));
}

TEST_F(Launch, TheFirstFailuresCodeIsTheResult) {
  const LaunchResult result =
      launch(shell(3, "if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.05; done"));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.sentence, fmt::format("rank 1 (pid {}) ended with exit status 7", pids_[1]));
}

TEST_F(Launch, ARankThatIgnoresItsEndIsKilled) {
  LaunchRequest request =
      shell(2, "if [ $RANK = 1 ]; then exit 7; fi; trap '' TERM; while :; do sleep 0.05; done");
  request.grace = std::chrono::milliseconds(100);
  EXPECT_EQ(launch(request).exit_code, 7);
}

TEST_F(Launch, AProgramThatIsNotThereIsOneSentence) {
  LaunchRequest request = completed({}, 2);
  request.arguments = {"/nonexistent/program"};
  const LaunchResult result = launch(request);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.sentence, HasSubstr("cannot be started: No such file or directory"));
  request.arguments.clear();
  EXPECT_THROW(launch(request), UsageError);
  request.arguments = {"true"};
  request.count = 0;
  EXPECT_THROW(launch(request), UsageError);
}

TEST_F(Launch, AKilledRankIsNamedByAllOthers) {
  for (const std::int64_t victim : {0, 2}) {
    errors_.clear();
    const LaunchResult result = launch(ranks(3, {fmt::format("kill={}@5", victim)}));
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.rank, victim);
    EXPECT_THAT(result.sentence, HasSubstr(fmt::format("rank {} (pid {}) was killed by signal 9 "
                                                       "(Killed) in step 5, backward, ",
                                                       victim, pids_[victim])));
    EXPECT_THAT(result.sentence, HasSubstr(" after its last report"));
    for (std::int64_t rank = 0; rank < 3; ++rank)
      if (rank != victim) {
        EXPECT_THAT(errors_[rank],
                    HasSubstr(fmt::format(", pid {}) was lost in step ", pids_[victim])));
      }
  }
}

TEST_F(Launch, RandomKillsEndWithASentenceOnEveryRank) {
  for (std::uint64_t round = 0; round < 25; ++round) {
    Rng rng(7, round);
    const auto victim = static_cast<std::int64_t>(rng.below(3));
    const std::string when = fmt::format("step {}", 1 + rng.below(30));
    errors_.clear();
    // From another rank's line, so that the victim is anywhere in its step.
    each_line = [&](std::int64_t rank, std::string_view line) {
      if (rank == (victim + 1) % 3 && line == when) ::kill(pids_.at(victim), SIGKILL);
    };
    const LaunchResult result = launch(ranks(3, {}));
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.rank, victim) << result.sentence;
    EXPECT_THAT(result.sentence, HasSubstr("was killed by signal 9 (Killed) in step "));
    for (std::int64_t rank = 0; rank < 3; ++rank)
      if (rank != victim) {
        EXPECT_THAT(errors_[rank], HasSubstr(fmt::format("rank {} (host ", victim))) << round;
      }
  }
}

TEST_F(Launch, ARankThatFailsIsNotMistakenForItsEcho) {
  const LaunchResult result = launch(ranks(4, {"fail=2@3"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.rank, 2);
  for (const std::int64_t rank : {0, 1, 3})
    EXPECT_THAT(errors_[rank], HasSubstr("failed in step 3, backward: there is no paper"));
}

TEST_F(Launch, RanksThatDifferSayInWhat) {
  const LaunchResult result = launch(ranks(3, {"value=1:xyz"}));
  EXPECT_EQ(result.exit_code, 2);
  for (const std::int64_t rank : {0, 1, 2})
    EXPECT_THAT(errors_[rank], HasSubstr("the ranks do not agree on data: rank 1 (host "));
}

TEST_F(Launch, AStoppedRankIsNamedAndLeftByNobody) {
  LaunchRequest request = ranks(3, {"stop=1@4"});
  request.grace = std::chrono::milliseconds(500);
  const LaunchResult result = launch(request);
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.sentence,
              HasSubstr("did not end within 0.5 s after the failure and was killed "
                        "in step 4, backward"));
  for (const std::int64_t rank : {0, 2})
    EXPECT_THAT(errors_[rank], HasSubstr(fmt::format("pid {}) was lost in step ", pids_[1])));
}

TEST_F(Launch, ARankThatHangsIsNamedWithWhatItDoes) {
  const LaunchResult result = launch(ranks(3, {"hang=2@4"}));
  EXPECT_EQ(result.exit_code, 4);
  for (const std::int64_t rank : {0, 1, 2})
    EXPECT_THAT(errors_[rank], HasSubstr("has been reading data (recording 'x.flac') for"));
}

TEST_F(Launch, SignalsGoToEveryRank) {
  int ready = 0;
  int heard = 0;
  each_line = [&](std::int64_t, std::string_view line) {
    if (line == "ready" && ++ready == 3) ::kill(::getpid(), SIGUSR1);
    if (line == "usr1" && ++heard == 3) ::kill(::getpid(), SIGTERM);
  };
  const LaunchResult result = launch(shell(
      3,
      "trap 'echo usr1' USR1; trap 'echo term; exit 130' TERM; echo ready; while :; do sleep 0.02; "
      "done"));
  EXPECT_EQ(result.exit_code, 130);
  for (const std::int64_t rank : {0, 1, 2}) {
    EXPECT_THAT(lines_[rank], ::testing::Contains("usr1"));
    EXPECT_EQ(lines_[rank].back(), "term");
  }
}

TEST_F(Launch, ASignalEndsTheStepOfAll) {
  bool sent = false;
  each_line = [&](std::int64_t, std::string_view line) {
    if (line == "step 5" && !std::exchange(sent, true)) ::kill(::getpid(), SIGINT);
  };
  const LaunchResult result = launch(ranks(3, {}));
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(lines_[0], lines_[1]);
  EXPECT_EQ(lines_[0], lines_[2]);
  EXPECT_EQ(errors_[0] + errors_[1] + errors_[2], "");
}

TEST_F(Launch, ALauncherThatIsKilledLeavesNoRank) {
  spawn::Request request{.arguments = {SEGFUSE_MEET_RANK, "launch=3"}};
  request.environment = spawn::Environment::patch({{kTag, tag_}});
  std::set<std::string> ranks;
  int launcher = 0;
  request.started = [&](int pid) { launcher = pid; };
  request.out = spawn::Lines{[&](std::string_view line) {
    if (line.ends_with("step 3") && ranks.insert(std::string(line)).second && ranks.size() == 3)
      ::kill(launcher, SIGKILL);
  }};
  request.err = spawn::Null{};
  request.grace = std::chrono::seconds(60);  // its ranks hold no stream of ours, but its group does
  EXPECT_EQ(spawn::run(request).signal, SIGKILL);
  EXPECT_EQ(ranks.size(), 3U);
  EXPECT_THAT(*ranks.begin(), HasSubstr("rank 0 | step 3"));
  // They notice by themselves.
  for (int i = 0; i < 6000 && !tagged(tag_).empty(); ++i) ::usleep(10'000);
}

TEST_F(Launch, AllAreStartedAgainWhileThatMayMendIt) {
  LaunchRequest request = ranks(3, {"kill=1@5"});
  std::vector<std::string> sentences;
  std::set<int> pids;
  request.again = [&](const LaunchResult& result) {
    EXPECT_EQ(result.rank, 1);
    EXPECT_TRUE(result.may_be_mended);
    sentences.push_back(result.sentence);
    for (const auto& [rank, pid] : pids_) pids.insert(pid);
    return sentences.size() < 3;
  };
  const LaunchResult result = launch(request);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(result.may_be_mended);
  EXPECT_FALSE(result.interrupted);
  ASSERT_EQ(sentences.size(), 3U);
  EXPECT_EQ(result.sentence, sentences.back());
  for (const std::string& sentence : sentences)
    EXPECT_THAT(sentence, HasSubstr(") was killed by signal 9 (Killed) in step 5, backward, "));
  EXPECT_EQ(pids.size(), 9U);
}

TEST_F(Launch, RanksThatAreStartedAgainMayComeToTheEnd) {
  int starts = 0;
  LaunchRequest request = shell(2, "echo $RANK $START; [ $START = 2 ] || kill -9 $$");
  request.variables = [&, tag = request.variables](std::int64_t rank) {
    auto variables = tag(rank);
    variables["START"] = std::to_string(starts);
    return variables;
  };
  request.again = [&](const LaunchResult&) { return ++starts > 0; };
  const LaunchResult result = launch(request);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.sentence, "");
  EXPECT_EQ(lines_[1], (std::vector<std::string>{"1 0", "1 1", "1 2"}));
}

TEST_F(Launch, NobodyIsAskedAboutWhatANewStartDoesNotMend) {
  const auto asked = [&](LaunchRequest request) {
    int count = 0;
    request.again = [&](const LaunchResult&) { return ++count < 0; };
    const LaunchResult result = launch(request);
    EXPECT_EQ(result.may_be_mended, count == 1) << result.sentence;
    EXPECT_LE(count, 1);
    return count == 1;
  };
  const auto by = [&](const char* line) {
    return asked(shell(2, std::string("[ $RANK = 0 ] || ") + line));
  };
  for (const char* line : {"exit 2", "exit 3", "exit 70", "exit 130", "kill -TERM $$",
                           "kill -INT $$", "kill -HUP $$", "exit 0"})
    EXPECT_FALSE(by(line)) << line;
  for (const char* line : {"exit 4", "kill -KILL $$", "kill -SEGV $$", "kill -ABRT $$"})
    EXPECT_TRUE(by(line)) << line;
  EXPECT_FALSE(asked(ranks(3, {"fail=1@3"})));
  EXPECT_FALSE(asked(ranks(3, {"fault=1@3"})));
  EXPECT_TRUE(asked(ranks(3, {"comm=1@3"})));
  LaunchRequest nowhere = completed({}, 2);
  nowhere.arguments = {"/nonexistent/program"};
  EXPECT_FALSE(asked(nowhere));
}

TEST_F(Launch, AWishToEndIsOlderThanANewStart) {
  LaunchRequest request = shell(2,
                                "trap 'kill -9 $$' TERM; echo ready; "
                                "while kill -0 $SEGFUSE_LAUNCHER; do sleep 0.02; done");
  int ready = 0;
  each_line = [&](std::int64_t, std::string_view) {
    if (++ready == 2) ::kill(::getpid(), SIGTERM);
  };
  request.again = [](const LaunchResult&) { return ADD_FAILURE(), true; };
  const LaunchResult result = launch(request);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_TRUE(result.interrupted);
  EXPECT_THAT(result.sentence, HasSubstr("was killed by signal 9"));
}

TEST_F(Launch, NewRanksDoNotGetTheSignalsOfTheFormerOnes) {
  int starts = 0;
  LaunchRequest request =
      shell(2,
            "trap 'echo usr1; kill -9 $$' USR1; echo ready; "
            "while [ $START = 0 ] && kill -0 $SEGFUSE_LAUNCHER; do sleep 0.02; done; "
            "sleep 0.5");
  request.variables = [&, tag = request.variables](std::int64_t rank) {
    auto variables = tag(rank);
    variables["START"] = std::to_string(starts);
    return variables;
  };
  int ready = 0;
  each_line = [&](std::int64_t, std::string_view line) {
    if (line == "ready" && ++ready == 2) ::kill(::getpid(), SIGUSR1);
  };
  request.again = [&](const LaunchResult&) { return ++starts < 3; };
  EXPECT_EQ(launch(request).exit_code, 0);
  EXPECT_EQ(starts, 1);
}

TEST(OomKills, AreReadInBothForms) {
  const test::TemporaryDirectory temporary;
  const fs::path& root = temporary.path();
  EXPECT_FALSE(oom_kills(root));
  fs::create_directories(root / "proc/self");
  fs::create_directories(root / "sys/fs/cgroup/job/step");
  fs::create_directories(root / "sys/fs/cgroup/memory/job");
  std::ofstream(root / "proc/self/cgroup") << "0::/job/step\n";
  EXPECT_FALSE(oom_kills(root));
  std::ofstream(root / "sys/fs/cgroup/job/step/memory.events")
      << "low 0\nhigh 0\nmax 5\noom 4\noom_kill 3\n";
  EXPECT_EQ(oom_kills(root), 3);
  std::ofstream(root / "proc/self/cgroup") << "5:cpu:/x\n4:memory:/job\n";
  std::ofstream(root / "sys/fs/cgroup/memory/job/memory.oom_control")
      << "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
  EXPECT_EQ(oom_kills(root), 2);
}

}  // namespace
}  // namespace segfuse::comm::launch
