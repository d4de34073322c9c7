// What every device does: memory and failures.

#include <stdexcept>

#include "unit/runtime/device_harness.h"

namespace segfuse::runtime {
namespace {

class MemoryConformance : public Conformance {};
class FailureConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Devices, MemoryConformance, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Devices, FailureConformance, testing::ValuesIn(checking_backends()),
                         backend_name);

TEST_P(MemoryConformance, WhatWasMappedAtOnceIsUnmappedInParts) {
  const std::size_t unit = device().granule();
  std::byte* const at = memory(4);
  const StreamHandle s = stream();
  for (int i = 0; i < 4; ++i) harness().fill(s, at + static_cast<std::size_t>(i) * unit, i, unit);
  device().synchronize(s);
  device().unmap(at + unit, unit);
  EXPECT_EQ(harness().read(at + unit - 1), 0);
  EXPECT_EQ(harness().read(at + 2 * unit), 2);
  device().unmap(at + 3 * unit, unit);
  device().map(at + 3 * unit, 2 * unit);
  harness().fill(s, at + 3 * unit, 7, 2 * unit);
  device().map(at + unit, unit);
  harness().fill(s, at + unit, 6, unit);
  device().synchronize(s);
  const std::vector<int> expected = {0, 6, 2, 7, 7};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(harness().read(at + i * unit), expected[i]);
    EXPECT_EQ(harness().read(at + (i + 1) * unit - 1), expected[i]);
  }
  device().unmap(at, 5 * unit);  // what several calls have mapped
  device().unreserve(at, Harness::kGranules * unit);
}

TEST_P(MemoryConformance, MemoryIsCounted) {
  if (!harness().is_limited()) GTEST_SKIP() << "others may use the device, too";
  const std::size_t unit = device().granule();
  const DeviceMemory before = device().memory();
  EXPECT_EQ(before.total, Harness::kGranules * unit);
  EXPECT_EQ(before.free, before.total);
  std::byte* const at = memory(3);
  EXPECT_EQ(device().memory().free, before.free - 3 * unit);
  device().unmap(at + unit, unit);
  EXPECT_EQ(device().memory().free, before.free - 2 * unit);
}

TEST_P(MemoryConformance, NoMemoryLeavesThingsAsTheyWere) {
  const std::size_t unit = device().granule();
  const std::size_t total = device().memory().total / unit;
  std::byte* const at = memory(1, total + 2);
  const StreamHandle s = stream();
  harness().fill(s, at, 4, unit);
  device().synchronize(s);
  const std::size_t free = device().memory().free;
  EXPECT_THROW(device().map(at + unit, total * unit), NoMemory);
  EXPECT_EQ(device().memory().free, free);
  EXPECT_EQ(harness().read(at + unit - 1), 4);
  device().map(at + unit, unit);
  if (harness().is_limited()) {
    device().map(at + 2 * unit, (total - 2) * unit);
    EXPECT_EQ(device().memory().free, 0U);
    EXPECT_THROW(device().map(at + total * unit, unit), NoMemory);
    device().unmap(at + unit, unit);
    device().map(at + total * unit, unit);
  }
}

TEST_P(MemoryConformance, ACallThatCannotBeMeantFails) {
  const std::size_t unit = device().granule();
  std::byte* const at = memory(2, 4);
  EXPECT_THROW(device().map(at + unit, 2 * unit), DeviceError) << "one of them is mapped";
  EXPECT_THROW(device().map(at + 2 * unit, 3 * unit), DeviceError) << "beyond the reservation";
  EXPECT_THROW(device().map(at + 2 * unit, unit / 2), DeviceError) << "half a granule";
  EXPECT_THROW(device().map(at + 2 * unit + unit / 2, unit), DeviceError) << "between granules";
  EXPECT_THROW(device().map(at + 2 * unit, 0), DeviceError);
  EXPECT_THROW(device().unmap(at + unit, 2 * unit), DeviceError) << "one of them is not mapped";
  EXPECT_THROW(device().unmap(at - unit, unit), DeviceError);
  EXPECT_THROW(device().unmap(nullptr, unit), DeviceError);
  EXPECT_THROW(device().reserve(unit + 1), DeviceError);
  EXPECT_THROW(device().reserve(0), DeviceError);
  const std::size_t exabyte = std::size_t{1} << 60;
  EXPECT_THROW(device().reserve(exabyte), DeviceError);
  EXPECT_THROW(device().map(at, exabyte), DeviceError);
  EXPECT_THROW(device().map(at + 2 * unit, ~(unit - 1)), DeviceError) << "wraps around";
  device().map(at + 2 * unit, 2 * unit);
  device().unmap(at, 4 * unit);
}

TEST_P(MemoryConformance, ReservationsAreDisjointAndCanBeTakenAgain) {
  const std::size_t unit = device().granule();
  std::vector<std::byte*> all;
  for (std::size_t i = 0; i < 8; ++i) all.push_back(device().reserve((1 + i) * unit));
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 8; ++j)
      EXPECT_TRUE(i == j || all[i] + (1 + i) * unit <= all[j] || all[j] + (1 + j) * unit <= all[i]);
  for (std::size_t i = 0; i < 8; i += 2) device().unreserve(all[i], (1 + i) * unit);
  for (int i = 0; i < 100; ++i) {
    std::byte* const at = device().reserve(16 * unit);
    device().map(at + 15 * unit, unit);
    const StreamHandle s = stream();
    harness().fill(s, at + 15 * unit, i, unit);
    device().synchronize(s);
    device().destroy_stream(s);
    EXPECT_EQ(harness().read(at + 16 * unit - 1), i);
    device().unmap(at + 15 * unit, unit);
    device().unreserve(at, 16 * unit);
  }
}

TEST_P(MemoryConformance, PinnedMemory) {
  std::byte* const a = device().allocate_pinned(100);
  std::byte* const b = device().allocate_pinned(100'000);
  for (std::byte* const p : {a, b}) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0U);
  std::memset(a, 1, 100);
  std::memset(b, 2, 100'000);
  EXPECT_EQ(std::to_integer<int>(a[99]), 1);
  std::byte* const at = memory(2);
  const StreamHandle s = stream();
  device().copy(s, at, b, 100'000);
  device().copy(s, a, at + 99'900, 100);
  device().synchronize(s);
  EXPECT_EQ(std::to_integer<int>(a[99]), 2);
  EXPECT_THROW(device().allocate_pinned(std::size_t{1} << 60), NoMemory);
  device().release_pinned(a, 100);
  device().release_pinned(b, 100'000);
}

/// What a call throws, in words.
template <class Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

TEST_P(FailureConformance, RidesOnStreamsAndEvents) {
  const StreamHandle a = stream(), b = stream(), c = stream();
  std::atomic<int> done{0};
  harness().work(a, [&] { done += 1; });
  const EventHandle before = recorded(a);
  harness().work(a, [] { throw DeviceError("boom"); });
  harness().work(a, [&] { done += 10; });
  const EventHandle after = recorded(a);
  device().wait(b, after);
  harness().work(b, [&] { done += 100; });
  const EventHandle through = recorded(b);
  harness().work(c, [&] { done += 1000; });
  EXPECT_EQ(thrown([&] { device().synchronize_event(before); }), "nothing");
  EXPECT_EQ(thrown([&] { device().synchronize_event(through); }), "boom");
  EXPECT_EQ(thrown([&] { device().synchronize_event(after); }), "boom");
  EXPECT_EQ(thrown([&] { device().synchronize_event(after); }), "boom") << "the event keeps it";
  EXPECT_TRUE(device().query(after));
  EXPECT_EQ(thrown([&] { device().synchronize(c); }), "nothing");
  EXPECT_EQ(thrown([&] { device().synchronize(a); }), "boom");
  EXPECT_EQ(thrown([&] { device().synchronize(b); }), "boom");
  EXPECT_EQ(done, 1001);
  harness().work(a, [&] { done += 1; });
  harness().work(b, [&] { done += 1; });
  device().record(a, after);
  EXPECT_EQ(thrown([&] { device().synchronize_event(after); }), "nothing");
  EXPECT_EQ(thrown([&] { device().synchronize(a); }), "nothing");
  EXPECT_EQ(thrown([&] { device().synchronize(b); }), "nothing");
  EXPECT_EQ(done, 1003);
}

TEST_P(FailureConformance, TheFirstOneWins) {
  const StreamHandle a = stream(), b = stream();
  harness().work(a, [] { throw std::runtime_error("first"); });
  harness().work(a, [] { throw DeviceError("second"); });
  const EventHandle event = recorded(a);
  harness().work(b, [] { throw DeviceError("its own"); });
  device().wait(b, event);
  EXPECT_EQ(thrown([&] { device().synchronize(b); }), "its own");
  EXPECT_EQ(thrown([&] { device().synchronize(a); }), "first");
  EXPECT_EQ(thrown([&] { device().synchronize(a); }), "nothing");
}

TEST_P(FailureConformance, AFailedStreamKeepsItsWaits) {
  const StreamHandle a = stream(), b = stream();
  harness().work(a, [] { throw DeviceError("boom"); });
  harness().hold(b);
  bool done = false;
  harness().work(b, [&] { done = true; });
  device().wait(a, recorded(b));
  const EventHandle event = recorded(a);
  EXPECT_FALSE(device().query(event));
  harness().release(b);
  EXPECT_EQ(thrown([&] { device().synchronize_event(event); }), "boom");
  EXPECT_TRUE(done) << "the event stands for b's work as well";
  EXPECT_EQ(thrown([&] { device().synchronize(b); }), "nothing");
}

TEST_P(FailureConformance, MemoryIsAsTheSkippedWorkFoundIt) {
  const StreamHandle a = stream();
  std::byte* const at = memory(1);
  harness().fill(a, at, 1, 8);
  harness().work(a, [] { throw DeviceError("boom"); });
  harness().fill(a, at, 2, 8);
  EXPECT_EQ(thrown([&] { device().synchronize(a); }), "boom");
  EXPECT_EQ(harness().read(at), 1);
  harness().fill(a, at, 3, 8);
  device().synchronize(a);
  EXPECT_EQ(harness().read(at), 3);
}

}  // namespace
}  // namespace segfuse::runtime
