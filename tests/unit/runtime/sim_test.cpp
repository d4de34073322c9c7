#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "segfuse/error.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime::sim {
namespace {

/// A device with one granule of memory, seen as numbers that start as zeros, and some streams.
struct Bench {
  explicit Bench(std::shared_ptr<Schedule> schedule, int streams = 2)
      : device({.schedule = std::move(schedule), .granule = 4096}) {
    memory = device.reserve(device.granule());
    device.map(memory, device.granule());
    std::memset(memory, 0, device.granule());
    for (int i = 0; i < streams; ++i) stream.push_back(device.create_stream());
  }
  int& cell(int i) { return reinterpret_cast<int*>(memory)[i]; }
  MemoryAccess access(int i, bool write) {
    return {reinterpret_cast<std::byte*>(&cell(i)), sizeof(int), write, "cells"};
  }
  /// cell(to) = cell(from) + add
  void work(int on, int from, int to, int add, std::string name = "work") {
    const MemoryAccess accesses[] = {access(from, false), access(to, true)};
    device.launch(stream[static_cast<std::size_t>(on)],
                  {std::move(name), [=, this](StreamHandle) { cell(to) = cell(from) + add; }},
                  accesses);
  }
  void nothing(int on) { device.launch(stream[static_cast<std::size_t>(on)], {"nothing", {}}, {}); }
  void order(int before, int after) {
    const EventHandle event = device.create_event();
    device.record(stream[static_cast<std::size_t>(before)], event);
    device.wait(stream[static_cast<std::size_t>(after)], event);
    device.destroy_event(event);
  }
  void synchronize() {
    for (StreamHandle s : stream) device.synchronize(s);
  }

  SimDevice device;
  std::byte* memory = nullptr;
  std::vector<StreamHandle> stream;
};

std::size_t interleavings(int streams, int works) {
  const auto result = explore(
      [&](const std::shared_ptr<Schedule>& schedule) {
        Bench bench(schedule, streams);
        for (int i = 0; i < works; ++i)
          for (int s = 0; s < streams; ++s) bench.nothing(s);
        bench.synchronize();
      },
      {.limit = 200'000, .reduce = false});
  EXPECT_TRUE(result.complete);
  return result.schedules;
}

TEST(Explore, CountsInterleavings) {
  // Each piece of work is two steps. Waiting for the streams in turn leaves nothing out.
  EXPECT_EQ(interleavings(2, 1), 6U);
  EXPECT_EQ(interleavings(2, 2), 70U);
  EXPECT_EQ(interleavings(3, 1), 90U);
  EXPECT_EQ(interleavings(2, 4), 12'870U);
  EXPECT_EQ(interleavings(3, 2), 34'650U);
}

/// All results of two increments of one cell by two streams, and one that copies it on a third.
std::set<std::vector<int>> results(bool reduce, bool ordered, Exploration* exploration) {
  std::set<std::vector<int>> found;
  *exploration = explore(
      [&](const std::shared_ptr<Schedule>& schedule) {
        Bench bench(schedule, 3);
        bench.work(0, 0, 0, 1);
        if (ordered) bench.order(0, 1);
        bench.work(1, 0, 0, 1);
        if (ordered) bench.order(1, 2);
        bench.work(2, 0, 1, 10);
        bench.work(2, 2, 3, 5);
        bench.synchronize();
        found.insert({bench.cell(0), bench.cell(1), bench.cell(3)});
      },
      {.limit = 200'000, .reduce = reduce});
  return found;
}

TEST(Explore, FindsLostUpdatesAndOldReads) {
  Exploration all;
  const std::set<std::vector<int>> expected = {
      {1, 10, 5}, {1, 11, 5}, {2, 10, 5}, {2, 11, 5}, {2, 12, 5}};
  EXPECT_EQ(results(false, false, &all), expected);
  EXPECT_TRUE(all.complete);
  Exploration reduced;
  EXPECT_EQ(results(true, false, &reduced), expected);
  EXPECT_TRUE(reduced.complete);
  EXPECT_LT(reduced.schedules, all.schedules / 4);
}

TEST(Explore, OrderedProgramsHaveOneResult) {
  Exploration all;
  EXPECT_EQ(results(false, true, &all), (std::set<std::vector<int>>{{2, 12, 5}}));
  EXPECT_TRUE(all.complete);
  EXPECT_EQ(all.schedules, 1U);
}

TEST(Explore, WorkThatSharesNothingIsRunInOneOrder) {
  const auto result = explore([](const std::shared_ptr<Schedule>& schedule) {
    Bench bench(schedule, 3);
    for (int s = 0; s < 3; ++s) {
      bench.work(s, s, s, 1);
      bench.work(s, s, s, 1);
    }
    bench.device.synchronize(bench.stream[0]);
  });
  EXPECT_TRUE(result.complete);
  EXPECT_LE(result.schedules, 6U);  // how far the others are when the host goes on may differ
}

TEST(Explore, QueriesSeeBothAnswers) {
  std::set<bool> answers;
  const auto result = explore([&](const std::shared_ptr<Schedule>& schedule) {
    Bench bench(schedule, 1);
    bench.nothing(0);
    const EventHandle event = bench.device.create_event();
    bench.device.record(bench.stream[0], event);
    answers.insert(bench.device.query(event));
  });
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.schedules, 3U);
  EXPECT_EQ(answers, (std::set<bool>{false, true}));
}

TEST(Schedules, EagerIsDoneAtOnceAndLazyWaits) {
  Bench at_once(eager());
  at_once.work(0, 0, 0, 1);
  at_once.work(1, 1, 1, 1);
  EXPECT_EQ(at_once.cell(0) + at_once.cell(1), 2);

  Bench later(lazy());
  later.work(0, 0, 0, 1);
  later.work(1, 1, 1, 1);
  later.work(1, 2, 2, 1);
  EXPECT_EQ(later.cell(0) + later.cell(1), 0);
  later.device.synchronize(later.stream[0]);
  EXPECT_EQ(later.cell(0), 1);
  EXPECT_EQ(later.cell(1), 0) << "nobody waited for stream 1";
  later.order(1, 0);
  later.work(1, 3, 3, 1);
  later.device.synchronize(later.stream[0]);
  EXPECT_EQ(later.cell(2), 1) << "stream 0 waited for it";
  EXPECT_EQ(later.cell(3), 0) << "it came after the event";
}

TEST(Schedules, StarveReverseAndOverlap) {
  Bench starved(starve(0));
  starved.work(0, 0, 0, 1);
  starved.work(1, 0, 1, 10);
  EXPECT_EQ(starved.cell(0), 0);
  EXPECT_EQ(starved.cell(1), 10) << "stream 1 ran at once, before stream 0";

  Bench reversed(reverse());
  reversed.work(0, 0, 0, 1);
  reversed.work(1, 0, 1, 10);
  reversed.device.synchronize(reversed.stream[0]);
  EXPECT_EQ(reversed.cell(1), 10);

  Bench overlapped(overlap());
  overlapped.work(0, 0, 0, 1);
  overlapped.work(1, 0, 0, 1);
  overlapped.synchronize();
  EXPECT_EQ(overlapped.cell(0), 1) << "both read before either wrote";
}

TEST(Schedules, SeedsAreRepeatableAndDiffer) {
  const auto run = [](const std::shared_ptr<Schedule>& schedule) {
    Bench bench(schedule, 3);
    for (int i = 0; i < 20; ++i) bench.work(i % 3, (i * 7) % 5, (i * 3) % 5, i);
    bench.synchronize();
    std::vector<int> cells;
    for (int i = 0; i < 5; ++i) cells.push_back(bench.cell(i));
    return std::pair(cells, bench.device.choices());
  };
  std::set<std::vector<int>> different;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto [cells, choices] = run(seeded(seed));
    EXPECT_EQ(run(seeded(seed)), std::pair(cells, choices));
    EXPECT_EQ(run(scripted(choices)), std::pair(cells, choices)) << "a script repeats the run";
    different.insert(cells);
  }
  EXPECT_GT(different.size(), 10U);
}

TEST(Schedules, AScriptThatDoesNotFitIsRefused) {
  Bench bench(scripted({1}));
  EXPECT_THROW(bench.nothing(0), UsageError);
}

TEST(Sim, StepsByHand) {
  Bench bench(lazy());
  bench.work(0, 0, 0, 1);
  EXPECT_FALSE(bench.device.step(bench.stream[1]));
  EXPECT_TRUE(bench.device.step(bench.stream[0]));
  EXPECT_EQ(bench.cell(0), 0) << "it has begun";
  EXPECT_TRUE(bench.device.step(bench.stream[0]));
  EXPECT_EQ(bench.cell(0), 1);
  EXPECT_FALSE(bench.device.step(bench.stream[0]));
}

TEST(Sim, UseOfMemoryThatWasTakenAwayIsReported) {
  for (const char* which : {"device", "pinned"}) {
    Bench bench(lazy());
    std::byte* const pinned = bench.device.allocate_pinned(64);
    bench.device.copy(bench.stream[0], bench.memory, pinned, 64);
    if (which == std::string("device"))
      bench.device.unmap(bench.memory, bench.device.granule());
    else
      bench.device.release_pinned(pinned, 64);
    try {
      bench.device.synchronize(bench.stream[0]);
      FAIL() << which;
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("'copy' on stream 0"), std::string::npos)
          << error.what();
    }
  }
}

TEST(SimDeathTest, ReleasedMemoryCannotBeTouched) {
  Bench bench(lazy());
  bench.device.unmap(bench.memory, bench.device.granule());
  EXPECT_DEATH(bench.cell(0) = 1, "");
  std::byte* const pinned = bench.device.allocate_pinned(64);
  bench.device.release_pinned(pinned, 64);
  EXPECT_DEATH(*pinned = std::byte{1}, "");
}

TEST(Sim, CopiesNeedPinnedMemory) {
  Bench bench(eager());
  int ordinary = 0;
  EXPECT_THROW(bench.device.copy(bench.stream[0], bench.memory, &ordinary, sizeof ordinary),
               DeviceError);
}

TEST(Sim, DeadlockIsReported) {
  Bench bench(lazy());
  bench.device.hold(bench.stream[1]);
  bench.work(1, 0, 0, 1);
  bench.order(1, 0);
  bench.work(0, 1, 1, 1);
  try {
    bench.device.synchronize(bench.stream[0]);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "sim: deadlock: the host waits for stream 0, which cannot go on before stream 1, "
                 "which is held");
  }
  bench.device.release(bench.stream[1]);
  bench.device.synchronize(bench.stream[0]);
  EXPECT_EQ(bench.cell(0) + bench.cell(1), 2);
}

TEST(Sim, WorkThatIsDroppedMayCallTheDevice) {
  Bench bench(lazy());
  struct Holder {
    SimDevice& device;
    std::byte* pinned;
    ~Holder() { device.release_pinned(pinned, 64); }
  };
  auto holder = std::make_shared<Holder>(bench.device, bench.device.allocate_pinned(64));
  bench.device.launch(bench.stream[0], {"holds", [holder](StreamHandle) {}}, {});
  holder.reset();
  EXPECT_GT(bench.device.pinned(), 0U);
  bench.device.synchronize(bench.stream[0]);
  EXPECT_EQ(bench.device.pinned(), 0U);
}

TEST(Sim, WorkMayNotWait) {
  Bench bench(lazy());
  bench.device.launch(bench.stream[0],
                      {"waits", [&](StreamHandle) { bench.device.synchronize(bench.stream[1]); }},
                      {});
  bench.nothing(1);
  EXPECT_THROW(bench.device.synchronize(bench.stream[0]), DeviceError);
}

TEST(Sim, HandlesAreReused) {
  SimDevice device(lazy());
  const StreamHandle stream = device.create_stream();
  const EventHandle event = device.create_event();
  device.record(stream, event);
  device.destroy_event(event);
  device.destroy_stream(stream);
  EXPECT_THROW(device.synchronize(stream), DeviceError);
  EXPECT_THROW(device.query(event), DeviceError);
  EXPECT_EQ(device.create_event(), event);
  EXPECT_EQ(device.create_stream(), stream);
  EXPECT_EQ(device.number(stream), 1);
  EXPECT_TRUE(device.query(event));
}

TEST(Sim, ReservationsAreTheSameOnEveryDevice) {
  const auto offsets = [] {
    SimDevice device(lazy());
    const std::size_t unit = device.granule();
    std::byte* const a = device.reserve(4 * unit);
    std::byte* const b = device.reserve(unit);
    device.unreserve(a, 4 * unit);
    std::byte* const c = device.reserve(2 * unit);
    return std::vector{a - device.base(), b - device.base(), c - device.base()};
  };
  EXPECT_EQ(offsets(), offsets());
}

TEST(Sim, CountsCalls) {
  Bench bench(lazy(), 1);
  EXPECT_EQ(bench.device.calls(), 3U);
  EXPECT_EQ(bench.device.calls(Call::kMap), 1U);
  bench.nothing(0);
  bench.device.fill(bench.stream[0], bench.memory, 0, 16);
  EXPECT_EQ(bench.device.calls(Call::kLaunch), 1U);
  EXPECT_EQ(bench.device.calls(Call::kFill), 1U);
  EXPECT_EQ(bench.device.fallible_calls(), 5U);
  bench.device.destroy_stream(bench.stream[0]);
  EXPECT_EQ(bench.device.fallible_calls(), 5U);
  EXPECT_EQ(bench.device.calls(), 6U);
}

}  // namespace
}  // namespace segfuse::runtime::sim
