#include "base/console/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace segfuse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A clock that the test moves and a record of all that was written.
struct Stage {
  double now = 100;
  std::vector<std::string> written;

  ProgressOptions options(ProgressOptions::Style style) {
    ProgressOptions options;
    options.style = style;
    options.columns = 60;
    options.write = [this](std::string_view text) { written.emplace_back(text); };
    options.clock = [this] { return now; };
    return options;
  }
};

constexpr auto kBar = ProgressOptions::Style::kBar;
constexpr auto kLines = ProgressOptions::Style::kLines;

TEST(Progress, ShortWorkIsSilent) {
  Stage stage;
  {
    Progress progress("training", 10, stage.options(kBar));
    for (int i = 0; i < 10; ++i) {
      stage.now += 0.19;
      progress.advance();
    }
  }
  EXPECT_THAT(stage.written, IsEmpty());
}

TEST(Progress, LinesComeEveryFewSeconds) {
  Stage stage;
  {
    Progress progress("training", 100, stage.options(kLines));
    progress.note("loss 1.5");
    for (int i = 0; i < 12; ++i) {
      stage.now += 1;
      progress.advance();
    }
  }
  EXPECT_THAT(stage.written,
              ElementsAre("training: 2/100 (2 %), 2 s, 1:38 min left, loss 1.5\n",
                          "training: 7/100 (7 %), 7 s, 1:33 min left, loss 1.5\n",
                          "training: 12/100 (12 %), 12 s, 1:28 min left, loss 1.5\n",
                          "training: 12/100 (12 %), 12 s, 1:28 min left, loss 1.5\n"));
}

TEST(Progress, TheBarIsRedrawnInPlaceAndEndsWithALine) {
  Stage stage;
  Progress progress("decoding", 4, stage.options(kBar));
  stage.now += 3;
  progress.set(2);
  stage.now += 0.05;
  progress.set(3);  // too soon after the last drawing
  stage.now += 1;
  progress.set(4);
  progress.finish();
  progress.advance();
  EXPECT_THAT(stage.written,
              ElementsAre("\r\033[K[############............] decoding: 2/4 (50 %), 3 s, 3 s l",
                          "\r\033[K[########################] decoding: 4/4 (100 %), 4 s",
                          "\r\033[K[########################] decoding: 4/4 (100 %), 4 s\n"));
}

TEST(Progress, PrintedLinesClearTheBarFirst) {
  Stage stage;
  Progress progress("work", 0, stage.options(kBar));
  progress.print("epoch 1");
  stage.now += 3;
  progress.advance();
  progress.print("epoch 2");
  EXPECT_THAT(stage.written, ElementsAre("epoch 1\n", "\r\033[Kwork: 1, 3 s", "\r\033[K",
                                         "epoch 2\n", "\r\033[Kwork: 1, 3 s"));
}

TEST(Progress, ClippingNeverCutsACharacterInTwo) {
  Stage stage;
  ProgressOptions options = stage.options(kBar);
  options.columns = 6;
  Progress progress("\u0444\u043e\u043d\u0435\u043c\u044b", 0, options);
  stage.now += 3;
  progress.advance();
  EXPECT_THAT(stage.written, ElementsAre("\r\033[K\u0444\u043e\u043d\u0435\u043c"));
}

TEST(Progress, MoreThanTheTotalIsShownAsTheTotal) {
  Stage stage;
  Progress progress("work", 2, stage.options(kLines));
  stage.now += 4000;
  progress.advance(5);
  EXPECT_THAT(stage.written, ElementsAre("work: 2/2 (100 %), 1:06 h\n"));
}

TEST(Progress, QuietWritesNothing) {
  Stage stage;
  ProgressOptions options = stage.options(kLines);
  options.quiet = true;
  Progress progress("work", 2, options);
  stage.now += 60;
  progress.advance();
  progress.print("line");
  progress.finish();
  EXPECT_THAT(stage.written, IsEmpty());
}

TEST(Progress, StdoutStaysClean) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Stage stage;
    ProgressOptions options = stage.options(kLines);
    options.write = nullptr;
    Progress progress("work", 2, options);
    stage.now += 3;
    progress.advance();
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("work: 1/2"));
}

}  // namespace
}  // namespace segfuse
