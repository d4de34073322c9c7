#include "comm/meet/board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "segfuse/error.h"

namespace segfuse::comm::meet {
namespace {

TEST(Board, WhatOneRankWritesIsReadThroughTheInheritedDescriptor) {
  Board launcher(3);
  EXPECT_FALSE(launcher.read(1));
  Board rank{Descriptor(::fcntl(launcher.descriptor(), F_DUPFD_CLOEXEC, 3))};
  EXPECT_EQ(rank.ranks(), 3);
  const Time when{std::chrono::seconds(5)};
  rank.write(1, {{.step = 7, .phase = Phase::kSaving, .doing = std::string(kLongestDoing, 'x')},
                 when,
                 2,
                 true});
  rank.write(2, {.state = {.step = 8}, .written = when});
  const auto entry = launcher.read(1);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->state.step, 7);
  EXPECT_EQ(entry->state.phase, Phase::kSaving);
  EXPECT_EQ(entry->state.doing.size(), kLongestDoing);
  EXPECT_EQ(entry->written, when);
  EXPECT_EQ(entry->cause, 2);
  EXPECT_TRUE(entry->own_fault);
  EXPECT_FALSE(launcher.read(0));
  EXPECT_FALSE(launcher.read(2)->own_fault);
}

TEST(Board, WhatIsReadWasWrittenAtOnce) {
  Board board(1);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::int64_t i = 0; !stop; ++i)
      board.write(0, {{.step = i, .shard = i, .bucket = i, .free_bytes = i}, Time(Duration(i)), i});
  });
  int seen = 0;
  while (seen < 20'000) {
    const auto entry = board.read(0);
    if (!entry) continue;
    ++seen;
    const std::int64_t i = entry->state.step;
    ASSERT_EQ(entry->state.shard, i);
    ASSERT_EQ(entry->state.bucket, i);
    ASSERT_EQ(entry->state.free_bytes, i);
    ASSERT_EQ(entry->written.time_since_epoch().count(), i);
    ASSERT_EQ(entry->cause, i);
  }
  stop = true;
  writer.join();
}

// The fault: a rank that was killed while it wrote left no entry, and the launcher could not say in
// which step it was.
TEST(Board, AWriterThatDiesWhileItWritesLeavesTheEntryBefore) {
  for (int round = 0; round < 50; ++round) {
    Board board(1);
    board.write(0, {{.step = 0, .shard = 0}, Time(Duration(0)), 0});
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0)
      for (std::int64_t i = 1;; ++i)
        board.write(0, {{.step = i, .shard = i}, Time(Duration(i)), i});
    for (auto entry = board.read(0); !entry || entry->state.step < 100; entry = board.read(0)) {
    }
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    const auto entry = board.read(0);
    ASSERT_TRUE(entry) << "round " << round;
    EXPECT_GE(entry->state.step, 100);
    EXPECT_EQ(entry->state.shard, entry->state.step);
    EXPECT_EQ(entry->cause, entry->state.step);
  }
}

TEST(Board, WhatIsNoneIsRefused) {
  EXPECT_THROW(Board(Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC))), CommError);
  EXPECT_THROW(Board(Descriptor(-1)), CommError);
}

}  // namespace
}  // namespace segfuse::comm::meet
