// The story: indices are computed on one stream, a gather on another stream reads them later, the
// host drops them at once, and the first stream asks for memory again. With an allocator that knows
// one stream only, the gather reads what somebody else has written.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kCount = 64;
constexpr std::size_t kBytes = kCount * sizeof(int);

int table(int index) { return 1000 + index; }

void fill_indices(std::byte* at, int step) {
  for (std::size_t i = 0; i < kCount; ++i) {
    const int index = static_cast<int>((i * 7 + static_cast<std::size_t>(step)) % kCount);
    std::memcpy(at + i * sizeof(int), &index, sizeof(int));
  }
}

/// Entries of the result that are wrong; an index out of range is one.
std::size_t gather(const std::byte* indices, int step) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    int index = 0;
    std::memcpy(&index, indices + i * sizeof(int), sizeof(int));
    const int expected = static_cast<int>((i * 7 + static_cast<std::size_t>(step)) % kCount);
    const bool in_range = index >= 0 && index < static_cast<int>(kCount);
    if (!in_range || table(index) != table(expected)) ++wrong;
  }
  return wrong;
}

std::size_t story(const std::shared_ptr<sim::Schedule>& schedule, int steps) {
  sim::SimDevice device({.schedule = schedule, .granule = 4096, .limit = std::size_t{16} << 20});
  Timeline timeline;
  Heap heap(device, timeline);
  Executor executor(timeline);
  const StreamId prepare = timeline.create(device, "prepare");
  const StreamId compute = timeline.create(device, "compute");
  std::size_t wrong = 0;
  for (int step = 0; step < steps; ++step) {
    const Buffer indices = heap.allocate(kBytes, prepare, "indices");
    std::byte* const at = indices.address();
    executor.launch(prepare, {"indices", [=](StreamHandle) { fill_indices(at, step); }},
                    {writes(indices)});
    executor.launch(compute, {"gather", [=, &wrong](StreamHandle) { wrong += gather(at, step); }},
                    {reads(indices)});
    // Here the last handle goes, while the gather may not have begun.
    const Buffer next = heap.allocate(kBytes, prepare, "noise");
    std::byte* const other = next.address();
    executor.launch(prepare, {"noise", [=](StreamHandle) { std::memset(other, 0x7F, kBytes); }},
                    {writes(next)});
  }
  timeline.synchronize(prepare);
  timeline.synchronize(compute);
  return wrong;
}

/// What an allocator does that keeps a list of free blocks for each stream and asks nobody else.
std::size_t naive_story(const std::shared_ptr<sim::Schedule>& schedule) {
  sim::SimDevice device({.schedule = schedule, .granule = 4096, .limit = std::size_t{16} << 20});
  std::byte* const at = device.reserve(4096);
  device.map(at, 4096);
  const StreamHandle prepare = device.create_stream();
  const StreamHandle compute = device.create_stream();
  const EventHandle ready = device.create_event();
  std::size_t wrong = 0;
  const MemoryAccess write{at, kBytes, true, "indices"};
  const MemoryAccess read{at, kBytes, false, "indices"};
  device.launch(prepare, {"indices", [=](StreamHandle) { fill_indices(at, 0); }}, {&write, 1});
  device.record(prepare, ready);
  device.wait(compute, ready);  // the kernels are ordered, as they should be
  device.launch(compute, {"gather", [=, &wrong](StreamHandle) { wrong += gather(at, 0); }},
                {&read, 1});
  // Freed on prepare, and handed out again for prepare: the same address.
  device.launch(prepare, {"noise", [=](StreamHandle) { std::memset(at, 0x7F, kBytes); }},
                {&write, 1});
  device.synchronize(prepare);
  device.synchronize(compute);
  device.destroy_event(ready);
  device.unmap(at, 4096);
  return wrong;
}

TEST(Story, IndicesStayIntactInEverySchedule) {
  const auto program = [](const std::shared_ptr<sim::Schedule>& schedule) {
    EXPECT_EQ(story(schedule, 2), 0U);
  };
  const auto all = sim::explore(program, {.limit = 20'000, .reduce = false});
  EXPECT_GT(all.schedules, 100U);
  // Every two uses of the same memory are ordered: schedules differ in nothing that matters.
  const auto different = sim::explore(program);
  EXPECT_TRUE(different.complete);
  EXPECT_EQ(different.schedules, 1U);
}

TEST(Story, IndicesStayIntactUnderAdversaries) {
  for (const sim::NamedSchedule& named : sim::all_schedules(2, 50))
    EXPECT_EQ(story(named.make(), 20), 0U) << named.name << " " << named.number;
}

TEST(Story, TheNaivePolicyFailsInSomeSchedules) {
  std::size_t failed = 0;
  const auto result = sim::explore([&](const std::shared_ptr<sim::Schedule>& schedule) {
    failed += naive_story(schedule) > 0 ? 1 : 0;
  });
  EXPECT_TRUE(result.complete);
  EXPECT_GT(failed, 0U);
  EXPECT_LT(failed, result.schedules) << "on a fast device it looks right";
}

TEST(Story, HoldsOnThreads) { EXPECT_EQ(story(nullptr, 500), 0U); }

}  // namespace
}  // namespace segfuse::runtime
