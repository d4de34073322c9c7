#include "base/console/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace segfuse {
namespace {

using testing::ElementsAre;

/// Collects messages while alive.
class Recorder {
 public:
  Recorder()
      : former_(set_log_sink([this](LogLevel level, std::string_view message) {
          messages.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(message));
        })) {}
  ~Recorder() {
    set_log_sink(former_);
    set_log_level(LogLevel::kInfo);
  }
  std::vector<std::string> messages;

 private:
  LogSink former_;
};

TEST(Log, MessagesReachTheSinkFormatted) {
  Recorder recorder;
  log(LogLevel::kWarning, "{} of {}", 1, "two");
  EXPECT_THAT(recorder.messages, ElementsAre("2 1 of two"));
}

TEST(Log, LevelsBelowTheThresholdAreDropped) {
  Recorder recorder;
  log(LogLevel::kDebug, "hidden");
  set_log_level(LogLevel::kError);
  log(LogLevel::kWarning, "hidden");
  log(LogLevel::kError, "shown");
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "hidden");
  EXPECT_THAT(recorder.messages, ElementsAre("3 shown"));
}

TEST(Log, SetReturnsTheFormerSink) {
  Recorder outer;
  {
    Recorder inner;
    log(LogLevel::kInfo, "inner");
    EXPECT_THAT(inner.messages, ElementsAre("1 inner"));
  }
  log(LogLevel::kInfo, "outer");
  EXPECT_THAT(outer.messages, ElementsAre("1 outer"));
}

TEST(Log, WithoutASinkLinesGoToStderrWhole) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  log(LogLevel::kInfo, "plain");
  log(LogLevel::kError, "bad");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "segfuse: plain\nsegfuse: error: bad\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Log, ThreadsDoNotMixTheirMessages) {
  Recorder recorder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) log(LogLevel::kInfo, "message");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.messages, std::vector<std::string>(400, "1 message"));
}

}  // namespace
}  // namespace segfuse
