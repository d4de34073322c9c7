// Slots that streams share are as safe as the heap's memory: random programs under all schedules.

#include "runtime/memory/recycler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "runtime/memory/heap.h"
#include "runtime/memory/pinned.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime {
namespace {

using sim::Call;
using sim::SimDevice;
using testing::HasSubstr;

constexpr std::size_t kSlotBytes = 256;
constexpr std::size_t kPage = 4096;

/// A table of slots in device memory, handed out by number.
struct Table {
  Table(std::shared_ptr<sim::Schedule> schedule, int most)
      : device({.schedule = std::move(schedule), .granule = kPage}),
        slots(timeline, [this, most]() -> std::optional<int> {
          if (made == most) return std::nullopt;
          return made++;
        }) {
    memory = device.reserve(kPage * 4);
    device.map(memory, kPage * 4);
  }
  std::byte* at(int slot) const { return memory + static_cast<std::size_t>(slot) * kSlotBytes; }
  StreamTick launch(StreamId stream, int slot, bool write, std::function<void()> run) {
    const MemoryAccess access{at(slot), kSlotBytes, write, "slot"};
    return timeline.enqueue(stream, [&](StreamHandle handle) {
      device.launch(handle, {"work", [run](StreamHandle) { run(); }}, {&access, 1});
    });
  }

  SimDevice device;
  Timeline timeline;
  int made = 0;
  std::byte* memory = nullptr;
  Recycler<int> slots;
};

struct Result {
  std::uint64_t wrong = 0;
  std::uint64_t checked = 0;
  std::vector<std::uint64_t> trace;  ///< slots and waits
};

Result run_program(const std::shared_ptr<sim::Schedule>& schedule, std::uint64_t seed) {
  Result result;
  std::mt19937_64 random(seed);
  const int most = 3 + static_cast<int>(random() % 6);
  Table table(schedule, most);
  std::vector<StreamId> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(table.timeline.create(table.device));
  struct Held {
    Recycler<int>::Slot slot;
    std::uint8_t value = 0;
    StreamTick written;
  };
  std::vector<Held> held;
  std::uint8_t value = 0;
  for (int step = 0; step < 80; ++step) {
    const StreamId stream = streams[random() % 3];
    const auto dice = random() % 100;
    if (dice < 50) {
      if (held.size() > 2) held.erase(held.begin());
      auto slot = table.slots.take(stream);
      if (!slot) continue;
      std::byte* const at = table.at(**slot);
      const std::uint8_t v = ++value;
      result.trace.push_back(static_cast<std::uint64_t>(**slot));
      const StreamTick use =
          table.launch(stream, **slot, true, [at, v] { std::memset(at, v, kSlotBytes); });
      slot->used(use);
      held.push_back({std::move(*slot), v, use});
    } else if (dice < 85 && !held.empty()) {
      Held& one = held[random() % held.size()];
      table.timeline.order_after(stream, Frontier(one.written));
      const std::byte* const at = table.at(*one.slot);
      one.slot.used(table.launch(stream, *one.slot, false, [at, v = one.value, &result] {
        for (std::size_t i = 0; i < kSlotBytes; ++i) result.wrong += at[i] == std::byte(v) ? 0 : 1;
        ++result.checked;
      }));
    } else if (dice < 95 && !held.empty()) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
    } else if (dice < 97) {
      table.timeline.synchronize(stream);
    } else if (auto slot = table.slots.take_for_host()) {
      std::memset(table.at(**slot), 0xEE, kSlotBytes);  // the host may do so at once
      result.trace.push_back(1000 + static_cast<std::uint64_t>(**slot));
    }
    result.trace.push_back(table.timeline.counts().waits);
  }
  held.clear();
  for (const StreamId stream : streams) table.timeline.synchronize(stream);
  EXPECT_LE(table.slots.counts().items, static_cast<std::size_t>(most));
  EXPECT_EQ(table.slots.counts().live, 0U);
  EXPECT_EQ(table.device.calls(Call::kQuery), 0U);
  return result;
}

TEST(Recycler, ContentIsRightAndChoicesDoNotDependOnTheDevice) {
  std::uint64_t checked = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::vector<std::uint64_t> first;
    for (const sim::NamedSchedule& named : sim::all_schedules(3, 4)) {
      const Result result = run_program(named.make(), seed);
      checked += result.checked;
      ASSERT_EQ(result.wrong, 0U) << "seed " << seed << ", " << named.name << " " << named.number;
      if (first.empty()) first = result.trace;
      ASSERT_EQ(result.trace, first) << "seed " << seed << ", " << named.name;
    }
  }
  EXPECT_GT(checked, 5'000U);
}

struct Pair : Table {
  explicit Pair(int most = 4)
      : Table(sim::lazy(), most),
        a(timeline.create(device, "a")),
        b(timeline.create(device, "b")) {}
  StreamId a, b;
};

TEST(Recycler, TheSameStreamWaitsForNothing) {
  Pair table;
  {
    auto slot = table.slots.take(table.a);
    slot->used(table.launch(table.a, **slot, true, [] {}));
  }
  const std::uint64_t calls = table.device.calls();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(**table.slots.take(table.a), 0);
  EXPECT_EQ(table.device.calls(), calls);
  EXPECT_EQ(table.slots.counts().made, 1U);
}

TEST(Recycler, MakesBeforeItWaitsAndWaitsForTheFewest) {
  Pair table(2);
  {
    auto both = table.slots.take(table.a);
    auto one = table.slots.take(table.a);
    both->used(table.launch(table.a, **both, true, [] {}));
    both->used(table.launch(table.b, **both, false, [] {}));
    one->used(table.launch(table.b, **one, true, [] {}));
  }
  const StreamId c = table.timeline.create(table.device, "c");
  const std::uint64_t waits = table.timeline.counts().waits;
  auto slot = table.slots.take(c);
  EXPECT_EQ(**slot, 1) << "used by one stream, the other by two";
  EXPECT_EQ(table.timeline.counts().waits, waits + 1);
  EXPECT_EQ(table.slots.counts().added_waits, 1U);
  auto last = table.slots.take(c);
  EXPECT_EQ(**last, 0);
  EXPECT_FALSE(table.slots.take(c)) << "all are held";
  EXPECT_FALSE(table.slots.take_for_host());
}

TEST(Recycler, TheHostGetsWhatIsOverOrWaits) {
  Pair table(1);
  bool ran = false;
  {
    auto slot = table.slots.take(table.a);
    slot->used(table.launch(table.a, **slot, true, [&] { ran = true; }));
  }
  EXPECT_FALSE(table.slots.take_for_host(false));
  EXPECT_FALSE(ran);
  auto slot = table.slots.take_for_host();
  EXPECT_TRUE(ran);
  EXPECT_EQ(table.slots.counts().host_waits, 1U);
  slot.reset();
  EXPECT_TRUE(table.slots.take_for_host(false));
}

// The event behind a use is recorded when the item goes back, so waiting for it later does not wait
// for what was enqueued since.
TEST(Recycler, WaitsForNoMoreThanTheUse) {
  Pair table(1);
  int late = 0;
  {
    auto slot = table.slots.take_for_host();
    slot->used(table.launch(table.a, **slot, true, [] {}));
  }
  (void)table.launch(table.a, 3, true, [&] { ++late; });
  auto slot = table.slots.take_for_host();
  EXPECT_TRUE(slot);
  EXPECT_EQ(late, 0);
}

TEST(Recycler, AFaultLeavesTheItemThere) {
  Pair table(1);
  {
    auto slot = table.slots.take(table.a);
    slot->used(table.launch(table.a, **slot, true, [] {}));
    slot->used(table.launch(table.b, **slot, false, [] {}));
  }
  const StreamId c = table.timeline.create(table.device, "c");
  table.device.fail_at(1, Call::kWait);
  EXPECT_THROW((void)table.slots.take(c), DeviceError);
  EXPECT_EQ(table.slots.counts().live, 0U);
  table.device.fail_at(1, Call::kSynchronizeEvent);
  EXPECT_THROW((void)table.slots.take_for_host(), DeviceError);
  EXPECT_TRUE(table.slots.take(c));
}

TEST(Recycler, TrimDropsWhatIsOver) {
  Pair table(3);
  int dropped = 0;
  Recycler<int> slots(
      table.timeline, [n = 0]() mutable -> std::optional<int> { return n++; },
      [&](int&) { ++dropped; });
  {
    auto busy = slots.take(table.a);
    auto idle = slots.take(table.a);
    busy->used(table.launch(table.a, 0, true, [] {}));
  }
  EXPECT_EQ(slots.trim(), 1U);
  EXPECT_EQ(slots.counts().items, 1U);
  EXPECT_EQ(slots.trim(), 0U);
  EXPECT_EQ(slots.trim(true), 1U);
  EXPECT_EQ(dropped, 2);
  EXPECT_EQ(slots.counts().items, 0U);
}

TEST(Recycler, ThreadsMayShareOne) {
  SimDevice device({.schedule = nullptr, .granule = kPage});
  Timeline timeline;
  std::atomic<int> made{0};
  std::array<std::atomic<int>, 8> holders{};
  Recycler<int> slots(timeline, [&]() -> std::optional<int> {
    const int next = made++;
    return next < 8 ? std::optional(next) : std::nullopt;
  });
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        const StreamId stream = timeline.create(device);
        for (int i = 0; i < 300; ++i) {
          auto slot = i % 7 == 0 ? slots.take_for_host() : slots.take(stream);
          if (!slot) continue;
          if (holders[static_cast<std::size_t>(**slot)]++ != 0) ++wrong;
          slot->record_stream(stream);
          holders[static_cast<std::size_t>(**slot)]--;
        }
        timeline.synchronize(stream);
      });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(slots.counts().live, 0U);
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Staging {
  explicit Staging(std::shared_ptr<sim::Schedule> schedule = sim::lazy(), std::size_t limit = kMiB)
      : device({.schedule = std::move(schedule), .granule = kPage, .limit = 16 * kMiB}),
        heap(device, timeline),
        executor(timeline),
        pool(device, timeline, {.limit = limit}),
        a(timeline.create(device, "a")),
        b(timeline.create(device, "b")) {}
  SimDevice device;
  Timeline timeline;
  Heap heap;
  Executor executor;
  PinnedPool pool;
  StreamId a, b;
};

// Batches go up through pinned memory that is dropped at once, are changed on the device, and come
// down again.
TEST(PinnedPool, StagingIsRightInAllSchedules) {
  constexpr std::size_t kBytes = 5000;
  for (const std::size_t limit : {kMiB, std::size_t{2} * 8192}) {
    for (const sim::NamedSchedule& named : sim::all_schedules(2, 20)) {
      SCOPED_TRACE(testing::Message() << named.name << " " << named.number << ", " << limit);
      Staging s(named.make(), limit);
      for (int step = 0; step < 12; ++step) {
        const Buffer batch = s.heap.allocate(kBytes, s.a, "batch");
        {
          PinnedBuffer up = s.pool.allocate(kBytes);
          std::memset(up.address(), step, kBytes);
          up.upload(s.executor, s.a, batch, kBytes);
        }
        s.executor.launch(s.b,
                          {"add",
                           [at = batch.address()](StreamHandle) {
                             for (std::size_t i = 0; i < kBytes; ++i)
                               at[i] = std::byte(static_cast<int>(at[i]) + 100);
                           }},
                          {writes(batch)});
        PinnedBuffer down = s.pool.allocate(kBytes);
        down.download(s.executor, s.b, batch, kBytes);
        down.wait_copied(s.timeline);
        ASSERT_EQ(std::count(down.address(), down.address() + kBytes, std::byte(step + 100)),
                  static_cast<std::ptrdiff_t>(kBytes));
      }
      EXPECT_LE(s.pool.statistics().peak_held_bytes, limit);
      EXPECT_EQ(s.device.pinned(), s.pool.statistics().held_bytes);
      s.timeline.synchronize(s.a);
      s.timeline.synchronize(s.b);
      s.pool.trim();
      EXPECT_EQ(s.device.pinned(), 0U);
    }
  }
}

TEST(PinnedPool, WaitsForCopiesAtItsLimitAndMovesMemoryBetweenSizes) {
  Staging s(sim::lazy(), 3 * 65536);
  const Buffer to = s.heap.allocate(65536, s.a);
  for (int i = 0; i < 10; ++i) {
    PinnedBuffer up = s.pool.allocate(65536);
    up.upload(s.executor, s.a, to, 65536);
  }
  EXPECT_EQ(s.pool.statistics().made, 3U);
  EXPECT_EQ(s.pool.statistics().host_waits, 7U);
  // Another size needs what the first one holds, and that is still being copied.
  PinnedBuffer large = s.pool.allocate(131072);
  EXPECT_TRUE(large.address() != nullptr);
  EXPECT_EQ(s.pool.statistics().held_bytes, 131072U) << "all that was free is gone";
  try {
    (void)s.pool.allocate(131072);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("131072 of at most 196608 are held, 131072 of them in use"));
  }
  EXPECT_THROW((void)s.pool.allocate(static_cast<std::size_t>(-1)), DeviceError);
  EXPECT_TRUE(s.pool.allocate(65536).address() != nullptr);
}

/// What the driver did not give is not held: the limit is whole again.
TEST(PinnedPool, WhatTheDriverRefusedIsNotHeld) {
  Staging s;
  std::vector<std::byte> memory(8192);
  int refusals = 1;
  PinnedOptions options{.limit = 8192};
  options.allocate = [&](std::size_t) { return refusals-- > 0 ? nullptr : memory.data(); };
  options.release = [](std::byte*, std::size_t) {};
  PinnedPool pool(s.device, s.heap.timeline(), options);
  const PinnedBuffer first = pool.allocate(8192);
  EXPECT_EQ(first.address(), memory.data()) << "it is asked again";
  EXPECT_EQ(pool.statistics().held_bytes, 8192U);
  refusals = 1 << 20;
  EXPECT_THROW((void)pool.allocate(4096), DeviceError);
  EXPECT_EQ(pool.statistics().held_bytes, 8192U);
}

TEST(PinnedPool, WrongCopiesAreRefused) {
  Staging s;
  const Buffer small = s.heap.allocate(100, s.a);
  PinnedBuffer pinned = s.pool.allocate(200);
  EXPECT_EQ(pinned.bytes(), 200U);
  EXPECT_THROW(pinned.upload(s.executor, s.a, small, 101), UsageError);
  EXPECT_THROW(pinned.download(s.executor, s.a, small, 201), UsageError);
  EXPECT_THROW(pinned.upload(s.executor, s.a, Buffer(), 1), UsageError);
  s.device.fail_at(1, Call::kAllocatePinned);
  EXPECT_THROW((void)s.pool.allocate(500'000), DeviceError);
  EXPECT_EQ(s.pool.statistics().held_bytes, s.device.pinned());
  EXPECT_TRUE(s.pool.allocate(500'000).address() != nullptr);
}

}  // namespace
}  // namespace segfuse::runtime
