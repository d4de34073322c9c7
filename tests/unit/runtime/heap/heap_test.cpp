// Properties of the heap and the executor: design 4.5. The numbers in the names are those of the
// design's list.

#include "runtime/memory/heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "runtime/memory/size_class.h"
#include "unit/runtime/heap/heap_program.h"

namespace segfuse::runtime {
namespace {

using sim::Call;
using sim::SimDevice;
using testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Result {
  Trace trace;
  std::uint64_t wrong = 0;
  std::uint64_t checked = 0;
};

Result run_on(const std::shared_ptr<sim::Schedule>& schedule, const Program& program,
              RunOptions options) {
  SimDevice device({.schedule = schedule, .granule = 4096, .limit = 64 * kMiB});
  Runner runner(device, device.base(), std::move(options));
  runner.run(program);
  runner.finish();
  EXPECT_EQ(device.mapped(), 0U) << "property 9: all was dropped, waited for and trimmed";
  return {runner.trace(), runner.wrong_words(), runner.checked_words()};
}

/// Drops steps while the failure stays, and tells what is left.
std::string shrunk(Program program, const std::function<bool(const Program&)>& fails) {
  for (std::size_t size = program.size() / 2; size > 0; size /= 2) {
    for (std::size_t at = 0; at + size <= program.size();) {
      Program shorter = program;
      shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at),
                    shorter.begin() + static_cast<std::ptrdiff_t>(at + size));
      if (fails(shorter))
        program = std::move(shorter);
      else
        at += size;
    }
  }
  return to_string(program);
}

// Property 2 under the schedules that are hardest on early reuse, property 4 over all of them, and
// properties 1 and 9 on the way.
TEST(HeapProperties, Test02And04ContentIsRightAndAddressesDoNotDependOnTheDevice) {
  std::uint64_t checked = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ProgramShape shape;
    shape.recreate = seed % 3 == 0;
    shape.steps = 80;
    const Program program = random_program(seed, shape);
    RunOptions options;
    // Some without growth to hide behind.
    options.heap.soft_limit = seed % 2 == 0 ? 0 : 16384;
    options.heap.magazine_bytes = seed % 5 == 0 ? 0 : std::size_t{8} << 20;
    options.verify = false;
    const auto wrong = [&](const std::shared_ptr<sim::Schedule>& schedule, const Program& of) {
      return run_on(schedule, of, options).wrong;
    };
    Trace first;
    for (const sim::NamedSchedule& named : sim::all_schedules(shape.streams, 4)) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", schedule " << named.name << " " << named.number);
      const Result result = run_on(named.make(), program, options);
      checked += result.checked;
      ASSERT_EQ(result.wrong, 0U) << shrunk(
          program, [&](const Program& of) { return wrong(named.make(), of) > 0; });
      if (first.values.empty()) first = result.trace;
      ASSERT_EQ(result.trace, first) << "addresses or waits depend on the device";
    }
  }
  EXPECT_GT(checked, 100'000U);
}

TEST(HeapProperties, Test01And08And11BlocksTileLimitsHoldAndStatisticsAreRecounts) {
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    SCOPED_TRACE(seed);
    ProgramShape shape;
    shape.limits = true;
    shape.steps = 150;
    shape.slots = 10;
    const Program program = random_program(seed, shape);
    SimDevice device({.schedule = sim::seeded(seed), .granule = 4096, .limit = 64 * kMiB});
    std::size_t limit = 2 * kMiB;
    std::size_t peak = 0;
    Runner* runner = nullptr;
    RunOptions options;
    options.slots = 10;
    options.heap.hard_limit = limit;
    options.caught = [](std::size_t, const std::exception& error) {
      return dynamic_cast<const OutOfDeviceMemory*>(&error) != nullptr;
    };
    options.after = [&](std::size_t i, Heap& heap) {
      const bool lowered = program[i].kind == Step::Kind::kLimit;
      if (lowered) limit = program[i].bytes;
      const HeapStatistics statistics = heap.statistics();
      // A limit below what is held stops growth; it takes nothing away.
      if (!lowered && peak <= limit) {
        EXPECT_LE(device.mapped(), std::max(limit, peak));
      }
      if (lowered) peak = device.mapped();
      EXPECT_EQ(statistics.mapped_bytes, device.mapped());
      EXPECT_EQ(statistics.mapped_bytes,
                statistics.live_bytes + statistics.cached_bytes + statistics.free_bytes);
      const auto [rounded, requested] = runner->live_bytes();
      EXPECT_EQ(statistics.live_bytes, rounded);
      EXPECT_EQ(statistics.requested_bytes, requested);
      EXPECT_GE(statistics.peak_mapped_bytes, statistics.mapped_bytes);
      EXPECT_GE(statistics.peak_taken_bytes, statistics.live_bytes + statistics.cached_bytes);
      EXPECT_GE(statistics.allocations, statistics.live_blocks);
    };
    Runner running(device, device.base(), options);
    runner = &running;
    running.run(program);
    EXPECT_EQ(running.wrong_words(), 0U);
    running.finish();
    EXPECT_EQ(running.wrong_words(), 0U);
    EXPECT_EQ(device.mapped(), 0U);
    if (HasFailure()) break;
  }
}

struct Bench {
  explicit Bench(std::shared_ptr<sim::Schedule> schedule = sim::lazy(), HeapOptions options = {},
                 std::size_t limit = 64 * kMiB)
      : device({.schedule = std::move(schedule), .granule = 4096, .limit = limit}),
        heap(device, timeline, options),
        executor(timeline),
        a(timeline.create(device, "a")),
        b(timeline.create(device, "b")) {}
  void write(StreamId stream, const Buffer& buffer) {
    executor.launch(stream, {"write", {}}, {writes(buffer)});
  }
  void read(StreamId stream, const Buffer& buffer) {
    executor.launch(stream, {"read", {}}, {reads(buffer)});
  }

  SimDevice device;
  Timeline timeline;
  Heap heap;
  Executor executor;
  StreamId a, b;
};

TEST(Heap, Test06SameStreamHitMakesNoDeviceCall) {
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
    Bench bench;
    const std::byte* address = nullptr;
    {
      const Buffer buffer = bench.heap.allocate(bytes, bench.a);
      bench.write(bench.a, buffer);
      address = buffer.address();
    }
    const std::uint64_t calls = bench.device.calls();
    for (int i = 0; i < 100; ++i) {
      const Buffer again = bench.heap.allocate(bytes, bench.a);
      EXPECT_EQ(again.address(), address);
    }
    EXPECT_EQ(bench.device.calls(), calls);
  }
}

TEST(Heap, Test06ForeignFreeRecordsOncePerStreamAndNeverPolls) {
  Bench bench(sim::lazy());
  std::vector<Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(bench.heap.allocate(1000, bench.a));
  for (const Buffer& buffer : buffers) bench.write(bench.a, buffer);
  for (const Buffer& buffer : buffers) bench.read(bench.b, buffer);
  const std::uint64_t records = bench.device.calls(Call::kRecord);
  buffers.clear();
  // One event behind the last read covers all ten.
  EXPECT_LE(bench.device.calls(Call::kRecord), records + 1);
  EXPECT_EQ(bench.device.calls(Call::kQuery), 0U);
  bench.heap.verify();
}

TEST(Heap, WaitsOnlyWhereOrderIsMissing) {
  HeapOptions options;
  options.soft_limit = 1;  // never grow to avoid a wait
  Bench bench(sim::lazy(), options);
  const std::byte* address = nullptr;
  {
    const Buffer buffer = bench.heap.allocate(4 * kMiB, bench.a);
    address = buffer.address();
    bench.write(bench.a, buffer);
    bench.read(bench.b, buffer);
  }
  const std::uint64_t waits = bench.timeline.counts().waits;
  {
    const Buffer again = bench.heap.allocate(4 * kMiB, bench.a);
    EXPECT_EQ(again.address(), address);
    EXPECT_EQ(bench.timeline.counts().waits, waits + 1) << "a has to wait for b's read";
    bench.write(bench.a, again);
  }
  {
    const Buffer third = bench.heap.allocate(4 * kMiB, bench.a);
    EXPECT_EQ(third.address(), address);
    EXPECT_EQ(bench.timeline.counts().waits, waits + 1) << "a is ordered already";
  }
}

TEST(Heap, GrowsBeforeItWaitsWithinTheSoftLimit) {
  Bench bench;
  {
    const Buffer buffer = bench.heap.allocate(4 * kMiB, bench.a);
    bench.write(bench.a, buffer);
  }
  const std::uint64_t waits = bench.timeline.counts().waits;
  const Buffer other = bench.heap.allocate(4 * kMiB, bench.b);
  EXPECT_EQ(bench.timeline.counts().waits, waits);
  EXPECT_EQ(bench.heap.statistics().mapped_bytes, 8 * kMiB);
}

TEST(Heap, Test10AllocationSucceedsWheneverARunFits) {
  for (std::uint64_t seed = 200; seed < 260; ++seed) {
    SCOPED_TRACE(seed);
    ProgramShape shape;
    shape.steps = 120;
    shape.slots = 14;
    shape.most_bytes = 600'000;
    shape.trims = false;
    const Program program = random_program(seed, shape);
    SimDevice device({.schedule = sim::seeded(seed), .granule = 65536, .limit = 64 * kMiB});
    constexpr std::size_t kLimit = 1 * kMiB;
    int refused = 0;
    Runner* runner = nullptr;
    RunOptions options;
    options.slots = 14;
    options.heap.hard_limit = kLimit;
    options.caught = [&](std::size_t i, const std::exception& error) {
      if (dynamic_cast<const OutOfDeviceMemory*>(&error) == nullptr) return false;
      ++refused;
      // By now all that is free could be had: no run may be long enough, nor whole idle granules.
      const HeapSnapshot snapshot = runner->heap().snapshot();
      const std::size_t wanted = rounded_bytes(program[i].bytes / 8 * 8);
      std::size_t run = 0;
      std::size_t idle = 0;
      std::uint64_t end = 0;
      int arena = -1;
      const auto granules = [&](std::uint64_t begin, std::uint64_t stop) {
        const std::uint64_t from = (begin + 65535) / 65536;
        const std::uint64_t to = stop / 65536;
        return to > from ? (to - from) * 65536 : 0;
      };
      std::uint64_t begin = 0;
      for (const HeapSnapshot::Entry& entry : snapshot.entries) {
        const bool goes_on = entry.arena == arena && entry.offset == end;
        if (entry.state != BlockState::kFree || !goes_on) {
          idle += granules(begin, begin + run);
          run = 0;
          begin = entry.offset;
        }
        arena = entry.arena;
        end = entry.offset + entry.bytes;
        if (entry.state != BlockState::kFree) {
          begin = end;
          continue;
        }
        run += entry.bytes;
        EXPECT_LT(run, wanted) << "a run would have fitted";
      }
      idle += granules(begin, begin + run);
      EXPECT_LT(kLimit - snapshot.statistics.mapped_bytes + idle, (wanted + 65535) / 65536 * 65536)
          << "idle memory could have been moved";
      EXPECT_EQ(snapshot.statistics.cached_bytes, 0U) << "magazines still hold memory";
      return true;
    };
    Runner running(device, device.base(), options);
    runner = &running;
    running.run(program);
    running.finish();
    EXPECT_EQ(running.wrong_words(), 0U);
    if (HasFailure()) break;
  }
}

TEST(Heap, Test16ExabyteRequestsAreRefusedCleanly) {
  Bench bench;
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMax, kMax - 255, kMax / 2, std::size_t{1} << 60}) {
    EXPECT_THROW((void)bench.heap.allocate(bytes, bench.a), OutOfDeviceMemory);
    bench.heap.verify();
  }
  EXPECT_TRUE(bench.heap.allocate(1000, bench.a));
}

TEST(Heap, OutOfMemoryTellsWhoHoldsWhatAndTheNextSmallerRequestWorks) {
  HeapOptions options;
  options.hard_limit = 8 * kMiB;
  Bench bench(sim::lazy(), options);
  const Buffer weights = bench.heap.allocate(5 * kMiB, bench.a, "weights");
  const Buffer hidden = bench.heap.allocate(kMiB, bench.a, "hidden");
  try {
    (void)bench.heap.allocate(4 * kMiB, bench.a, "scores");
    FAIL();
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kDevice);
    EXPECT_THAT(error.what(),
                HasSubstr("out of device memory: 4.00 MiB for scores on sim (stream a)"));
    EXPECT_THAT(error.what(), HasSubstr("at most 8.00 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("weights (1 buffer)"));
    EXPECT_THAT(error.what(), HasSubstr("hidden (1 buffer)"));
  }
  bench.heap.verify();
  EXPECT_EQ(bench.heap.statistics().out_of_memory, 1U);
  EXPECT_TRUE(bench.heap.allocate(kMiB, bench.a));
}

TEST(Heap, WithoutWaitingTheReportNamesTheWaitThatWouldHelp) {
  HeapOptions options;
  options.hard_limit = 8 * kMiB;
  options.may_wait = false;
  Bench bench(sim::lazy(), options);
  {
    // Two pieces that are free once their work is over, with something that stays between them.
    const Buffer first = bench.heap.allocate(3 * kMiB, bench.a);
    bench.write(bench.a, first);
  }
  const Buffer small = bench.heap.allocate(2 * kMiB, bench.a, "small");
  bench.write(bench.a, small);
  try {
    (void)bench.heap.allocate(6 * kMiB, bench.b);
    FAIL();
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("waiting would help: for work 1 of stream 0"));
  }
  bench.heap.verify();
}

TEST(Heap, TheHostWaitsWhenNothingElseHelps) {
  HeapOptions options;
  options.hard_limit = 8 * kMiB;
  Bench bench(sim::lazy(), options);
  Buffer stays;
  {
    const Buffer first = bench.heap.allocate(3 * kMiB, bench.a);
    stays = bench.heap.allocate(2 * kMiB, bench.a);
    bench.write(bench.a, first);
  }
  const Buffer large = bench.heap.allocate(6 * kMiB, bench.b);
  EXPECT_EQ(large.bytes(), 6 * kMiB);
  EXPECT_EQ(bench.heap.statistics().host_waits, 1U);
  bench.heap.verify();
}

TEST(Heap, OthersMayHoldTheDevicesMemory) {
  Bench bench(sim::lazy(), {}, 64 * kMiB);
  bench.device.set_limit(4 * kMiB);
  const Buffer fits = bench.heap.allocate(2 * kMiB, bench.a);
  try {
    (void)bench.heap.allocate(16 * kMiB, bench.a);
    FAIL();
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("others hold the rest"));
  }
  bench.heap.verify();
  bench.device.set_limit(64 * kMiB);
  EXPECT_TRUE(bench.heap.allocate(16 * kMiB, bench.a));
}

TEST(Heap, Test15StreamsMadeAgainDoNotAlias) {
  HeapOptions options;
  options.soft_limit = 1;
  Bench bench(sim::lazy(), options);
  StreamId other = bench.timeline.create(bench.device, "other");
  Buffer buffer = bench.heap.allocate(2 * kMiB, bench.a);
  bench.write(other, buffer);
  const StreamId gone = other;
  bench.timeline.retire(other);
  other = bench.timeline.create(bench.device, "another");
  EXPECT_EQ(other.index, gone.index);
  EXPECT_NE(other, gone);
  EXPECT_THROW(bench.write(gone, buffer), UsageError);
  EXPECT_THROW((void)bench.heap.allocate(10, gone), UsageError);
  // What the former stream did is over; what the new one does is not.
  EXPECT_TRUE(bench.timeline.covered(bench.a, bench.timeline.tail(other)));
  bench.write(other, buffer);
  EXPECT_FALSE(bench.timeline.covered(bench.a, bench.timeline.tail(other)));
  bench.write(bench.a, buffer);
  EXPECT_TRUE(bench.timeline.covered(bench.a, bench.timeline.tail(other)));
}

TEST(Heap, Test17WrongUseIsATypedError) {
  Bench bench;
  SimDevice second(sim::lazy());
  Timeline& timeline = bench.timeline;
  const StreamId elsewhere = timeline.create(second, "elsewhere");
  const Buffer buffer = bench.heap.allocate(100, bench.a, "x");
  EXPECT_THROW((void)bench.heap.allocate(100, elsewhere), UsageError);
  EXPECT_THROW(bench.read(elsewhere, buffer), UsageError);
  EXPECT_THROW(bench.write(bench.a, Buffer()), UsageError);
  EXPECT_THROW((void)bench.heap.allocate(100, StreamId()), UsageError);
  EXPECT_THROW(bench.executor.copy(bench.a, buffer, 50, buffer, 0, 51), UsageError);
  timeline.retire(elsewhere);
}

// Property 7: whichever device call fails, the step that made it throws, nothing is lost, and the
// program goes on.
TEST(HeapProperties, Test07AFaultAtAnyCallLeavesAWorkingHeap) {
  ProgramShape shape;
  shape.steps = 60;
  shape.recreate = false;
  std::uint64_t all_calls = 0;
  for (std::uint64_t seed = 300; seed < 312; ++seed) {
    const Program program = random_program(seed, shape);
    RunOptions options;
    options.heap.hard_limit = kMiB;
    options.heap.soft_limit = seed % 2 == 0 ? 0 : 16384;
    std::uint64_t calls = 0;
    {
      SimDevice device({.schedule = sim::lazy(), .granule = 4096, .limit = 64 * kMiB});
      Runner runner(device, device.base(), options);
      const std::uint64_t before = device.fallible_calls();
      runner.run(program);
      calls = device.fallible_calls() - before;
    }
    all_calls += calls;
    for (std::uint64_t k = 1; k <= calls; ++k) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", call " << k);
      SimDevice device({.schedule = sim::lazy(), .granule = 4096, .limit = 64 * kMiB});
      int thrown = 0;
      Runner* running = nullptr;
      RunOptions faulty = options;
      faulty.caught = [&](std::size_t i, const std::exception& error) {
        if (dynamic_cast<const DeviceError*>(&error) == nullptr) return false;
        ++thrown;
        running->heap().verify();
        running->step(program[i]);  // works now
        return true;
      };
      Runner runner(device, device.base(), faulty);
      running = &runner;
      device.fail_at(k);
      runner.run(program);
      // Dropping a buffer does not throw; its record is made when somebody waits.
      ASSERT_LE(thrown, 1);
      runner.finish();
      ASSERT_EQ(runner.wrong_words(), 0U);
      ASSERT_EQ(device.mapped(), 0U);
    }
  }
  EXPECT_GT(all_calls, 300U);
}

// Property 12: what history tells, replayed, is what the snapshot shows.
TEST(HeapProperties, Test12ATraceReplaysToTheSnapshot) {
  for (std::uint64_t seed = 400; seed < 430; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = random_program(seed, {});
    SimDevice device({.schedule = sim::seeded(seed), .granule = 4096, .limit = 64 * kMiB});
    Runner runner(device, device.base(), {});
    runner.heap().keep_history(100'000);
    runner.run(program);
    struct Held {
      std::size_t bytes = 0;
      std::size_t requested = 0;
      bool operator==(const Held&) const = default;
    };
    std::map<std::pair<int, std::uint64_t>, Held> live;
    std::size_t mapped = 0;
    std::size_t cached = 0;
    for (const HeapEvent& event : runner.heap().history()) {
      const std::pair at(event.arena, event.offset);
      switch (event.kind) {
        case HeapEvent::Kind::kAllocate:
          ASSERT_TRUE(live.emplace(at, Held{event.bytes, event.requested}).second);
          if (event.cached) cached -= event.bytes;
          break;
        case HeapEvent::Kind::kFree:
          ASSERT_EQ(live.erase(at), 1U);
          if (event.cached) cached += event.bytes;
          break;
        case HeapEvent::Kind::kFlush: cached -= event.bytes; break;
        case HeapEvent::Kind::kMap: mapped += event.bytes; break;
        case HeapEvent::Kind::kUnmap: mapped -= event.bytes; break;
        case HeapEvent::Kind::kOutOfMemory: break;
      }
    }
    std::map<std::pair<int, std::uint64_t>, Held> shown;
    for (const HeapSnapshot::Entry& entry : runner.heap().snapshot().entries)
      if (entry.state == BlockState::kLive)
        shown.emplace(std::pair(entry.arena, entry.offset), Held{entry.bytes, entry.requested});
    EXPECT_EQ(live, shown);
    EXPECT_EQ(mapped, runner.heap().snapshot().statistics.mapped_bytes);
    EXPECT_EQ(cached, runner.heap().snapshot().statistics.cached_bytes);
  }
}

}  // namespace
}  // namespace segfuse::runtime
