// Memory for work that the runtime does not see: who counts as a user when it is freed.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/check/race_checker.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/tensors/tensor_memory.h"
#include "support/sim/sim_device.h"
#include "support/system/fake_cuda.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kCount = 64;
constexpr std::size_t kBytes = kCount * sizeof(int);

/// A library with streams of its own on a simulated device. Its work and its events go past the
/// runtime.
struct Library {
  explicit Library(const std::shared_ptr<sim::Schedule>& schedule, bool checked = false,
                   std::size_t granule = 4096, std::size_t limit = std::size_t{256} << 20)
      : open(std::make_unique<sim::SimDevice>(
                 sim::SimOptions{.schedule = schedule, .granule = granule, .limit = limit}),
             nullptr, options(checked)),
        memory(open) {}
  static OpenDeviceOptions options(bool checked) {
    OpenDeviceOptions options;
    if (checked) options.check_streams = CheckMode::kThrow;
    return options;
  }

  void use(StreamHandle stream, std::byte* at, bool write, std::function<void()> run = {}) {
    const MemoryAccess access{at, kBytes, write, "block"};
    open.device().launch(stream,
                         {"use",
                          [=](StreamHandle) {
                            if (run) run();
                          }},
                         {&access, 1});
  }
  /// `later` is ordered after what is on `earlier` now, and the memory hears of the wait.
  void order(StreamHandle earlier, StreamHandle later) {
    const EventHandle event = open.device().create_event();
    open.device().record(earlier, event);
    open.device().wait(later, event);
    open.device().destroy_event(event);
    memory.mark(later);
  }
  TimelineCounts counts() { return open.timeline().counts(); }

  OpenDevice open;
  TensorMemory memory;
  StreamHandle first = open.device().create_stream();
  StreamHandle second = open.device().create_stream();
};

void fill(std::byte* at, int value) {
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(at + i * sizeof(int), &value, sizeof(int));
}

std::size_t count_others(const std::byte* at, int value) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    wrong += std::memcmp(at + i * sizeof(int), &value, sizeof(int)) != 0 ? 1 : 0;
  return wrong;
}

/// Written on one stream, read on another, freed at once, and asked for again.
std::size_t story(const std::shared_ptr<sim::Schedule>& schedule, int steps) {
  Library library(schedule);
  std::size_t wrong = 0;
  library.memory.enter(library.first);
  for (int step = 0; step < steps; ++step) {
    std::byte* const at = library.memory.allocate(kBytes, library.first);
    library.use(library.first, at, true, [=] { fill(at, step); });
    library.memory.enter(library.second);
    library.order(library.first, library.second);
    library.use(library.second, at, false, [=, &wrong] { wrong += count_others(at, step); });
    library.memory.enter(library.first);
    library.memory.release(at);
    std::byte* const next = library.memory.allocate(kBytes, library.first);
    library.use(library.first, next, true, [=] { fill(next, -1); });
    library.memory.release(next);
  }
  library.open.device().synchronize(library.first);
  library.open.device().synchronize(library.second);
  return wrong;
}

TEST(TensorMemory, WhatAnotherStreamReadsStaysIntact) {
  const auto result = sim::explore(
      [](const std::shared_ptr<sim::Schedule>& schedule) { EXPECT_EQ(story(schedule, 2), 0U); },
      {.limit = 5'000, .reduce = false});
  EXPECT_GT(result.schedules, 20U);
  for (const sim::NamedSchedule& named : sim::all_schedules(2, 30))
    EXPECT_EQ(story(named.make(), 10), 0U) << named.name << " " << named.number;
}

TEST(TensorMemory, OneStreamNeedsNoEventAndGetsItsMemoryBackAtOnce) {
  Library library(sim::lazy());
  std::byte* const at = library.memory.allocate(kBytes, library.first);
  library.use(library.first, at, true);
  library.memory.release(at);
  EXPECT_EQ(library.memory.allocate(kBytes, library.first), at);
  EXPECT_EQ(library.counts().records, 0U);
  library.memory.release(at);
}

TEST(TensorMemory, StreamsWithoutWorkSinceTheAllocationDoNotCount) {
  Library library(sim::lazy());
  library.memory.mark(library.second);
  std::byte* const at = library.memory.allocate(kBytes, library.first);
  library.use(library.first, at, true);
  library.memory.release(at);
  EXPECT_EQ(library.counts().records, 0U);
  EXPECT_EQ(library.memory.allocate(kBytes, library.first), at);
  library.memory.release(at);
}

/// Whether the second stream counted when memory of the first was freed.
template <class Sign>
bool counts_after(Sign sign) {
  Library library(sim::lazy());
  library.memory.mark(library.second);
  std::byte* const at = library.memory.allocate(kBytes, library.first);
  sign(library, at);
  library.memory.release(at);
  return library.counts().records == 1;
}

TEST(TensorMemory, EverySignOfWorkCounts) {
  EXPECT_FALSE(counts_after([](Library&, std::byte*) {}));
  EXPECT_TRUE(counts_after([](Library& l, std::byte*) { l.memory.mark(l.second); }));
  EXPECT_TRUE(counts_after([](Library& l, std::byte*) { l.memory.mark_all(); }));
  EXPECT_TRUE(counts_after([](Library& l, std::byte*) { l.memory.enter(l.second); }));
  EXPECT_TRUE(counts_after(
      [](Library& l, std::byte*) { l.memory.release(l.memory.allocate(kBytes, l.second)); }));
  EXPECT_TRUE(
      counts_after([](Library& l, std::byte* at) { l.memory.record_stream(at, l.second); }));
}

TEST(TensorMemory, AStreamThatAThreadIsInCounts) {
  Library library(sim::lazy());
  library.memory.enter(library.second);
  std::byte* const at = library.memory.allocate(kBytes, library.first);
  library.memory.release(at);
  EXPECT_EQ(library.counts().records, 1U);
  library.memory.enter(library.first);
  std::byte* const other = library.memory.allocate(2 * kBytes, library.first);
  library.memory.release(other);
  EXPECT_EQ(library.counts().records, 1U);
}

TEST(TensorMemory, AddressesFromElsewhereAreLeftAlone) {
  Library library(sim::lazy());
  std::byte here{};
  library.memory.release(&here);
  library.memory.release(nullptr);
  library.memory.record_stream(&here, library.second);
  EXPECT_EQ(library.memory.allocate(0, library.first), nullptr);
  EXPECT_FALSE(library.memory.holds(&here));
  EXPECT_EQ(library.memory.live(), 0U);
}

TEST(TensorMemory, TooManyStreamsAreRefused) {
  Library library(sim::lazy());
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 40; ++i) {
    streams.push_back(library.open.device().create_stream());
    library.memory.mark(streams.back());
  }
  try {
    library.memory.allocate(kBytes, library.first);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("more than 40 streams"), std::string::npos)
        << error.what();
  }
  // The unknown one may use any memory.
  EXPECT_THROW(library.memory.allocate(kBytes, streams[5]), UsageError);
}

TEST(TensorMemory, TrimGivesBackWhatNothingUses) {
  Library library(sim::lazy());
  std::byte* const kept = library.memory.allocate(kBytes, library.first);
  library.memory.release(library.memory.allocate(std::size_t{4} << 20, library.second));
  EXPECT_GE(library.open.heap().statistics().mapped_bytes, std::size_t{4} << 20);
  library.memory.trim();
  EXPECT_LE(library.open.heap().statistics().mapped_bytes, std::size_t{2} << 20);
  EXPECT_TRUE(library.memory.holds(kept));
  library.memory.release(kept);
  library.memory.trim();
  EXPECT_EQ(library.open.heap().statistics().mapped_bytes, 0U);
  library.open.heap().verify();
}

struct Robson {
  std::size_t held = 0;  ///< most that was held
  std::size_t live = 0;  ///< most that was live
};

/// Robson's sequence: blocks fill some memory; again and again every second one is freed, and
/// blocks of twice the size are requested, until there is room for two of them.
Robson robson(TensorMemory& memory, const std::vector<StreamHandle>& streams, std::size_t total,
              std::size_t smallest) {
  const Heap& heap = memory.device().heap();
  std::vector<std::byte*> live;
  Robson most;
  std::size_t made = 0;
  for (std::size_t size = smallest; 2 * size <= total; size *= 2) {
    for (std::size_t room = total - heap.statistics().live_bytes; room >= size; room -= size)
      live.push_back(memory.allocate(size, streams[made++ / 3 % streams.size()]));
    const HeapStatistics now = heap.statistics();
    most = {now.peak_mapped_bytes, std::max(most.live, now.live_bytes)};
    std::vector<std::byte*> rest;
    for (std::size_t i = 0; i < live.size(); ++i)
      if (i % 2 == 0)
        rest.push_back(live[i]);
      else
        memory.release(live[i]);
    live = std::move(rest);
  }
  heap.verify();
  for (std::byte* const at : live) memory.release(at);
  return most;
}

Robson robson(const std::shared_ptr<sim::Schedule>& schedule, std::size_t granule,
              std::size_t total, std::size_t smallest, bool two_streams = false) {
  Library library(schedule, false, granule, 4 * total);
  std::vector<StreamHandle> streams = {library.first};
  if (two_streams) streams.push_back(library.second);
  return robson(library.memory, streams, total, smallest);
}

/// `halves` halves of what is live may be held beyond it; or what the heap holds before it maps
/// idle memory elsewhere.
std::size_t bound(const Robson& most, std::size_t halves, std::size_t granule) {
  return std::max(most.live + most.live * halves / 2 + granule,
                  most.live + most.live / 4 + (std::size_t{8} << 20));
}

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

TEST(TensorMemory, IdleMemoryIsMappedElsewhereBeforeTheHeapGrows) {
  const Robson most = robson(sim::eager(), 4 * kKiB, 48 * kMiB, 256 * kKiB);
  EXPECT_LE(most.held, bound(most, 1, 4 * kKiB));
}

/// As on a GPU: half of the smallest blocks' granule stays in use, and an event that is recorded on
/// an idle stream is not over at once.
TEST(TensorMemory, IdleMemoryIsMappedElsewhereInGranulesOfTwoMiB) {
  const Robson most = robson(sim::lazy(), 2 * kMiB, 128 * kMiB, kMiB);
  EXPECT_LE(2 * most.held, 3 * most.live);
}

/// A granule of which a byte is live stays where it is, so each doubling below the granule costs
/// half of what is live; none above it does. By the calls of CUDA's driver.
TEST(TensorMemory, RobsonsSequenceCostsNothingAboveAGranule) {
  for (const std::size_t total : {16 * kMiB, 64 * kMiB, 512 * kMiB})
    for (const std::size_t kib :
         {64, 128, 256, 512, 640, 768, 1024, 1536, 1792, 2048, 2560, 3072, 4096, 5120, 8192}) {
      std::size_t halves = 1;
      for (std::size_t size = 2 * kib; size < 2048; size *= 2) ++halves;
      test::FakeCuda fake(4 * total);
      OpenDevice open(open_cuda_device(fake.driver(), 0, {}), nullptr);
      TensorMemory memory(open);
      const Robson most = robson(memory, {open.device().create_stream()}, total, kib * kKiB);
      EXPECT_LE(most.held, bound(most, halves, open.device().granule()))
          << total << " bytes from " << kib << " KiB";
      memory.trim();
      EXPECT_EQ(fake.used(), 0U);
    }
}

TEST(TensorMemory, RobsonsSequenceOnTwoStreamsHoldsNoMore) {
  for (const std::size_t kib : {1024, 2048, 3072}) {
    const Robson most = robson(sim::eager(), 2 * kMiB, 96 * kMiB, kib * kKiB, true);
    EXPECT_LE(most.held, bound(most, 1, 2 * kMiB)) << "from " << kib << " KiB";
  }
}

/// A stream with work is not idle: its memory stays where it is.
TEST(TensorMemory, MemoryOfAStreamThatWorksIsNotMappedElsewhere) {
  Library library(sim::lazy(), false, std::size_t{2} << 20);
  std::byte* const at = library.memory.allocate(kBytes, library.first);
  library.use(library.first, at, true);
  EXPECT_FALSE(library.open.device().idle(library.first));
  library.memory.release(at);
  Timeline& timeline = library.open.timeline();
  const auto all_over = [&] {
    timeline.ask(library.open.device());
    return std::ranges::all_of(timeline.streams(library.open.device()), [&](StreamId stream) {
      return timeline.over(timeline.tail(stream));
    });
  };
  EXPECT_FALSE(all_over());
  library.open.device().synchronize(library.first);
  EXPECT_TRUE(library.open.device().idle(library.first));
  EXPECT_TRUE(all_over());
}

/// A program that orders its uses by events, and frees whatever it likes at any time.
void random_program(std::uint64_t seed) {
  struct Tensor {
    std::byte* at = nullptr;
    std::size_t home = 0;
  };
  Library library(sim::lazy(), true);
  std::mt19937_64 random(seed);
  std::vector<StreamHandle> streams = {library.first, library.second};
  for (int i = 0; i < 2; ++i) streams.push_back(library.open.device().create_stream());
  const auto choose = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Tensor> live;
  std::size_t now = 0;
  library.memory.enter(streams[now]);
  for (int step = 0; step < 300; ++step) {
    switch (choose(8)) {
      case 0:
        now = choose(streams.size());
        library.memory.enter(streams[now]);
        break;
      case 1:
        if (choose(4) == 0) {
          library.memory.mark_all();
          for (const StreamHandle stream : streams) library.open.device().synchronize(stream);
        }
        break;
      case 2:
      case 3: {
        std::byte* const at = library.memory.allocate(kBytes * (1 + choose(3)), streams[now]);
        library.use(streams[now], at, true);
        live.push_back({at, now});
        break;
      }
      case 4:
      case 5: {
        // The work of a thread that nobody saw enter a stream.
        if (live.empty()) break;
        const Tensor& tensor = live[choose(live.size())];
        const std::size_t reader = choose(streams.size());
        if (reader != tensor.home) library.order(streams[tensor.home], streams[reader]);
        library.use(streams[reader], tensor.at, false);
        break;
      }
      default:
        if (live.empty()) break;
        const std::size_t which = choose(live.size());
        library.memory.release(live[which].at);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (const Tensor& tensor : live) library.memory.release(tensor.at);
  library.open.heap().verify();
}

TEST(TensorMemory, RandomProgramsHaveNoRaces) {
  for (std::uint64_t seed = 0; seed < 60; ++seed)
    EXPECT_NO_THROW(random_program(seed)) << "seed " << seed;
}

}  // namespace
}  // namespace segfuse::runtime
