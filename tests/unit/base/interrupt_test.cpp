#include "base/os/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

#include "segfuse/error.h"

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

TEST_P(InterruptBy, TwoScopesAtOnceAreRefused) {
  const InterruptScope scope;
  EXPECT_THROW(InterruptScope(), InternalError);
  std::raise(GetParam());
  EXPECT_TRUE(scope.requested()) << "the refused one must not take the first one's handler";
}

}  // namespace
}  // namespace segfuse
