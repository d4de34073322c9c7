#include "base/os/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

#include "segfuse/error.h"

namespace segfuse {
namespace {

int received = 0;

TEST(Interrupt, TheFirstOneSetsTheFlagAndTheFormerHandlerComesBack) {
  const auto former = std::signal(SIGINT, [](int) { ++received; });
  received = 0;
  {
    const InterruptScope scope;
    EXPECT_FALSE(scope.requested());
    std::raise(SIGINT);
    EXPECT_TRUE(scope.requested());
    EXPECT_EQ(received, 0);
  }
  std::raise(SIGINT);
  EXPECT_EQ(received, 1);
  EXPECT_FALSE(InterruptScope().requested()) << "a new scope starts anew";
  std::signal(SIGINT, former);
}

TEST(InterruptDeathTest, TheSecondOneKills) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(Interrupt, AnIgnoredSignalStaysIgnored) {
  const auto former = std::signal(SIGINT, SIG_IGN);
  {
    const InterruptScope scope;
    std::raise(SIGINT);
    EXPECT_FALSE(scope.requested());
  }
  std::signal(SIGINT, former);
}

TEST(Interrupt, TwoScopesAtOnceAreRefused) {
  const InterruptScope scope;
  EXPECT_THROW(InterruptScope(), InternalError);
  std::raise(SIGINT);
  EXPECT_TRUE(scope.requested()) << "the refused one must not take the first one's handler";
}

}  // namespace
}  // namespace segfuse
