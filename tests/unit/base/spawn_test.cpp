// The way to create processes, over what its request can say and what can go wrong.

#include "segfuse/spawn.h"
#include "base/os/spawn_plumbing.h"
#include "support/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace segfuse::spawn {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

double seconds_of(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::set<int> open_descriptors() {
  std::set<int> out;
  for (int number = 0; number < 4096; ++number)
    if (fcntl(number, F_GETFD) >= 0) out.insert(number);
  return out;
}

class Spawn : public ::testing::Test {
 protected:
  void SetUp() override { before_ = open_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(open_descriptors(), before_) << "a descriptor was left open";
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left";
    EXPECT_EQ(errno, ECHILD);
  }
  std::string content_of(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path script(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    fs::permissions(dir_ / name, fs::perms::owner_all);
    return dir_ / name;
  }

  const test::TemporaryDirectory folder_;
  const fs::path dir_ = fs::canonical(folder_.path());
  std::set<int> before_;
};

TEST_F(Spawn, OutputsAndExitStatusComeBack) {
  const Result result = run(shell("echo one; echo two >&2; exit 3"));
  EXPECT_EQ(result.out, "one\n");
  EXPECT_EQ(result.err, "two\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(result.cut_off);
  EXPECT_EQ(result.outcome(), "exit status 3");
  EXPECT_GT(result.usage.max_resident_kib, 0);
  EXPECT_TRUE(run({.arguments = {"true"}}).ok());
}

TEST_F(Spawn, ASignalIsToldApartFromAnExit) {
  const Result result = run(shell("kill -SEGV $$"));
  EXPECT_FALSE(result.exit_code);
  EXPECT_EQ(result.signal, SIGSEGV);
  EXPECT_EQ(result.outcome(), "killed by signal 11 (Segmentation fault)");
}

TEST_F(Spawn, LinesComeWhileTheChildRuns) {
  std::vector<std::string> lines;
  // It ends only when its second line has arrived here.
  Request request = shell("echo one; echo; while [ ! -e " + (dir_ / "go").string() +
                          " ]; do sleep 0.01; done; printf 'three\\nno end'");
  request.out = Lines{[&](std::string_view line) {
    lines.emplace_back(line);
    if (lines.size() == 2) std::ofstream(dir_ / "go") << "go";
  }};
  request.timeout = milliseconds(60'000);
  const Result result = run(request);
  EXPECT_TRUE(result.ok()) << result.outcome();
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "", "three", "no end"}));
  EXPECT_EQ(result.out, "");
}

TEST_F(Spawn, ALineWithoutAnEndComesInPieces) {
  std::vector<std::size_t> sizes;
  Request request = shell("head -c 150000 /dev/zero >&2; echo x >&2");
  request.err = Lines{[&](std::string_view line) { sizes.push_back(line.size()); }};
  EXPECT_TRUE(run(request).ok());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{65536, 65536, 150001 - 2 * 65536}));
}

TEST_F(Spawn, SignalsArePassedToTheGroup) {
  bool ready = false;
  int sent = 0;
  int pid = 0;
  Request request = shell("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.01; done");
  request.started = [&](int number) { pid = number; };
  request.out = Lines{[&](std::string_view line) { ready = ready || line == "ready"; }};
  request.signal = [&] { return ready && sent++ == 0 ? SIGUSR1 : 0; };
  request.timeout = milliseconds(60'000);
  EXPECT_EQ(run(request).exit_code, 7);
  EXPECT_GT(pid, 0);
  EXPECT_GT(sent, 0);
}

TEST_F(Spawn, ArgumentsArriveAsTheyAre) {
  const Result result = run({.arguments = {"printf", "[%s]", "", "a b", "'\"$x`", "\xff\n"}});
  EXPECT_EQ(result.out, "[][a b]['\"$x`][\xff\n]");
}

TEST_F(Spawn, EnvironmentIsInheritedPatchedOrExact) {
  setenv("SPAWN_TEST_A", "here", 1);
  setenv("SPAWN_TEST_B", "here", 1);
  const std::string print = "echo \"${SPAWN_TEST_A-none} ${SPAWN_TEST_B-none} ${HOME-none}\"";
  Request request = shell(print);
  EXPECT_THAT(run(request).out, HasSubstr("here here "));
  request.environment =
      Environment::patch({{"SPAWN_TEST_A", "there"}, {"SPAWN_TEST_B", std::nullopt}});
  EXPECT_THAT(run(request).out, HasSubstr("there none "));
  request.environment = Environment::exact({{"SPAWN_TEST_B", "x=y"}});
  EXPECT_EQ(run(request).out, "none x=y none\n");
  const Result all = run({.arguments = {"/usr/bin/env"}, .environment = Environment::exact({})});
  EXPECT_EQ(all.out, "");
  unsetenv("SPAWN_TEST_A");
  unsetenv("SPAWN_TEST_B");
}

TEST_F(Spawn, TheDirectoryIsWhereRelativeProgramsAreSought) {
  script("tool", "#!/bin/sh\npwd\n");
  EXPECT_EQ(run({.arguments = {"pwd"}, .directory = dir_}).out, dir_.string() + "\n");
  EXPECT_EQ(run({.arguments = {"./tool"}, .directory = dir_}).out, dir_.string() + "\n");
}

/// As with glibc 2.28.
class SpawnOfOldLibrary : public Spawn {
 protected:
  ~SpawnOfOldLibrary() override { library_calls() = kept_; }

 private:
  LibraryCalls kept_ = std::exchange(library_calls(), LibraryCalls{});
};

TEST_F(SpawnOfOldLibrary, TheDirectoryIsWhereRelativeProgramsAreSought) {
  const fs::path here = fs::current_path();
  script("tool", "#!/bin/sh\npwd\n");
  EXPECT_EQ(run({.arguments = {"./tool"}, .directory = dir_}).out, dir_.string() + "\n");
  EXPECT_EQ(fs::current_path(), here);
}

TEST_F(SpawnOfOldLibrary, TheChildSeesWhatItWasPassedAndNothingElse) {
  std::vector<int> many;
  for (int i = 0; i < 50; ++i) many.push_back(open("/dev/null", O_RDONLY));  // inheritable
  Request request = shell("ls /proc/self/fd | tr '\\n' ' '");
  request.passed = {{many[0], 9}, {many[1], 4}};
  EXPECT_EQ(run(request).out, "0 1 2 3 4 9 ");
  for (const int one : many) close(one);
}

TEST_F(Spawn, StandardInputIsNothingContentDescriptorOrFile) {
  std::ofstream(dir_ / "in") << "from a file";
  Request request{.arguments = {"cat"}};
  EXPECT_EQ(run(request).out, "");
  request.in = Bytes{std::string("with\0zero", 9)};
  EXPECT_EQ(run(request).out, std::string("with\0zero", 9));
  request.in = File{dir_ / "in"};
  EXPECT_EQ(run(request).out, "from a file");
  const int open_file = open((dir_ / "in").c_str(), O_RDONLY | O_CLOEXEC);
  request.in = Descriptor{open_file};
  EXPECT_EQ(run(request).out, "from a file");
  EXPECT_EQ(close(open_file), 0);
}

TEST_F(Spawn, OutputsGoToFilesDescriptorsNowhereOrTogether) {
  Request request = shell("echo out; echo err >&2");
  request.out = File{dir_ / "out"};
  request.err = File{dir_ / "err"};
  EXPECT_TRUE(run(request).ok());
  EXPECT_EQ(content_of(dir_ / "out"), "out\n");
  request.out = File{dir_ / "out", true};
  request.err = Merge{};
  EXPECT_TRUE(run(request).ok());
  EXPECT_EQ(content_of(dir_ / "out"), "out\nout\nerr\n");
  EXPECT_EQ(content_of(dir_ / "err"), "err\n");
  const int file = open((dir_ / "by_number").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  request.out = Null{};
  request.err = Descriptor{file};
  EXPECT_EQ(run(request).out, "");
  EXPECT_EQ(close(file), 0);
  EXPECT_EQ(content_of(dir_ / "by_number"), "err\n");
  request.out = Capture{};
  request.err = Merge{};
  EXPECT_EQ(run(request).out, "out\nerr\n");
}

TEST_F(Spawn, LargeStreamsBothWaysDoNotBlockEachOther) {
  Request request = shell("cat; head -c 3000000 /dev/zero >&2");
  request.in = Bytes{std::string(5'000'000, 'x')};
  const Result result = run(request);
  EXPECT_EQ(result.out, std::string(5'000'000, 'x'));
  EXPECT_EQ(result.err.size(), 3'000'000U);
}

TEST_F(Spawn, AChildThatDoesNotReadIsNoTrouble) {
  Request request{.arguments = {"true"}};
  request.in = Bytes{std::string(5'000'000, 'x')};
  EXPECT_TRUE(run(request).ok());
}

TEST_F(Spawn, OutputBeyondTheCapIsDroppedAndSaid) {
  Request request = shell("head -c 1000000 /dev/zero; echo end >&2");
  request.output_cap = 1000;
  const Result result = run(request);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.out.size(), 1000U);
  EXPECT_TRUE(result.out_cut);
  EXPECT_EQ(result.err, "end\n");
  EXPECT_FALSE(result.err_cut);
  Request fits = shell("head -c 1000 /dev/zero");
  fits.output_cap = 1000;
  EXPECT_EQ(run(fits).out.size(), 1000U);
  EXPECT_FALSE(run(fits).out_cut);
}

TEST_F(Spawn, TheChildSeesWhatItWasPassedAndNothingElse) {
  std::vector<int> many;
  for (int i = 0; i < 500; ++i) many.push_back(open("/dev/null", O_RDONLY));  // inheritable
  // The listing's own descriptor is the least that is free.
  Request request = shell("ls /proc/self/fd | tr '\\n' ' '");
  EXPECT_EQ(run(request).out, "0 1 2 3 ");
  std::ofstream(dir_ / "a") << "AA";
  std::ofstream(dir_ / "b") << "BB";
  const int a = open((dir_ / "a").c_str(), O_RDONLY | O_CLOEXEC);
  const int b = open((dir_ / "b").c_str(), O_RDONLY | O_CLOEXEC);
  request.passed = {{a, 9}, {b, 4}};
  EXPECT_EQ(run(request).out, "0 1 2 3 4 9 ");
  request.arguments[2] = "cat <&9; cat <&4";
  EXPECT_EQ(run(request).out, "AABB");
  for (const int one : many) close(one);
  // The numbers of the child may be those that other descriptors have here.
  const int low = fcntl(a, F_DUPFD_CLOEXEC, 3);
  const int high = fcntl(b, F_DUPFD_CLOEXEC, 3);
  lseek(low, 0, SEEK_SET);
  lseek(high, 0, SEEK_SET);
  request.arguments[2] = "cat <&" + std::to_string(low) + "; cat <&" + std::to_string(high);
  request.passed = {{low, high}, {high, low}};
  EXPECT_EQ(run(request).out, "BBAA");
  for (const int one : {a, b, low, high}) EXPECT_EQ(close(one), 0);
}

TEST_F(Spawn, TheChildLeadsAGroupOfItsOwnWithDefaultSignals) {
  sigset_t blocked;
  sigset_t former;
  sigfillset(&blocked);
  sigprocmask(SIG_SETMASK, &blocked, &former);
  const auto handler = signal(SIGPIPE, SIG_IGN);
  // Not by a shell: it blocks signals itself for moments.
  const Result status = run({.arguments = {"cat", "/proc/self/status"}});
  const Result group = run({.arguments = {"cut", "-d ", "-f1,5", "/proc/self/stat"}});
  signal(SIGPIPE, handler);
  sigprocmask(SIG_SETMASK, &former, nullptr);
  EXPECT_THAT(status.out, HasSubstr("SigBlk:\t0000000000000000\n"));
  // 32 and 33 belong to the C library, which leaves them ignored.
  EXPECT_THAT(status.out, ::testing::AnyOf(HasSubstr("SigIgn:\t0000000180000000\n"),
                                           HasSubstr("SigIgn:\t0000000000000000\n")));
  const std::string ids(last_line(group.out));
  const std::size_t blank = ids.find(' ');
  EXPECT_EQ(ids.substr(0, blank), ids.substr(blank + 1));
}

TEST_F(Spawn, ATimeoutEndsTheChild) {
  Result result;
  const double took = seconds_of(
      [&] { result = run({.arguments = {"sleep", "30"}, .timeout = milliseconds(200)}); });
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_GE(took, 0.2);
  EXPECT_THAT(result.outcome(), HasSubstr("it took too long; killed by signal 15"));
}

TEST_F(Spawn, ATimeoutEndsAGroupThatIgnoresIt) {
  // The shell and its child ignore SIGTERM; the child tells its number.
  Request request = shell("trap '' TERM; sleep 30 & echo $!; wait");
  request.timeout = milliseconds(2000);
  request.grace = milliseconds(200);
  Result result;
  result = run(request);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.signal, SIGKILL);
  const pid_t grandchild = static_cast<pid_t>(std::stol(result.out));
  // It is gone, or nobody has collected it yet.
  for (int i = 0; i < 500 && kill(grandchild, 0) == 0; ++i) {
    if (content_of("/proc/" + std::to_string(grandchild) + "/stat").find(") Z") !=
        std::string::npos)
      break;
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_LT(i, 499) << "the grandchild lives on";
  }
}

TEST_F(Spawn, AChildThatWritesForEverStillTimesOut) {
  Request request{.arguments = {"yes"}, .timeout = milliseconds(2000), .output_cap = 100};
  Result result;
  result = run(request);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.out.size(), 100U);
}

TEST_F(Spawn, AGrandchildThatKeepsTheStreamIsCutOff) {
  Request request = shell("sleep 30 & echo $!");
  request.grace = milliseconds(200);
  Result result;
  result = run(request);
  EXPECT_TRUE(result.ok());
  EXPECT_TRUE(result.cut_off);
  const pid_t grandchild = static_cast<pid_t>(std::stol(result.out));
  EXPECT_EQ(kill(grandchild, SIGKILL), 0) << "only a timeout ends others";
}

TEST_F(Spawn, StopEndsTheChild) {
  int asked = 0;
  Request request{.arguments = {"sleep", "30"}, .stop = [&] { return ++asked > 2; }};
  Result result;
  result = run(request);
  EXPECT_TRUE(result.stopped);
  EXPECT_FALSE(result.timed_out);
  EXPECT_FALSE(result.ok());
  request.stop = []() -> bool { throw 1; };
  EXPECT_THROW(run(request), int);  // and the child is gone: TearDown
}

TEST_F(Spawn, WrongRequestsStartNothing) {
  const auto rule = [](const Request& request) {
    const Result result = run(request);
    EXPECT_EQ(result.failed, Stage::kRequest);
    EXPECT_EQ(result.error_number, EINVAL);
    EXPECT_FALSE(result.ok());
    return result.outcome();
  };
  EXPECT_EQ(rule({}), "cannot be started: no program was named");
  EXPECT_EQ(rule({.arguments = {""}}), "cannot be started: no program was named");
  EXPECT_EQ(rule({.arguments = {"echo", std::string("a\0b", 3)}}),
            "cannot be started: a NUL byte in the argument \"a\"");
  EXPECT_THAT(rule({.arguments = {"true"}, .environment = Environment::exact({{"a=b", "c"}})}),
              HasSubstr("\"a=b\" has no legal name"));
  EXPECT_THAT(rule({.arguments = {"true"}, .directory = std::string("/\0tmp", 5)}),
              HasSubstr("a NUL byte in the path"));
  EXPECT_THAT(rule({.arguments = {"true"}, .in = File{std::string("/\0tmp", 5)}}),
              HasSubstr("a NUL byte in the path"));
}

TEST_F(Spawn, WhatCannotStartSaysAtWhichStageAndWhy) {
  const auto expect = [](const Request& request, Stage stage, int error_number) {
    const Result result = run(request);
    EXPECT_EQ(result.failed, stage) << result.outcome();
    EXPECT_EQ(result.error_number, error_number) << result.outcome();
  };
  expect({.arguments = {"/nowhere/program"}}, Stage::kStart, ENOENT);
  expect({.arguments = {"no-such-program-anywhere"}}, Stage::kStart, ENOENT);
  expect({.arguments = {"./tool"}}, Stage::kStart, ENOENT);
  expect({.arguments = {dir_.string()}}, Stage::kStart, EACCES);
  expect({.arguments = {"true"}, .directory = dir_ / "none"}, Stage::kDirectory, ENOENT);
  expect({.arguments = {script("plain", "echo hello\n").string()}}, Stage::kStart, ENOEXEC);
  expect({.arguments = {"echo", std::string(200 * 1024, 'x')}}, Stage::kStart, E2BIG);
  expect({.arguments = {"true"}, .in = File{dir_ / "none"}}, Stage::kInput, ENOENT);
  expect({.arguments = {"true"}, .in = Descriptor{4095}}, Stage::kInput, EBADF);
  expect({.arguments = {"true"}, .out = File{dir_ / "no" / "file"}}, Stage::kOutput, ENOENT);
  expect({.arguments = {"true"}, .err = Descriptor{-1}}, Stage::kError, EBADF);
  expect({.arguments = {"true"}, .passed = {{4095, 5}}}, Stage::kPassed, EBADF);
  expect({.arguments = {"true"}, .passed = {{0, 2}}}, Stage::kPassed, EBADF);
  expect({.arguments = {"true"}, .passed = {{0, 5}, {1, 5}}}, Stage::kPassed, EINVAL);
  EXPECT_EQ(run({.arguments = {"/nowhere/program"}}).outcome(),
            "cannot be started: No such file or directory (start: /nowhere/program)");
}

TEST_F(Spawn, FifosAreNotWaitedFor) {
  const fs::path fifo = dir_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Result read = run({.arguments = {"cat"}, .in = File{fifo}});
  EXPECT_TRUE(read.ok());
  EXPECT_EQ(read.out, "");
  const Result write = run({.arguments = {"echo"}, .out = File{fifo}});
  EXPECT_EQ(write.failed, Stage::kOutput);
  EXPECT_EQ(write.error_number, ENXIO);
}

TEST_F(Spawn, AtTheLimitOfDescriptorsItFailsCleanly) {
  rlimit former{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &former), 0);
  const rlimit small{64, former.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  std::vector<int> taken;
  for (int one = 0; (one = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(one);
  // With every number of free descriptors it works or says why.
  bool worked = false;
  while (!taken.empty() && !worked) {
    const Result result = run(shell("echo fine"));
    worked = result.ok();
    if (worked)
      EXPECT_EQ(result.out, "fine\n");
    else
      EXPECT_EQ(result.error_number, EMFILE) << result.outcome();
    close(taken.back());
    taken.pop_back();
  }
  EXPECT_TRUE(worked);
  for (const int one : taken) close(one);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &former), 0);
}

TEST_F(Spawn, IgnoredEndsOfChildrenAreReported) {
  const auto handler = signal(SIGCHLD, SIG_IGN);
  const Result result = run(shell("echo written"));
  signal(SIGCHLD, handler);
  EXPECT_EQ(result.failed, Stage::kWait);
  EXPECT_EQ(result.error_number, ECHILD);
  EXPECT_EQ(result.out, "written\n");
  EXPECT_THAT(result.outcome(), HasSubstr("its end is unknown: SIGCHLD is ignored"));
}

// In a process whose standard streams are closed, which gives their numbers to our pipes.
TEST_F(Spawn, ClosedStandardStreamsAreNotMixedUp) {
  if (const char* report = std::getenv("SPAWN_TEST_CLOSED")) {
    for (const int number : {0, 1, 2}) close(number);
    const Result captured = run(shell("cat; echo out; echo err >&2"));
    Request inherited = shell("cat; echo out; echo err >&2");
    inherited.in = Inherit{};
    inherited.out = Inherit{};
    inherited.err = Inherit{};
    const Result none = run(inherited);
    std::ofstream(report) << captured.out << captured.err << none.outcome() << '\n';
    for (const int number : {0, 1, 2}) ASSERT_EQ(open("/dev/null", O_RDWR), number);
    return;
  }
  const fs::path report = dir_ / "report";
  const Result result =
      run({.arguments = {"/proc/self/exe", "--gtest_filter=Spawn.ClosedStandardStreams*"},
           .environment = Environment::patch({{"SPAWN_TEST_CLOSED", report.string()}}),
           .timeout = milliseconds(60'000)});
  EXPECT_TRUE(result.ok()) << result.outcome() << result.out << result.err;
  EXPECT_EQ(content_of(report), "out\nerr\nexit status 0\n");
}

/// From now on the kernel says of a call that it does not exist.
void forbid(std::uint32_t call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// As on kernels before 5.3 and in some sandboxes.
TEST_F(Spawn, WithoutHandlesOfProcessesItAsksAgainAndAgain) {
  if (std::getenv("SPAWN_TEST_OLD") != nullptr) {
    forbid(SYS_pidfd_open);
    ASSERT_EQ(syscall(SYS_pidfd_open, getpid(), 0), -1);
    const Result result = run(shell("echo out; exec >&- 2>&-; sleep 0.1; exit 7"));
    EXPECT_EQ(result.out, "out\n");
    EXPECT_EQ(result.exit_code, 7);
    const Result late = run({.arguments = {"sleep", "30"}, .timeout = milliseconds(100)});
    EXPECT_TRUE(late.timed_out);
    EXPECT_EQ(late.signal, SIGTERM);
    return;
  }
  const Result result =
      run({.arguments = {"/proc/self/exe", "--gtest_filter=Spawn.WithoutHandles*"},
           .environment = Environment::patch({{"SPAWN_TEST_OLD", "1"}}),
           .timeout = milliseconds(60'000)});
  EXPECT_TRUE(result.ok()) << result.outcome() << result.out << result.err;
}

TEST_F(Spawn, EightThreadsAtOnceLeaveNothingBehind) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(t) + "," + std::to_string(i);
        Request request{.arguments = {"/bin/echo", text}};
        request.in = Bytes{text};
        if (run(request).out != text + "\n") ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Spawn, MemoryThatChildrenDoNotGetIsNoTrouble) {
  // The page with the arguments is kept from children: a copy of this process could not start
  // anything with them.
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(madvise(memory, page, MADV_DONTFORK), 0);
  const std::string_view variable = "SPAWN_TEST_PAGE=seen";
  char* at = static_cast<char*>(memory);
  at[variable.copy(at, variable.size())] = '\0';
  putenv(at);
  EXPECT_EQ(run(shell("echo $SPAWN_TEST_PAGE")).out, "seen\n");
  unsetenv("SPAWN_TEST_PAGE");
  munmap(memory, page);
}

TEST(LastLine, IsTheLastThatIsNotBlank) {
  EXPECT_EQ(last_line(""), "");
  EXPECT_EQ(last_line(" \n\n"), "");
  EXPECT_EQ(last_line("one"), "one");
  EXPECT_EQ(last_line("one\n two \r\n\n"), "two");
  EXPECT_EQ(last_line("\nx\n"), "x");
}

}  // namespace
}  // namespace segfuse::spawn
