// What every device does: streams and events.

#include <algorithm>
#include <thread>

#include "unit/runtime/device_harness.h"

namespace segfuse::runtime {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, Conformance, testing::ValuesIn(backends()), backend_name);
class HandleConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Devices, HandleConformance, testing::ValuesIn(checking_backends()),
                         backend_name);

TEST(CudaConformance, IsTested) {
  if (const std::string reason = why_no_cuda(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_EQ(backends().back().name, "cuda");
}

TEST_P(Conformance, WorkOfAStreamRunsInItsOrder) {
  const StreamHandle s = stream();
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) harness().work(s, [&order, i] { order.push_back(i); });
  device().synchronize(s);
  ASSERT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_P(Conformance, CopiesAndFillsKeepTheOrder) {
  const StreamHandle s = stream();
  std::byte* const at = memory(1);
  std::byte* const pinned = device().allocate_pinned(300);
  harness().fill(s, at, 1, 300);
  harness().fill(s, at + 100, 2, 101);
  device().copy(s, at + 201, at + 150, 1);
  device().copy(s, pinned, at, 300);
  harness().fill(s, at, 3, 300);
  device().copy(s, at + 7, pinned, 0);
  device().fill(s, at, 9, 0);
  device().synchronize(s);
  for (std::size_t i = 0; i < 300; ++i)
    ASSERT_EQ(std::to_integer<int>(pinned[i]), i >= 100 && i <= 201 ? 2 : 1) << i;
  EXPECT_EQ(harness().read(at, 300), std::vector<int>(300, 3));
  std::memset(pinned, 77, 300);
  device().copy(s, at + 1, pinned + 1, 299);
  device().synchronize(s);
  EXPECT_EQ(harness().read(at), 3);
  EXPECT_EQ(harness().read(at + 299), 77);
  device().release_pinned(pinned, 300);
}

TEST_P(Conformance, LaunchesGetTheirStream) {
  const StreamHandle s = stream();
  std::atomic<StreamHandle> seen{};
  device().launch(s, {"look", [&](StreamHandle on) { seen = on; }}, {});
  device().synchronize(s);
  EXPECT_EQ(seen, s);
  device().launch(s, {"nothing", {}}, {});
  device().synchronize(s);
}

TEST_P(Conformance, EventsOrderStreams) {
  const StreamHandle a = stream(), b = stream();
  std::byte* const at = memory(1);
  harness().fill(a, at, 0, 2);
  device().synchronize(a);
  harness().hold(a);
  harness().fill(a, at, 5, 1);
  const EventHandle event = recorded(a);
  device().wait(b, event);
  device().copy(b, at + 1, at, 1);
  EXPECT_FALSE(device().query(event));
  harness().release(a);
  device().synchronize(b);
  EXPECT_TRUE(device().query(event));
  EXPECT_EQ(harness().read(at + 1), 5);
}

TEST_P(Conformance, StreamsAreIndependent) {
  const StreamHandle a = stream(), b = stream();
  int done = 0;
  harness().hold(a);
  harness().work(a, [&] { done += 10; });
  harness().work(b, [&] { done += 1; });
  device().synchronize(b);
  EXPECT_EQ(done, 1);
  harness().release(a);
  device().synchronize(a);
  EXPECT_EQ(done, 11);
}

TEST_P(Conformance, AnEventThatWasNeverRecordedIsComplete) {
  const StreamHandle a = stream(), b = stream();
  const EventHandle event = device().create_event();
  EXPECT_TRUE(device().query(event));
  device().synchronize_event(event);
  device().wait(b, event);
  harness().hold(a);
  device().record(a, event);
  bool done = false;
  harness().work(b, [&] { done = true; });
  device().synchronize(b);  // keeps to what it found
  EXPECT_TRUE(done);
  EXPECT_FALSE(device().query(event));
  harness().release(a);
  device().synchronize_event(event);
  EXPECT_TRUE(device().query(event));
}

TEST_P(Conformance, RecordingAgainForgetsTheFormerRecord) {
  const StreamHandle a = stream(), b = stream(), c = stream();
  harness().hold(a);
  harness().hold(c);
  int done = 0;
  harness().work(a, [&] { done += 1; });
  const EventHandle event = recorded(a);
  device().wait(b, event);
  harness().work(b, [&] { done *= 10; });
  harness().work(c, [] {});
  device().record(c, event);
  harness().release(a);
  device().synchronize(b);  // waits for the record on a, not for the one on c
  EXPECT_EQ(done, 10);
  EXPECT_FALSE(device().query(event));
  harness().release(c);
  device().synchronize_event(event);
  EXPECT_TRUE(device().query(event));
}

TEST_P(Conformance, SynchronisingAnEventWaitsForNoMore) {
  const StreamHandle a = stream(), c = stream();
  harness().hold(c);
  harness().work(c, [] {});
  const EventHandle later = recorded(c);
  std::atomic<int> done{0};
  harness().work(a, [&] { done += 1; });
  const EventHandle event = recorded(a);
  device().wait(a, later);
  harness().work(a, [&] { done += 10; });
  device().synchronize_event(event);
  EXPECT_EQ(done, 1);
  harness().release(c);
  device().synchronize(a);
  EXPECT_EQ(done, 11);
}

TEST_P(Conformance, AStreamMayWaitForItself) {
  const StreamHandle a = stream();
  int done = 0;
  harness().work(a, [&] { done += 1; });
  device().wait(a, recorded(a));
  harness().work(a, [&] { done *= 10; });
  device().synchronize(a);
  EXPECT_EQ(done, 10);
}

TEST_P(Conformance, ADestroyedEventStillOrders) {
  const StreamHandle a = stream(), b = stream();
  harness().hold(a);
  int done = 0;
  harness().work(a, [&] { done += 1; });
  const EventHandle event = recorded(a);
  device().wait(b, event);
  device().destroy_event(event);
  const EventHandle other = device().create_event();  // may have the same handle
  EXPECT_TRUE(device().query(other));
  harness().work(b, [&] { done *= 10; });
  harness().release(a);
  device().synchronize(b);
  EXPECT_EQ(done, 10);
}

TEST_P(Conformance, ADestroyedStreamFinishesItsWork) {
  const StreamHandle a = stream(), b = stream();
  std::atomic<int> done{0};
  harness().work(a, [&] { done += 1; });
  const EventHandle event = recorded(a);
  device().destroy_stream(a);
  const StreamHandle c = stream();  // may have the same handle
  harness().work(c, [&] { done += 100; });
  device().wait(b, event);
  harness().work(b, [&] { done += 10; });
  device().synchronize(b);
  EXPECT_EQ(done % 100, 11);
  device().synchronize_event(event);
  device().synchronize(c);
  EXPECT_EQ(done, 111);
}

TEST_P(Conformance, DrainingWaitsForStreamsThatAreGone) {
  std::atomic<int> done{0};
  const StreamHandle kept = stream();
  harness().work(kept, [&] { done += 1; });
  for (int i = 0; i < 4; ++i) {
    const StreamHandle s = stream();
    harness().work(s, [&] { done += 10; });
    harness().work(s, [&] { done += 10; });
    device().destroy_stream(s);
  }
  device().drain();
  EXPECT_EQ(done, 81);
  device().drain();
}

TEST_P(Conformance, AStreamsIdentityIsItsOwn) {
  std::vector<std::uint64_t> seen;
  for (int i = 0; i < 8; ++i) {
    const StreamHandle s = stream();
    EXPECT_EQ(device().identity(s), device().identity(s));
    seen.push_back(device().identity(s));
    if (i % 2 == 0) device().destroy_stream(s);  // the next one may have the same handle
  }
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

TEST_P(Conformance, ManyStreamsComeAndGo) {
  int done = 0;
  for (int i = 0; i < 300; ++i) {
    const StreamHandle s = stream();
    const EventHandle event = device().create_event();
    harness().work(s, [&] { ++done; });
    device().record(s, event);
    device().synchronize(s);
    device().destroy_stream(s);
    EXPECT_TRUE(device().query(event));
    device().destroy_event(event);
  }
  EXPECT_EQ(done, 300);
}

TEST_P(Conformance, TheDefaultStreamIsRefused) {
  const EventHandle event = device().create_event();
  bool ran = false;
  EXPECT_THROW(device().launch({}, {"no", [&](StreamHandle) { ran = true; }}, {}), DeviceError);
  EXPECT_THROW(device().record({}, event), DeviceError);
  EXPECT_THROW(device().wait({}, event), DeviceError);
  EXPECT_THROW(device().synchronize({}), DeviceError);
  EXPECT_FALSE(ran);
}

TEST_P(HandleConformance, WorkThatNobodyWaitedForIsDroppedWithTheDevice) {
  const auto held = std::make_shared<int>(0);
  const StreamHandle a = stream(), b = stream();
  harness().hold(a);
  for (int i = 0; i < 10; ++i) harness().work(a, [held] { ++*held; });
  device().wait(b, recorded(a));
  harness().work(b, [held] { ++*held; });
  harness_.reset();
  EXPECT_EQ(held.use_count(), 1);
}

TEST_P(HandleConformance, HandlesOfWhatWasDestroyedAreRefused) {
  const StreamHandle s = stream();
  const EventHandle event = device().create_event();
  device().destroy_stream(s);
  device().destroy_event(event);
  EXPECT_THROW(device().synchronize(s), DeviceError);
  EXPECT_THROW(device().query(event), DeviceError);
}

TEST_P(Conformance, WorkIsLetGoWhenItIsDone) {
  const auto held = std::make_shared<int>(0);
  const StreamHandle s = stream();
  for (int i = 0; i < 10; ++i) harness().work(s, [held] { ++*held; });
  device().synchronize(s);
  EXPECT_EQ(held.use_count(), 1) << "what the work holds on to is let go when it is done";
  EXPECT_EQ(*held, 10);
}

TEST_P(Conformance, ManyThreads) {
  constexpr int kThreads = 4, kRounds = 100;
  std::byte* const at = memory(1);
  std::vector<StreamHandle> streams;
  for (int t = 0; t < kThreads; ++t) streams.push_back(stream());
  const StreamHandle shared = stream();
  int on_shared = 0;
  std::vector<int> done(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const StreamHandle s = streams[static_cast<std::size_t>(t)];
      int& mine = done[static_cast<std::size_t>(t)];
      for (int i = 0; i < kRounds; ++i) {
        harness().work(s, [&mine] { ++mine; });
        harness().fill(s, at + 64 * t, i, 64);
        const EventHandle event = recorded(s);
        harness().work(shared, [&on_shared] { ++on_shared; });
        if (i % 10 == 0) device().synchronize_event(event);
        if (i % 7 == 0) device().wait(shared, event);
        device().destroy_event(event);
        if (i % 25 == 0) device().synchronize(shared);
      }
      device().synchronize(s);
    });
  for (std::thread& thread : threads) thread.join();
  device().synchronize(shared);
  EXPECT_EQ(on_shared, kThreads * kRounds);
  EXPECT_EQ(done, std::vector<int>(kThreads, kRounds));
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(harness().read(at + 64 * t + 63), kRounds - 1);
}

}  // namespace
}  // namespace segfuse::runtime
