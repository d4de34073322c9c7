#include "segfuse/doctor/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "doctor/record.h"
#include "support/files.h"
#include "unit/doctor/some_heap.h"

namespace segfuse::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Saved {
  explicit Saved(const std::string& text) { path = folder.write("record.json", text); }
  test::TemporaryDirectory folder;
  std::filesystem::path path;
};

MemoryReport report_of(const MemoryRecord& record, bool with_replay = false) {
  const Saved saved(to_json(record));
  return examine_memory(saved.path, with_replay);
}

// Offsets count within an arena: what ends one does not go on in the next.
TEST(MemoryReport, RunsOfFreeMemoryEndWithTheirArena) {
  MemoryRecord record;
  record.source = "segfuse";
  runtime::HeapSnapshot snapshot;
  const auto add = [&](int arena, std::uint64_t offset, std::uint64_t bytes) {
    runtime::HeapSnapshot::Entry entry;
    entry.arena = static_cast<decltype(entry.arena)>(arena);
    entry.offset = offset;
    entry.bytes = bytes;
    entry.state = runtime::BlockState::kFree;
    snapshot.entries.push_back(entry);
  };
  add(0, 0, 4096);
  add(0, 4096, 4096);
  add(1, 8192, 4096);
  record.snapshot = snapshot;
  const MemoryReport report = report_of(record);
  EXPECT_EQ(report.free, 3U * 4096);
  EXPECT_EQ(report.largest_run, 2U * 4096);
  EXPECT_EQ(report.hard_fragmentation, 4096U);
}

TEST(MemoryReport, SaysWhatTheHeapSays) {
  SomeHeap some;
  some.work(500);
  const MemoryRecord record = capture(some.heap);
  const MemoryReport report = report_of(record, true);
  const auto& statistics = record.snapshot->statistics;
  EXPECT_EQ(report.mapped, statistics.mapped_bytes);
  EXPECT_EQ(report.live, statistics.live_bytes);
  EXPECT_EQ(report.cached, statistics.cached_bytes);
  EXPECT_EQ(report.free, statistics.free_bytes);
  EXPECT_EQ(report.mapped, report.live + report.cached + report.free);
  EXPECT_EQ(report.soft_fragmentation, statistics.live_bytes - statistics.requested_bytes);
  EXPECT_EQ(report.hard_fragmentation, report.free - report.largest_run);
  EXPECT_EQ(report.allocations, statistics.allocations);
  EXPECT_EQ(report.live_buffers, some.held.size());
  std::uint64_t held = 0;
  for (const MemoryHolder& holder : report.holders) held += holder.bytes;
  EXPECT_EQ(held, report.live);
  std::uint64_t at_peak = 0;
  for (const MemoryHolder& holder : report.peak_holders) at_peak += holder.bytes;
  EXPECT_EQ(at_peak, report.peak_live);
  EXPECT_GE(report.peak_live, report.live);
  std::uint64_t highest = 0;
  for (const MemoryPoint& point : report.timeline) highest = std::max(highest, point.live);
  EXPECT_EQ(highest, report.peak_live);
  EXPECT_EQ(report.timeline.back().live, report.live);
  ASSERT_TRUE(report.replay);
  EXPECT_EQ(report.replay->peak_live, report.peak_live);
}

TEST(MemoryReport, TellsTheThreeKindsOfFragmentationApart) {
  SomeHeap some;
  runtime::Heap& heap = some.heap;
  std::vector<runtime::Buffer> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(heap.allocate(2 * kMiB, some.a, "large"));
  some.executor.launch(some.b, {"read", {}}, {writes(buffers[2])});
  const runtime::Buffer rounded = heap.allocate(1030, some.a, "odd");
  buffers[0].reset();
  MemoryReport report = report_of(capture(heap));
  EXPECT_EQ(report.stream_fragmentation, 0U) << "nothing used it";
  EXPECT_GE(report.free, 2 * kMiB);
  EXPECT_EQ(report.soft_fragmentation, 1280U - 1030U);
  const std::uint64_t hard = report.hard_fragmentation;
  buffers[2].reset();
  report = report_of(capture(heap));
  EXPECT_EQ(report.stream_fragmentation, 2 * kMiB) << "b may still write it";
  EXPECT_GT(report.hard_fragmentation, hard) << "the middle one lies between two free ones";
  EXPECT_EQ(std::ranges::count(report.ranges, "pending", &MemoryRange::state), 1);
  some.timeline.synchronize(some.b);
  report = report_of(capture(heap));
  EXPECT_EQ(report.stream_fragmentation, 0U);
  buffers.clear();
  heap.trim();
  EXPECT_EQ(report_of(capture(heap)).hard_fragmentation, 0U);
}

TEST(MemoryReport, NamesWhoHeldMemoryAtThePeak) {
  SomeHeap some;
  const runtime::Buffer weights = some.heap.allocate(3 * kMiB, some.a, "weights");
  {
    const runtime::Buffer one = some.heap.allocate(4 * kMiB, some.a, "activations");
    const runtime::Buffer two = some.heap.allocate(4 * kMiB, some.a, "activations");
  }
  const runtime::Buffer last = some.heap.allocate(kMiB, some.a, "gradients");
  const MemoryReport report = report_of(capture(some.heap));
  ASSERT_EQ(report.peak_holders.size(), 2U);
  EXPECT_EQ(report.peak_holders[0].label, "activations");
  EXPECT_EQ(report.peak_holders[0].buffers, 2U);
  EXPECT_EQ(report.peak_holders[0].bytes, 8 * kMiB);
  EXPECT_EQ(report.peak_live, 11 * kMiB);
  ASSERT_EQ(report.holders.size(), 2U);
  EXPECT_EQ(report.holders[1].label, "gradients");
  const std::string text = memory_report_text(report);
  EXPECT_THAT(text, HasSubstr("peak 11.0 MiB live"));
  EXPECT_THAT(text, HasSubstr("8.00 MiB  activations (2 buffers)"));
}

TEST(MemoryReport, AForeignLogHasNoSnapshot) {
  const Saved saved(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1,10:00:00.0,allocate,0x1000,4096,0x0\n"
      "1,10:00:01.0,allocate,0x9000,1048576,0x1\n"
      "1,10:00:02.0,free,0x1000,4096,0x0\n");
  const MemoryReport report = examine_memory(saved.path, true);
  EXPECT_FALSE(report.has_snapshot);
  EXPECT_EQ(report.live, 1048576U);
  EXPECT_EQ(report.peak_live, 1048576U + 4096U);
  EXPECT_DOUBLE_EQ(report.peak_seconds, 1);
  EXPECT_EQ(report.replay->allocations, 2U);
  EXPECT_TRUE(report.ranges.empty());
  EXPECT_THAT(memory_report_html(report), Not(HasSubstr("Map of addresses")));
  EXPECT_THAT(memory_report_text(report), HasSubstr("RMM log, 3 events"));
}

TEST(MemoryReport, ThePageNeedsNoNetworkAndEscapesLabels) {
  SomeHeap some;
  some.work(3000);
  const MemoryReport report = report_of(capture(some.heap));
  EXPECT_LE(report.timeline.size(), 1300U);
  const std::string html = memory_report_html(report);
  for (const char* never : {"http:", "https:", "<script", "url(", "hidden \"x\" <&>"})
    EXPECT_THAT(html, Not(HasSubstr(never)));
  EXPECT_THAT(html, HasSubstr("hidden &quot;x&quot; &lt;&amp;&gt;"));
  for (const char* part : {"Map of addresses", "<path d=", "name=\"viewport\"", "<body><main>"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_LT(html.size(), 2'000'000U);
}

}  // namespace
}  // namespace segfuse::doctor
