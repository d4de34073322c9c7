// One suite for the heap's resource and every adaptor around it, and what each adaptor adds.

#include <dlfcn.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "runtime/executor.h"
#include "runtime/memory/adaptors.h"
#include "segfuse/error.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime {
namespace {

using testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Machine {
  explicit Machine(std::shared_ptr<sim::Schedule> schedule = sim::lazy())
      : device({.schedule = std::move(schedule), .granule = 4096, .limit = 16 * kMiB}),
        heap(device, timeline),
        executor(timeline),
        resource(heap),
        a(timeline.create(device, "a")),
        b(timeline.create(device, "b")) {}
  sim::SimDevice device;
  Timeline timeline;
  Heap heap;
  Executor executor;
  HeapResource resource;
  StreamId a, b;
};

// How each kind is put around the heap's resource.
struct Plain {
  explicit Plain(HeapResource& below) : resource(below) {}
  HeapResource& resource;
};
struct Limited {
  explicit Limited(HeapResource& below) : resource(below, 16 * kMiB) {}
  LimitResource<HeapResource> resource;
};
struct Logged {
  explicit Logged(HeapResource& below)
      : resource(below, [this](const ResourceCall& call) { calls.push_back(call); }) {}
  std::vector<ResourceCall> calls;
  LogResource<HeapResource> resource;
};
struct Counted {
  explicit Counted(HeapResource& below) : resource(below) {}
  StatisticsResource<HeapResource> resource;
};
struct Tracked {
  explicit Tracked(HeapResource& below) : resource(below, 4) {}
  TrackResource<HeapResource> resource;
};
struct Faulty {
  explicit Faulty(HeapResource& below) : resource(below) {}
  FaultResource<HeapResource> resource;
};
struct AllOfThem {
  using Inner = StatisticsResource<FaultResource<HeapResource>>;
  explicit AllOfThem(HeapResource& below)
      : fault(below), statistics(fault), limit(statistics, 16 * kMiB), resource(limit, 2) {}
  FaultResource<HeapResource> fault;
  Inner statistics;
  LimitResource<Inner> limit;
  TrackResource<LimitResource<Inner>> resource;
};

template <class Kind>
class ResourceConformance : public testing::Test {
 protected:
  template <class Call>
  static std::string failure(const Call& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError was thrown";
  }
  Machine machine;
  Kind kind{machine.resource};
};

using Kinds = testing::Types<Plain, Limited, Logged, Counted, Tracked, Faulty, AllOfThem>;
TYPED_TEST_SUITE(ResourceConformance, Kinds);

TYPED_TEST(ResourceConformance, MemoryIsAlignedDistinctAndKnowsItsSize) {
  auto& resource = this->kind.resource;
  static_assert(MemoryResource<std::remove_reference_t<decltype(resource)>>);
  std::mt19937_64 random(1);
  std::map<std::byte*, std::size_t> live;
  for (int i = 0; i < 300; ++i) {
    if (!live.empty() && random() % 3 == 0) {
      const auto at = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      resource.deallocate(at->first, random() % 2 == 0 ? this->machine.a : this->machine.b,
                          random() % 2 == 0 ? at->second : kUnknownBytes);
      live.erase(at);
      continue;
    }
    const std::size_t bytes = random() % (1U << (random() % 16));
    std::byte* const address = resource.allocate(bytes, this->machine.a, "x");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0U);
    EXPECT_EQ(resource.bytes_of(address), bytes);
    const auto [at, added] = live.emplace(address, bytes);
    ASSERT_TRUE(added);
    if (at != live.begin()) {
      EXPECT_GE(address, std::prev(at)->first + std::prev(at)->second);
    }
    if (std::next(at) != live.end()) {
      EXPECT_LE(address + bytes, std::next(at)->first);
    }
  }
  EXPECT_EQ(this->machine.resource.live(), live.size());
  for (const auto& [address, bytes] : live) resource.deallocate(address, this->machine.a, bytes);
  EXPECT_EQ(this->machine.resource.live(), 0U);
  EXPECT_EQ(this->machine.heap.statistics().live_blocks, 0U);
  this->machine.heap.verify();
}

TYPED_TEST(ResourceConformance, WrongUseIsATypedErrorThatChangesNothing) {
  auto& resource = this->kind.resource;
  Machine& m = this->machine;
  std::byte* const address = resource.allocate(1000, m.a, "weights");
  std::byte foreign{};
  const auto says = [&](std::byte* what, StreamId stream, std::size_t bytes) {
    return this->failure([&] { resource.deallocate(what, stream, bytes); });
  };
  EXPECT_THAT(says(&foreign, m.a, 1), HasSubstr("was not allocated by this resource, on sim"));
  EXPECT_THAT(says(nullptr, m.a, kUnknownBytes), HasSubstr("was not allocated by this resource"));
  EXPECT_THAT(says(address + 16, m.a, 1000), HasSubstr("is byte 16 of the memory 'weights'"));
  EXPECT_THAT(says(address, m.a, 999), HasSubstr("'weights' at"));
  EXPECT_THAT(says(address, m.a, 999), HasSubstr("has 1000 bytes, not 999"));
  sim::SimDevice second(sim::lazy());
  const StreamId elsewhere = m.timeline.create(second, "elsewhere");
  EXPECT_THAT(says(address, elsewhere, 1000), HasSubstr("elsewhere is a stream of sim"));
  EXPECT_THROW((void)resource.allocate(8, elsewhere, ""), UsageError);
  EXPECT_THROW(resource.deallocate(address, StreamId(), 1000), UsageError);
  m.timeline.retire(elsewhere);
  EXPECT_EQ(resource.bytes_of(address), 1000U) << "still there";
  resource.deallocate(address, m.a, 1000);
  EXPECT_THAT(says(address, m.a, 1000), HasSubstr("'weights' at"));
  EXPECT_THAT(says(address, m.a, 1000), HasSubstr("was freed before"));
  EXPECT_THAT(this->failure([&] { (void)resource.bytes_of(address); }), HasSubstr("freed before"));
}

TYPED_TEST(ResourceConformance, MemoryThatDoesNotFitIsRefusedAndTheNextRequestWorks) {
  auto& resource = this->kind.resource;
  Machine& m = this->machine;
  std::byte* const some = resource.allocate(kMiB, m.a, "some");
  EXPECT_THROW((void)resource.allocate(64 * kMiB, m.a, "too much"), OutOfDeviceMemory);
  EXPECT_THROW((void)resource.allocate(std::size_t{1} << 60, m.a, ""), OutOfDeviceMemory);
  std::byte* const more = resource.allocate(kMiB, m.a, "more");
  EXPECT_NE(some, more);
  resource.deallocate(some, m.a);
  resource.deallocate(more, m.b);
}

// What was freed after work on a stream is not handed out to another before that work is over.
TYPED_TEST(ResourceConformance, FreedMemoryWaitsForTheStreamThatFreesIt) {
  auto& resource = this->kind.resource;
  Machine& m = this->machine;
  m.heap.set_limits(1, 0);  // never grows to avoid a wait
  std::byte* const address = resource.allocate(2 * kMiB, m.a, "x");
  const MemoryAccess access{address, 2 * kMiB, true, "x"};
  m.device.launch(m.timeline.handle(m.b), {"unseen", {}}, {&access, 1});
  resource.deallocate(address, m.b);
  const std::uint64_t waits = m.timeline.counts().waits;
  std::byte* const again = resource.allocate(2 * kMiB, m.a, "y");
  EXPECT_EQ(again, address);
  EXPECT_EQ(m.timeline.counts().waits, waits + 1);
  resource.deallocate(again, m.a);
}

TYPED_TEST(ResourceConformance, ThreadsMayShareOne) {
  auto& resource = this->kind.resource;
  Machine& m = this->machine;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        std::vector<std::byte*> mine;
        for (int i = 0; i < 300; ++i) {
          if (!mine.empty() && random() % 2 == 0) {
            resource.deallocate(mine.back(), t % 2 == 0 ? m.a : m.b);
            mine.pop_back();
          } else {
            mine.push_back(resource.allocate(1 + random() % 3000, t % 2 == 0 ? m.a : m.b, "t"));
          }
        }
        for (std::byte* const address : mine) resource.deallocate(address, m.a);
      });
  }
  EXPECT_EQ(m.resource.live(), 0U);
  m.heap.verify();
}

TEST(LimitResource, IsExactAndGivesBackWhatIsFreedOrRefused) {
  Machine m;
  FaultResource fault(m.resource);
  LimitResource limit(fault, 1000);
  std::byte* const first = limit.allocate(600, m.a);
  try {
    (void)limit.allocate(401, m.a, "y");
    FAIL();
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("limit: 401 bytes for 'y' do not fit: 600 of 1000"));
  }
  EXPECT_THROW((void)limit.allocate(static_cast<std::size_t>(-1), m.a), OutOfDeviceMemory);
  fault.fail_at(1);
  EXPECT_THROW((void)limit.allocate(400, m.a), OutOfDeviceMemory);
  EXPECT_EQ(limit.held(), 600U) << "what was refused below is not held";
  std::byte* const second = limit.allocate(400, m.a);
  EXPECT_EQ(limit.held(), limit.limit());
  limit.deallocate(first, m.a);
  EXPECT_THROW(limit.deallocate(first, m.a), UsageError);
  EXPECT_EQ(limit.held(), 400U);
  limit.deallocate(second, m.a);
}

TEST(StatisticsResource, ScopesNest) {
  Machine m;
  StatisticsResource statistics(m.resource);
  std::byte* const outer = statistics.allocate(100, m.a);
  statistics.push();
  std::byte* const one = statistics.allocate(1000, m.a);
  std::byte* const two = statistics.allocate(500, m.a);
  statistics.deallocate(one, m.a);
  statistics.deallocate(outer, m.a);
  EXPECT_THROW((void)statistics.allocate(1 << 30, m.a), OutOfDeviceMemory);
  EXPECT_EQ(statistics.statistics().bytes, (Level{400, 1500, 1500}));
  const ResourceStatistics inner = statistics.pop();
  EXPECT_EQ(inner.bytes, (Level{400, 1500, 1500})) << "it freed what was older than it";
  EXPECT_EQ(inner.allocations, (Level{0, 2, 2}));
  EXPECT_EQ(inner.failures, 1U);
  EXPECT_EQ(statistics.statistics().bytes, (Level{500, 1600, 1600}));
  EXPECT_EQ(statistics.statistics().allocations, (Level{1, 3, 3}));
  EXPECT_EQ(statistics.statistics().failures, 1U);
  EXPECT_THROW((void)statistics.pop(), UsageError);
  statistics.deallocate(two, m.a);
  EXPECT_EQ(statistics.statistics().bytes.value, 0);
}

TEST(TrackResource, NamesLeaksWithStacks) {
  Machine m;
  TrackResource track(m.resource, 8);
  EXPECT_EQ(track.leaks(), "");
  std::byte* const gone = track.allocate(10, m.a, "gone");
  std::byte* const leaked = track.allocate(20, m.a, "leaked");
  track.deallocate(gone, m.a);
  const auto outstanding = track.outstanding();
  ASSERT_EQ(outstanding.size(), 1U);
  EXPECT_EQ(outstanding[0].address, leaked);
  EXPECT_EQ(outstanding[0].label, "leaked");
  EXPECT_EQ(outstanding[0].number, 2U);
  EXPECT_GE(outstanding[0].stack.size(), 2U);
  EXPECT_LE(outstanding[0].stack.size(), 8U);
  for (void* const frame : outstanding[0].stack) {
    Dl_info info{};
    EXPECT_NE(dladdr(frame, &info), 0)
        << frame << " is not in the code of the program or a library";
  }
  const std::string text = track.leaks();
  EXPECT_THAT(text, HasSubstr("20 bytes at"));
  EXPECT_THAT(text, HasSubstr("allocation 2, leaked"));
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')),
            1 + outstanding[0].stack.size());
  track.deallocate(leaked, m.a);
  EXPECT_TRUE(track.outstanding().empty());
}

TEST(FaultResource, FailsWhenToldAndRepeatably) {
  Machine m;
  FaultResource fault(m.resource);
  fault.fail_at(3);
  std::vector<std::byte*> live{fault.allocate(8, m.a), fault.allocate(8, m.a)};
  EXPECT_THROW((void)fault.allocate(8, m.a), OutOfDeviceMemory);
  live.push_back(fault.allocate(8, m.a));
  const auto pattern = [&](std::uint64_t seed) {
    fault.fail_some(0.3, seed);
    std::vector<bool> failed;
    for (int i = 0; i < 200; ++i) {
      try {
        live.push_back(fault.allocate(8, m.a));
        failed.push_back(false);
      } catch (const OutOfDeviceMemory&) {
        failed.push_back(true);
      }
    }
    return failed;
  };
  const auto first = pattern(1);
  EXPECT_EQ(pattern(1), first);
  EXPECT_NE(pattern(2), first);
  const auto count = std::ranges::count(first, true);
  EXPECT_GT(count, 30);
  EXPECT_LT(count, 90);
  for (std::byte* const address : live) fault.deallocate(address, m.a);
}

TEST(LogResource, WritesLinesThatOthersRead) {
  Machine m;
  std::vector<std::string> lines;
  LogResource log(m.resource, [&](const ResourceCall& call) { lines.push_back(log_line(call)); });
  std::byte* const address = log.allocate(1000, m.a);
  EXPECT_THROW((void)log.allocate(1 << 30, m.a), OutOfDeviceMemory);
  log.deallocate(address, m.b);
  EXPECT_THROW(log.deallocate(address, m.b), UsageError);
  ASSERT_EQ(lines.size(), 3U);
  const std::string shown = fmt::format("0x{:x}", reinterpret_cast<std::uintptr_t>(address));
  EXPECT_THAT(lines[0], testing::EndsWith(fmt::format(",allocate,{},1000,0x0", shown)));
  EXPECT_THAT(lines[1], testing::EndsWith(",allocate failure,0x0,1073741824,0x0"));
  EXPECT_THAT(lines[2], testing::EndsWith(fmt::format(",free,{},1000,0x1", shown)));
  ResourceCall call;
  call.time = std::chrono::system_clock::time_point(std::chrono::hours(47) +
                                                    std::chrono::microseconds(61'000'005));
  EXPECT_THAT(log_line(call), HasSubstr(",23:01:01.000005,"));
}

// Memory from a resource, used by work that the executor sees, under every adversary.
TEST(HeapResource, ContentIsRightInAllSchedules) {
  for (const sim::NamedSchedule& named : sim::all_schedules(2, 20)) {
    Machine m(named.make());
    m.heap.set_limits(1, 0);
    int wrong = 0;
    for (int i = 0; i < 20; ++i) {
      std::byte* const at = m.resource.allocate(4096, m.a, "x");
      const Buffer buffer = m.resource.buffer(at);
      m.executor.launch(m.a, {"write", [=](StreamHandle) { std::fill_n(at, 4096, std::byte(i)); }},
                        {writes(buffer)});
      m.executor.launch(m.b,
                        {"read",
                         [=, &wrong](StreamHandle) {
                           wrong +=
                               static_cast<int>(4096 - std::count(at, at + 4096, std::byte(i)));
                         }},
                        {reads(buffer)});
      m.resource.deallocate(at, m.b, 4096);
    }
    m.timeline.synchronize(m.a);
    m.timeline.synchronize(m.b);
    EXPECT_EQ(wrong, 0) << named.name << " " << named.number;
  }
}

}  // namespace
}  // namespace segfuse::runtime
