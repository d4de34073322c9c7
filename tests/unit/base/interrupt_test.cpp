#include "base/os/interrupt.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "segfuse/error.h"
#include "support/system/processes.h"

namespace segfuse {
namespace {

int received = 0;

/// A person, a scheduler and a terminal ask in different words. As in the foreground: in the
/// background SIGINT is ignored from the start (nohup).
class InterruptBy : public testing::TestWithParam<int> {
 protected:
  InterruptBy() : former_(std::signal(GetParam(), SIG_DFL)) {}
  ~InterruptBy() override { std::signal(GetParam(), former_); }

 private:
  void (*former_)(int);
};
INSTANTIATE_TEST_SUITE_P(Signals, InterruptBy, testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_P(InterruptBy, TheFirstOneSetsTheFlagAndTheFormerHandlerComesBack) {
  const auto former = std::signal(GetParam(), [](int) { ++received; });
  received = 0;
  {
    const InterruptScope scope;
    EXPECT_FALSE(scope.requested());
    std::raise(GetParam());
    EXPECT_TRUE(scope.requested());
    EXPECT_EQ(received, 0);
  }
  std::raise(GetParam());
  EXPECT_EQ(received, 1);
  EXPECT_FALSE(InterruptScope().requested()) << "a new scope starts anew";
  std::signal(GetParam(), former);
}

TEST_P(InterruptBy, TheSecondOneKills) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(GetParam());
        std::raise(GetParam());
      },
      testing::KilledBySignal(GetParam()), "");
}

TEST_P(InterruptBy, AnIgnoredSignalStaysIgnored) {
  const auto former = std::signal(GetParam(), SIG_IGN);
  {
    const InterruptScope scope;
    std::raise(GetParam());
    EXPECT_FALSE(scope.requested());
  }
  std::signal(GetParam(), former);
}

TEST_P(InterruptBy, ACallThatWaitsGoesOnWaiting) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const InterruptScope scope;
  std::atomic<pid_t> reader = 0;
  ssize_t count = 0;
  std::thread thread([&] {
    char letter = 0;
    reader = gettid();
    count = read(ends[0], &letter, 1);
  });
  const auto waits = [&] {
    const std::string stat = test::text_of(fmt::format("/proc/self/task/{}/stat", reader.load()));
    return stat.find(") S ") != std::string::npos;
  };
  while (reader == 0 || !waits()) std::this_thread::yield();
  pthread_kill(thread.native_handle(), GetParam());
  while (!scope.requested()) std::this_thread::yield();
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  thread.join();
  EXPECT_EQ(count, 1);
  for (const int end : ends) close(end);
}

TEST_P(InterruptBy, TwoScopesAtOnceAreRefused) {
  const InterruptScope scope;
  EXPECT_THROW(InterruptScope(), InternalError);
  std::raise(GetParam());
  EXPECT_TRUE(scope.requested()) << "the refused one must not take the first one's handler";
}

}  // namespace
}  // namespace segfuse
