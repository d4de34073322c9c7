#include "doctor/memory/replay.h"

#include <gtest/gtest.h>

#include "doctor/memory/levels.h"
#include "doctor/memory/model_device.h"
#include "runtime/memory/size_class.h"
#include "segfuse/error.h"
#include "unit/doctor/some_heap.h"

namespace segfuse::doctor {
namespace {

using runtime::MemoryAccess;

TEST(Replay, HoldsAsMuchAsTheHistorySays) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SomeHeap some(100'000, seed);
    some.work(400);
    const MemoryRecord record = capture(some.heap);
    std::int64_t peak = 0;
    Walk walk(record);
    std::uint64_t allocations = 0;
    for (const auto& event : record.history) {
      walk.apply(event);
      peak = std::max(peak, walk.levels().live);
      allocations += event.kind == runtime::HeapEvent::Kind::kAllocate ? 1 : 0;
    }
    runtime::sim::SimDevice device(
        {.schedule = runtime::sim::seeded(seed), .granule = 4096, .limit = 64 * kMiB});
    const ReplayResult result = replay(record, device);
    EXPECT_EQ(result.allocations, allocations);
    EXPECT_EQ(result.peak_live, static_cast<std::uint64_t>(peak));
    EXPECT_GE(result.peak_mapped, result.peak_live);
    EXPECT_EQ(result.refused, 0U);
    EXPECT_EQ(result.unknown_frees, 0U);
    // A model of a device leads to the same decisions.
    ModelDevice model({.limit = 64 * kMiB, .granule = 4096});
    const ReplayResult modelled = replay(record, model);
    EXPECT_EQ(modelled.peak_mapped, result.peak_mapped);
    EXPECT_EQ(modelled.waits, result.waits);
    EXPECT_EQ(modelled.grown, result.grown);
    EXPECT_EQ(model.counts().conflicts, 0U);
  }
}

TEST(Replay, CountsWhatDoesNotFit) {
  SomeHeap some;
  some.work(300);
  runtime::sim::SimDevice device(
      {.schedule = runtime::sim::lazy(), .granule = 4096, .limit = 64 * kMiB});
  const MemoryRecord record = capture(some.heap);
  const ReplayResult all = replay(record, device);
  const ReplayResult result =
      replay(record, device, {.heap = {.hard_limit = all.peak_live / 2 / 4096 * 4096}});
  EXPECT_GT(result.refused, 0U);
  EXPECT_LE(result.peak_mapped, all.peak_live / 2);
  EXPECT_EQ(result.allocations, all.allocations);
}

TEST(Replay, FreesOfWhatWasThereBeforeAreCounted) {
  SomeHeap some(20);
  some.work(400);
  MemoryRecord record = capture(some.heap);
  ASSERT_EQ(record.history.size(), 20U);
  ModelDevice device;
  const ReplayResult result = replay(record, device);
  EXPECT_GT(result.unknown_frees, 0U);
  EXPECT_LE(result.unknown_frees, result.frees);
}

TEST(Replay, ABufferTakesThePlaceOfOneWhoseFreeIsMissing) {
  MemoryRecord record;
  for (const std::size_t bytes : {4096U, 1024U, 2048U})
    record.history.push_back({.kind = runtime::HeapEvent::Kind::kAllocate,
                              .bytes = bytes,
                              .requested = bytes,
                              .label = ""});
  ModelDevice device;
  const ReplayResult result = replay(record, device);
  EXPECT_EQ(result.allocations, 3U);
  EXPECT_EQ(result.peak_requested, 4096U);
  EXPECT_EQ(result.peak_live, 4096U);
}

struct Streams {
  ModelDevice device;
  runtime::StreamHandle a = device.create_stream();
  runtime::StreamHandle b = device.create_stream();
  std::byte* memory = device.reserve(1 << 20);
  void use(runtime::StreamHandle on, std::size_t offset, std::size_t bytes, bool write) {
    const MemoryAccess access{memory + offset, bytes, write, "x"};
    device.launch(on, {}, {&access, 1});
  }
};

TEST(ModelDevice, TimePassesOnStreamsApart) {
  Streams s;
  s.device.set_duration(10);
  s.use(s.a, 0, 8, true);
  s.use(s.a, 0, 8, true);
  s.use(s.b, 100, 8, true);
  EXPECT_EQ(s.device.finish(), 20);
  const runtime::EventHandle event = s.device.create_event();
  s.device.record(s.a, event);
  EXPECT_FALSE(s.device.query(event));
  s.device.pass(19);
  EXPECT_FALSE(s.device.query(event));
  s.device.pass(1);
  EXPECT_TRUE(s.device.query(event));
  s.device.synchronize(s.b);
  EXPECT_EQ(s.device.now(), 20) << "b was over";
  s.use(s.a, 0, 8, true);
  s.device.synchronize(s.a);
  EXPECT_EQ(s.device.now(), 30);
}

TEST(ModelDevice, SeesBytesUsedTooEarly) {
  Streams s;
  s.device.set_duration(10);
  s.use(s.a, 0, 100, true);
  s.use(s.b, 100, 100, true);
  EXPECT_EQ(s.device.counts().conflicts, 0U);
  s.use(s.b, 0, 100, false);  // after b's first work: a's write is over by then
  EXPECT_EQ(s.device.counts().conflicts, 0U);
  s.use(s.a, 150, 1, true);  // begins at 10, b's write is over at 10
  EXPECT_EQ(s.device.counts().conflicts, 0U);
  s.use(s.a, 90, 20, true);  // begins at 20, b's read is over at 20
  EXPECT_EQ(s.device.counts().conflicts, 0U);
  s.use(s.b, 0, 200, false);  // from 20 to 30, while a writes
  EXPECT_EQ(s.device.counts().conflicts, 1U);
  s.use(s.b, 300, 10, true);
  s.use(s.a, 0, 400, true);  // a at 30 to 40; b wrote 300..310 from 30 to 40
  EXPECT_EQ(s.device.counts().conflicts, 2U);
  const runtime::EventHandle event = s.device.create_event();
  s.device.record(s.a, event);
  s.device.wait(s.b, event);
  s.use(s.b, 0, 500, true);
  EXPECT_EQ(s.device.counts().conflicts, 2U);
}

TEST(ModelDevice, RefusesMoreThanItHas) {
  ModelDevice device({.limit = 4 * kMiB, .granule = kMiB});
  std::byte* const at = device.reserve(16 * kMiB);
  device.map(at, 3 * kMiB);
  EXPECT_THROW(device.map(at + 3 * kMiB, 2 * kMiB), runtime::NoMemory);
  EXPECT_EQ(device.memory().free, kMiB);
  device.unmap(at, 3 * kMiB);
  device.map(at, 4 * kMiB);
  EXPECT_EQ(device.peak_mapped(), 4 * kMiB);
  EXPECT_THROW((void)device.allocate_pinned(1), UsageError);
}

}  // namespace
}  // namespace segfuse::doctor
