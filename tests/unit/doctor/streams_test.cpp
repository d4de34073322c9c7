// The stream doctor: what checkers find while it watches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/check/race_checker.h"
#include "segfuse/doctor/streams.h"
#include "support/sim/sim_device.h"

namespace segfuse {
namespace {

using ::testing::HasSubstr;

/// A fill on one stream and a copy from it on another, with or without the wait between them.
void run_two_streams(bool waits) {
  runtime::sim::SimDevice device(runtime::sim::eager());
  runtime::RaceChecker checker(device, runtime::CheckMode::kThrow);
  std::byte* const memory = checker.reserve(checker.granule());
  checker.map(memory, checker.granule());
  const runtime::StreamHandle first = checker.create_stream();
  const runtime::StreamHandle second = checker.create_stream();
  const runtime::EventHandle event = checker.create_event();
  checker.fill(first, memory, 1, 64);
  checker.record(first, event);
  if (waits) checker.wait(second, event);
  try {
    checker.copy(second, memory + 64, memory, 64);
  } catch (const runtime::RaceFound&) {
    EXPECT_FALSE(waits);
  }
  checker.drain();
}

TEST(StreamDoctor, TellsRacesOfItsTime) {
  run_two_streams(false);
  const Watch watch;
  EXPECT_EQ(watch.streams("segfuse train").operations, 0U);
  EXPECT_THAT(stream_report_text(watch.streams("segfuse train")),
              HasSubstr("nothing was enqueued on a stream"));
  run_two_streams(true);
  const StreamReport clean = watch.streams("segfuse train");
  EXPECT_EQ(clean.operations, 2U);
  EXPECT_TRUE(clean.races.empty());
  EXPECT_THAT(stream_report_text(clean), HasSubstr("no race: "));
  run_two_streams(false);
  const StreamReport report = watch.streams("segfuse train");
  ASSERT_EQ(report.races.size(), 1U);
  EXPECT_THAT(report.races[0].missing, HasSubstr("stream 2 has to wait"));
  EXPECT_THAT(report.races[0].picture, HasSubstr("<svg"));
  EXPECT_THAT(stream_report_text(report), HasSubstr("race: " + report.races[0].sentence));
  EXPECT_THAT(stream_report_json(report), HasSubstr("\"operations\": 4"));
}

}  // namespace
}  // namespace segfuse
