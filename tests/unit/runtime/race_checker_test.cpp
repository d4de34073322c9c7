#include <gtest/gtest.h>

#include <fstream>

#include "base/os/file.h"
#include "runtime/check/race_checker.h"
#include "support/sim/sim_device.h"
#include "support/source_dir.h"
#include "unit/runtime/race_oracle.h"

namespace segfuse::runtime {
namespace {

using sim::SimDevice;

struct Checked {
  explicit Checked(std::shared_ptr<sim::Schedule> schedule = sim::lazy(),
                   CheckMode mode = CheckMode::kCollect)
      : device({.schedule = std::move(schedule), .granule = 4096, .junk = false}),
        checker(device, mode) {
    memory = checker.reserve(16 * device.granule());
    checker.map(memory, device.granule());
  }
  void use(StreamHandle stream, std::string work, std::string_view buffer, bool write,
           std::size_t first = 0, std::size_t bytes = 64) {
    const MemoryAccess accesses[] = {{memory + first, bytes, write, buffer}};
    checker.launch(stream, {std::move(work), {}}, accesses);
  }
  void order(StreamHandle before, StreamHandle after) {
    const EventHandle event = checker.create_event();
    checker.record(before, event);
    checker.wait(after, event);
    checker.destroy_event(event);
  }
  RacePairs pairs() const {
    RacePairs found;
    for (const Finding& f : checker.findings())
      found.insert({{f.earlier.stream, f.earlier.operation}, {f.later.stream, f.later.operation}});
    return found;
  }

  SimDevice device;
  RaceChecker checker;
  std::byte* memory = nullptr;
};

constexpr std::size_t kStreams = 3;
constexpr std::size_t kEvents = 4;
constexpr std::size_t kMemory = 24;

TEST(RaceChecker, AgreesWithReachabilityOnRandomPrograms) {
  Rng rng(11);
  std::size_t racing = 0, clean = 0, pairs = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t length = 4 + rng.below(round % 10 == 0 ? 120 : 24);
    std::vector<ProgramOp> program =
        random_program(rng, length, kStreams, kEvents, kMemory, round % 2 == 0);
    Checked checked(sim::seeded(static_cast<std::uint64_t>(round)));
    run_program(checked.checker, program, kStreams, kEvents, checked.memory);
    const RaceOracle oracle(program, kStreams, kMemory);
    ASSERT_EQ(checked.pairs(), oracle.pairs()) << "round " << round;
    ASSERT_EQ(checked.checker.count() > 0, oracle.any()) << "round " << round;
    ASSERT_EQ(checked.checker.count(), oracle.pairs().size()) << "each pair is reported once";
    oracle.any() ? ++racing : ++clean;
    pairs += oracle.pairs().size();
  }
  EXPECT_GT(racing, 500U);
  EXPECT_GT(clean, 100U);
  EXPECT_GT(pairs, 5000U);
}

TEST(RaceChecker, DoesNotDependOnTiming) {
  Rng rng(12);
  for (int round = 0; round < 50; ++round) {
    const std::vector<ProgramOp> program =
        random_program(rng, 60, kStreams, kEvents, kMemory, false);
    const RacePairs expected = RaceOracle(program, kStreams, kMemory).pairs();
    for (const sim::NamedSchedule& schedule : sim::all_schedules(kStreams, 3)) {
      Checked checked(schedule.make());
      auto copy = program;
      run_program(checked.checker, copy, kStreams, kEvents, checked.memory);
      ASSERT_EQ(checked.pairs(), expected) << schedule.name << " " << schedule.number;
    }
    Checked threads(nullptr);
    auto copy = program;
    run_program(threads.checker, copy, kStreams, kEvents, threads.memory);
    ASSERT_EQ(threads.pairs(), expected);
  }
}

/// Submits launches with all the waits they need: after each use there is a record, and before each
/// launch a wait for every former use that it conflicts with.
class OrderedProgram {
 public:
  OrderedProgram(Checked& checked, std::uint64_t seed) : checked_(checked), rng_(seed) {
    for (std::size_t i = 0; i < 5; ++i) streams_.push_back(checked.checker.create_stream());
    cells_.resize(64);
  }
  void step() {
    Device& device = checked_.checker;
    StreamHandle& stream = streams_[rng_.below(streams_.size())];
    if (rng_.below(50) == 0) return device.synchronize(stream);
    if (rng_.below(200) == 0) {
      device.destroy_stream(stream);
      stream = device.create_stream();
    }
    const auto done = std::make_shared<Event>(device);
    std::vector<MemoryAccess> accesses;
    const std::size_t first = rng_.below(cells_.size());
    const std::size_t end = first + 1 + rng_.below(std::min<std::size_t>(8, cells_.size() - first));
    const bool write = rng_.below(3) == 0;
    for (std::size_t i = first; i < end; ++i) {
      Cell& cell = cells_[i];
      if (cell.writer != nullptr) device.wait(stream, cell.writer->handle);
      if (write)
        for (const auto& reader : cell.readers) device.wait(stream, reader->handle);
    }
    checked_.use(stream, "work", "cells", write, first * 4, (end - first) * 4);
    device.record(stream, done->handle);
    for (std::size_t i = first; i < end; ++i) {
      if (write) cells_[i] = {done, {}};
      if (!write) cells_[i].readers.push_back(done);
      if (cells_[i].readers.size() > 16) cells_[i].readers.erase(cells_[i].readers.begin() + 1);
      // What was erased is waited for by the host.
      if (cells_[i].readers.size() == 16) device.synchronize_event(cells_[i].readers[1]->handle);
    }
  }

 private:
  struct Event {
    explicit Event(Device& d) : device(d), handle(d.create_event()) {}
    ~Event() { device.destroy_event(handle); }
    Device& device;
    EventHandle handle;
  };
  struct Cell {
    std::shared_ptr<Event> writer;
    std::vector<std::shared_ptr<Event>> readers;
  };
  Checked& checked_;
  Rng rng_;
  std::vector<StreamHandle> streams_;
  std::vector<Cell> cells_;
};

TEST(RaceChecker, OrderedProgramsAreNeverFlagged) {
  Checked checked(sim::eager());
  OrderedProgram program(checked, 5);
  for (int i = 0; i < 100'000; ++i) program.step();
  EXPECT_EQ(checked.checker.count(), 0U) << checked.checker.findings().front().describe();
  EXPECT_GT(checked.device.calls(sim::Call::kWait), 100'000U);
}

TEST(RaceChecker, FindsEveryPlantedRace) {
  Checked checked(sim::eager());
  OrderedProgram program(checked, 6);
  constexpr std::size_t kPlanted = 300;
  for (std::size_t i = 0; i < kPlanted; ++i) {
    const StreamHandle a = checked.checker.create_stream();
    const StreamHandle b = checked.checker.create_stream();
    const std::size_t place = 1024 + 8 * (i % 100);
    checked.use(a, "first", "", i % 3 != 0, place, 8);
    for (int between = 0; between < 20; ++between) program.step();
    ASSERT_EQ(checked.checker.count(), i);
    checked.use(b, "second", "", i % 3 != 1, place + i % 4, 4);
    ASSERT_EQ(checked.checker.count(), i + 1);
    checked.checker.synchronize(a);
    checked.checker.synchronize(b);
    checked.checker.destroy_stream(a);
    checked.checker.destroy_stream(b);
  }
}

/// Indices allocated for one stream, gathered from by another, dropped, and their memory given out
/// again while the gather may still be reading.
struct ReusedIndices {
  explicit ReusedIndices(CheckMode mode = CheckMode::kCollect) : checked(sim::lazy(), mode) {
    loader = checked.checker.create_stream();
    compute = checked.checker.create_stream();
    checked.checker.name_stream(loader, "loader");
    for (int batch = 0; batch < 2; ++batch) {
      checked.use(loader, "copy indices", "indices", true);
      checked.order(loader, compute);
      checked.use(compute, "embed", "weights", false, 1024);
      checked.use(compute, "gather", "indices", false);
      if (batch == 0) checked.order(compute, loader);
    }
    checked.use(loader, "unpack", "scratch", true, 32, 128);
  }
  Checked checked;
  StreamHandle loader;
  StreamHandle compute;
};

TEST(RaceChecker, SaysWhatIsMissing) {
  const ReusedIndices story;
  const std::vector<Finding> findings = story.checked.checker.findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].describe(),
            "'unpack' (3rd operation of stream 1 (loader)) writes 'scratch' while 'gather' (4th "
            "operation of stream 2) may still be reading 'indices' there (32 bytes in common); "
            "stream 1 (loader) has to wait for an event recorded on stream 2 after 'gather' (its "
            "4th operation)");
  EXPECT_EQ(findings[0].address, reinterpret_cast<std::uintptr_t>(story.checked.memory + 32));
}

TEST(RaceChecker, ThrowsInsteadOfPassingOn) {
  try {
    const ReusedIndices story(CheckMode::kThrow);
    FAIL();
  } catch (const RaceFound& found) {
    EXPECT_EQ(found.finding.later.work, "unpack");
    EXPECT_EQ(std::string(found.what()), found.finding.describe());
  }
  Checked checked(sim::eager(), CheckMode::kThrow);
  const StreamHandle a = checked.checker.create_stream();
  const StreamHandle b = checked.checker.create_stream();
  checked.use(a, "one", "x", true);
  EXPECT_THROW(checked.use(b, "two", "x", true), RaceFound);
  EXPECT_EQ(checked.device.calls(sim::Call::kLaunch), 1U);
  checked.order(a, b);
  checked.use(b, "two", "x", true);
  checked.order(b, a);
  checked.use(a, "three", "x", true);
  EXPECT_EQ(checked.checker.count(), 1U);
}

TEST(RaceChecker, CallsThatFailChangeNothing) {
  Checked checked(sim::eager());
  const StreamHandle a = checked.checker.create_stream();
  const StreamHandle b = checked.checker.create_stream();
  checked.device.fail_at(1, sim::Call::kLaunch);
  EXPECT_THROW(checked.use(a, "one", "x", true), DeviceError);
  checked.use(b, "two", "x", true);
  EXPECT_EQ(checked.checker.count(), 0U) << "'one' was never enqueued";
  const EventHandle event = checked.checker.create_event();
  checked.checker.record(b, event);
  checked.device.fail_at(1, sim::Call::kWait);
  EXPECT_THROW(checked.checker.wait(a, event), DeviceError);
  checked.use(a, "three", "x", true);
  EXPECT_EQ(checked.checker.count(), 1U) << "the wait was never enqueued";
  checked.device.fail_at(1, sim::Call::kSynchronize);
  EXPECT_THROW(checked.checker.synchronize(a), DeviceError);
  checked.device.fail_at(1, sim::Call::kSynchronizeEvent);
  EXPECT_THROW(checked.checker.synchronize_event(event), DeviceError);
  checked.use(checked.checker.create_stream(), "four", "x", true);
  EXPECT_EQ(checked.checker.count(), 1U) << "a synchronisation that throws has waited";
}

TEST(RaceChecker, CopiesAndFillsAreUses) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  const StreamHandle b = checked.checker.create_stream();
  std::byte* const pinned = checked.checker.allocate_pinned(64);
  checked.checker.copy(a, pinned, checked.memory, 64);
  checked.checker.fill(b, checked.memory + 60, 0, 64);
  checked.checker.copy(b, checked.memory + 256, pinned, 8);
  EXPECT_EQ(checked.pairs(), (RacePairs{{{1, 1}, {2, 1}}, {{1, 1}, {2, 2}}}));
}

TEST(RaceChecker, MemoryThatIsNotThere) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  const std::size_t unit = checked.device.granule();
  checked.use(a, "tail", "rows", true, unit - 16, 16);
  EXPECT_EQ(checked.checker.count(), 0U);
  checked.use(a, "over", "rows", true, unit - 16, 32);
  ASSERT_EQ(checked.checker.count(), 1U);
  EXPECT_EQ(checked.checker.findings()[0].describe(),
            "'over' (2nd operation of stream 1) writes 32 bytes of 'rows' that have no memory; "
            "they were unmapped too early, or never mapped");
  int ours = 0;
  const MemoryAccess foreign[] = {{reinterpret_cast<std::byte*>(&ours), sizeof ours, true, "ours"}};
  checked.checker.launch(a, {"foreign", {}}, foreign);
  EXPECT_EQ(checked.checker.count(), 1U);
}

TEST(RaceChecker, MemoryReleasedTooEarly) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  std::byte* const pinned = checked.checker.allocate_pinned(64);
  checked.use(a, "gather", "rows", false);
  checked.checker.copy(a, checked.memory + 128, pinned, 64);
  checked.checker.host_access({pinned, 8, false, "staging"});
  EXPECT_EQ(checked.checker.count(), 0U) << "both only read";
  checked.checker.host_access({pinned, 8, true, "staging"});
  checked.checker.release_pinned(pinned, 64);
  checked.checker.unmap(checked.memory, checked.device.granule());
  const std::vector<Finding> findings = checked.checker.findings();
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_EQ(findings[0].describe(),
            "the host writes 'staging' while 'copy' (2nd operation of stream 1) may still be "
            "reading it; the host has to wait for stream 1 after 'copy' (its 2nd operation)");
  EXPECT_EQ(findings[1].kind, Finding::Kind::kReleased);
  EXPECT_EQ(
      findings[2].describe(),
      "64 bytes of 'rows' are released while 'gather' (1st operation of stream 1) may still "
      "be reading them; the host has to wait for stream 1 after 'gather' (its 1st operation)");
  EXPECT_EQ(findings[3].earlier.work, "copy");
}

TEST(RaceChecker, ReleaseAfterSynchronisationIsClean) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  const StreamHandle b = checked.checker.create_stream();
  checked.use(a, "one", "x", true);
  checked.order(a, b);
  checked.checker.synchronize(b);
  checked.checker.unmap(checked.memory, checked.device.granule());
  EXPECT_EQ(checked.checker.count(), 0U) << "b waited for a, the host for b";
}

TEST(RaceChecker, DrainingOrdersWhatStreamsThatAreGoneHaveDone) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  checked.use(a, "one", "x", true);
  checked.checker.destroy_stream(a);
  checked.checker.drain();
  checked.use(checked.checker.create_stream(), "two", "x", true);
  checked.checker.drain();
  checked.checker.unmap(checked.memory, checked.device.granule());
  EXPECT_EQ(checked.checker.count(), 0U);
}

TEST(RaceChecker, AWaitForAnEventThatWasNotRecordedOrdersNothing) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  const StreamHandle b = checked.checker.create_stream();
  const EventHandle event = checked.checker.create_event();
  checked.checker.wait(b, event);
  checked.use(a, "one", "x", true);
  checked.checker.record(a, event);
  checked.use(b, "two", "x", true);
  EXPECT_EQ(checked.checker.count(), 1U);
}

TEST(RaceChecker, HandlesThatAreReusedDoNotAlias) {
  Checked checked;
  const StreamHandle a = checked.checker.create_stream();
  checked.use(a, "one", "x", true);
  const EventHandle event = checked.checker.create_event();
  checked.checker.record(a, event);
  checked.checker.destroy_event(event);
  checked.checker.destroy_stream(a);
  const StreamHandle b = checked.checker.create_stream();
  const EventHandle other = checked.checker.create_event();
  ASSERT_EQ(a, b);
  ASSERT_EQ(event, other);
  checked.checker.wait(b, other);
  checked.use(b, "two", "x", true);
  EXPECT_EQ(checked.pairs(), (RacePairs{{{1, 1}, {2, 1}}}));
}

TEST(RaceChecker, StreamsMadeByOthers) {
  Checked checked;
  const StreamHandle foreign = checked.device.create_stream();
  const StreamHandle ours = checked.checker.create_stream();
  checked.use(foreign, "one", "x", true);
  checked.order(foreign, ours);
  checked.use(ours, "two", "x", true);
  EXPECT_EQ(checked.checker.count(), 0U);
  checked.use(foreign, "three", "x", true);
  EXPECT_EQ(checked.pairs(), (RacePairs{{{1, 1}, {2, 2}}}));
  checked.device.destroy_stream(foreign);
  const StreamHandle again = checked.device.create_stream();
  ASSERT_EQ(foreign, again);
  checked.use(again, "four", "x", true);
  EXPECT_EQ(checked.checker.count(), 3U) << "not ordered after 'two', nor after 'three'";
  checked.device.destroy_stream(again);
  EXPECT_THROW(checked.use(again, "five", "x", true), DeviceError);
}

TEST(AccessHistory, StaysSmall) {
  AccessHistory history;
  VectorClock clock = {0}, host = {0};
  PastUse use;
  use.write = true;
  for (std::uintptr_t i = 1; i <= 100'000; ++i) {
    clock[0] = use.tick = i;
    if (i % 100 == 0) host[0] = i;
    history.add({8 * i, 8 * i + 4}, use, clock, host);
    ASSERT_LE(history.ranges(), 1025U);
  }
  history.add({0, 1 << 30}, use, clock, clock);
  EXPECT_EQ(history.ranges(), 1U);
}

TEST(RacePicture, IsTheOneInTheDocumentation) {
  const ReusedIndices story;
  const std::string picture = race_picture(story.checked.checker.findings().at(0));
  const std::string drawn = testing::TempDir() + "segfuse_race.svg";
  std::ofstream(drawn) << picture;
  EXPECT_EQ(picture, read_file(SEGFUSE_SOURCE_DIR "/docs/images/race.svg"))
      << "docs/images/race.svg is not what the code draws; the new one is " << drawn;
  const auto count = [&](const std::string& what) {
    std::size_t found = 0;
    for (auto at = picture.find(what); at != std::string::npos; at = picture.find(what, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("fill=\"#fbb\""), 2U) << "the pair";
  EXPECT_EQ(count("stroke-dasharray"), 1U) << "the missing wait";
}

}  // namespace
}  // namespace segfuse::runtime
