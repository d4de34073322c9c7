// Memory of work that is captured into graphs.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/memory/size_class.h"
#include "runtime/tensors/tensor_memory.h"
#include "segfuse/error.h"
#include "support/sim/sim_device.h"
#include "support/system/wait_dropper.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr TensorMemory::PoolId kPool{0, 1};
constexpr TensorMemory::PoolId kOtherPool{0, 2};

struct Simulated {
  sim::SimDevice device{sim::SimOptions{.schedule = sim::lazy(), .granule = 2 * kMiB}};
};

/// A simulated device whose streams may be said to be captured. As with CUDA, the host cannot wait
/// for a captured stream, nor for the device as long as there is one; an event that is recorded on
/// one could not be waited for later.
class CapturingDevice final : private Simulated, public WaitDropper {
 public:
  CapturingDevice() : WaitDropper(Simulated::device) {}
  std::set<StreamHandle>& captured = Simulated::device.captured;
  mutable int refused = 0;  ///< also where the heap goes on

  std::uint64_t identity(StreamHandle stream) override {
    return Simulated::device.identity(stream);
  }
  void drain() override {
    if (!captured.empty()) throw std::logic_error("the host waits during a capture");
    Simulated::device.drain();
  }
  bool idle(StreamHandle stream) override {
    refuse(stream);
    return Simulated::device.idle(stream);
  }
  void record(StreamHandle stream, EventHandle event) override {
    refuse(stream);
    WaitDropper::record(stream, event);
  }
  void wait(StreamHandle stream, EventHandle event) override {
    refuse(stream);
    WaitDropper::wait(stream, event);
  }
  void synchronize(StreamHandle stream) override {
    refuse(stream);
    WaitDropper::synchronize(stream);
  }

 private:
  void refuse(StreamHandle stream) const {
    if (!captured.contains(stream)) return;
    ++refused;
    throw std::logic_error("a call for a captured stream");
  }
};

struct Library {
  Library() : Library(std::make_unique<CapturingDevice>()) {}
  explicit Library(std::unique_ptr<CapturingDevice> made)
      : device(*made), open(std::move(made), nullptr), memory(open) {
    for (int i = 0; i < 3; ++i) streams.push_back(device.create_stream());
    memory.enter(streams[0]);
  }
  ~Library() { EXPECT_EQ(device.refused, 0); }
  void begin(TensorMemory::PoolId pool, const std::vector<StreamHandle>& captured) {
    memory.begin_capture(pool);
    device.captured.insert(captured.begin(), captured.end());
    memory.enter(captured[0]);
  }
  void end(bool failed = false) {
    device.captured.clear();
    memory.end_capture(failed);
    memory.enter(streams[0]);
  }
  std::size_t mapped() { return open.heap().statistics().mapped_bytes; }
  /// More blocks than there is free memory for.
  std::vector<std::byte*> fill(StreamHandle stream, std::size_t bytes) {
    std::vector<std::byte*> made;
    for (std::size_t left = mapped() + 4 * kMiB; left >= bytes; left -= bytes)
      made.push_back(memory.allocate(bytes, stream));
    return made;
  }

  CapturingDevice& device;
  OpenDevice open;
  TensorMemory memory;
  std::vector<StreamHandle> streams;
};

bool has(const std::vector<std::byte*>& blocks, const std::byte* address) {
  return std::ranges::find(blocks, address) != blocks.end();
}

class Sizes : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Captures, Sizes, ::testing::Values(20'000, 300'000, 3 * kMiB),
                         ::testing::PrintToStringParamName());

TEST_P(Sizes, WhatIsFreedIsHandedOutAgainInTheCaptureAlone) {
  Library library;
  const StreamHandle stream = library.streams[1];
  library.memory.release(library.memory.allocate(GetParam(), stream));
  library.begin(kPool, {stream});
  std::byte* const first = library.memory.allocate(GetParam(), stream);
  library.memory.release(first);
  EXPECT_EQ(library.memory.allocate(GetParam(), stream), first);
  library.memory.release(first);
  EXPECT_FALSE(has(library.fill(library.streams[0], GetParam()), first));
  library.end();
  for (const StreamHandle each : library.streams)
    EXPECT_FALSE(has(library.fill(each, GetParam()), first));
  library.memory.trim();

  library.begin(kOtherPool, {stream});
  EXPECT_FALSE(has(library.fill(stream, GetParam()), first));
  library.end();
  library.begin(kPool, {stream});
  EXPECT_EQ(library.memory.allocate(GetParam(), stream), first);
  library.end();
  library.open.heap().verify();
}

TEST_P(Sizes, MemoryIsFreeWhenTheLastGraphIsGone) {
  Library library;
  for (int graph = 0; graph < 2; ++graph) {
    library.begin(kPool, {library.streams[1], library.streams[2]});
    for (std::byte* const at : library.fill(library.streams[1 + graph], GetParam()))
      library.memory.release(at);
    library.end();
  }
  library.memory.release_pool(kPool);
  library.memory.trim();
  EXPECT_GE(library.mapped(), 4 * kMiB);
  library.memory.release_pool(kPool);
  library.memory.trim();
  EXPECT_EQ(library.mapped(), 0U);
  library.memory.release_pool(kPool);  // nothing is left to release
  library.open.heap().verify();
}

TEST_P(Sizes, WhatIsHeldOutlivesItsGraph) {
  Library library;
  library.begin(kPool, {library.streams[1]});
  std::byte* const held = library.memory.allocate(GetParam(), library.streams[1]);
  library.end();
  library.memory.release_pool(kPool);
  EXPECT_FALSE(has(library.fill(library.streams[0], GetParam()), held));
  EXPECT_TRUE(library.memory.holds(held));
  // The graph of the same pool that follows has other memory.
  library.begin(kPool, {library.streams[1]});
  EXPECT_FALSE(has(library.fill(library.streams[1], GetParam()), held));
  library.memory.release(held);
  EXPECT_FALSE(has(library.fill(library.streams[1], GetParam()), held));
  library.end();
  library.open.heap().verify();
}

TEST_P(Sizes, WhatAnotherCapturedStreamMayUseIsNotHandedOutInTheCapture) {
  Library library;
  const StreamHandle first = library.streams[1];
  const StreamHandle second = library.streams[2];
  library.memory.mark(second);
  library.begin(kPool, {first, second});
  std::byte* const used = library.memory.allocate(GetParam(), first);
  library.memory.mark(second);  // it is made to wait
  library.memory.release(used);
  for (const StreamHandle stream : {first, second})
    EXPECT_FALSE(has(library.fill(stream, GetParam()), used));
  // A stream that is not captured does not count, whatever it does.
  std::byte* const other = library.memory.allocate(GetParam(), first);
  library.memory.mark(library.streams[0]);
  library.memory.release(other);
  EXPECT_EQ(library.memory.allocate(GetParam(), first), other);
  library.end();
}

TEST_P(Sizes, FreesOfOtherMemoryArePutOff) {
  Library library;
  const StreamHandle captured = library.streams[1];
  const StreamHandle beside = library.streams[2];
  std::byte* const before = library.memory.allocate(GetParam(), captured);
  library.begin(kPool, {captured});
  library.memory.mark(captured);
  library.memory.mark(beside);
  library.memory.release(before);
  EXPECT_FALSE(library.memory.holds(before));
  EXPECT_FALSE(has(library.fill(captured, GetParam()), before));
  EXPECT_FALSE(has(library.fill(beside, GetParam()), before));
  library.memory.trim();  // cannot wait now
  const std::size_t live = library.open.heap().statistics().live_bytes;
  library.end();
  EXPECT_EQ(library.open.heap().statistics().live_bytes, live - rounded_bytes(GetParam()));
  library.memory.trim();
  library.open.heap().verify();
}

/// A graph that was launched last runs as long as it likes; so does work before a capture.
TEST(Captures, TheHostWaitsBeforeMemoryChangesHands) {
  Library library;
  int done = 0;
  const auto launch = [&] {
    library.device.launch(library.streams[2], {"graph", [&](StreamHandle) { ++done; }}, {});
  };
  launch();
  library.begin(kPool, {library.streams[1]});
  EXPECT_EQ(done, 1);
  library.memory.release(library.memory.allocate(kMiB, library.streams[1]));
  library.end();
  launch();
  EXPECT_EQ(done, 1);
  library.memory.release_pool(kPool);
  EXPECT_EQ(done, 2);
}

/// The last graph of a pool is destroyed while another pool's is captured.
TEST(Captures, APoolThatIsReleasedInACaptureIsFreeAfterIt) {
  Library library;
  library.begin(kPool, {library.streams[1]});
  std::byte* const first = library.memory.allocate(3 * kMiB, library.streams[1]);
  library.memory.release(first);
  library.end();
  library.begin(kOtherPool, {library.streams[1]});
  library.memory.release_pool(kPool);
  EXPECT_FALSE(has(library.fill(library.streams[1], 3 * kMiB), first));
  library.end();
  EXPECT_TRUE(has(library.fill(library.streams[0], 3 * kMiB), first));
}

TEST(Captures, GraphsComeAndGo) {
  Library library;
  for (unsigned graph = 0; graph < 200; ++graph) {
    library.begin({0, graph}, {library.streams[1], library.streams[2]});
    for (const std::size_t stream : {1, 2})
      library.memory.release(library.memory.allocate(kMiB, library.streams[stream]));
    library.end(graph % 3 == 0);
    if (graph % 3 != 0) library.memory.release_pool({0, graph});
  }
  library.memory.trim();
  EXPECT_EQ(library.mapped(), 0U);
}

/// Of the 64 streams each pool needs two.
TEST(Captures, TooManyPoolsAreRefused) {
  Library library;
  unsigned pools = 0;
  std::vector<std::byte*> held;
  std::optional<std::string> refused;
  while (!refused) {
    try {
      library.begin({0, ++pools}, {library.streams[1]});
      held.push_back(library.memory.allocate(kMiB, library.streams[1]));
    } catch (const UsageError& error) {
      refused = error.what();
    }
    library.end(refused.has_value());
  }
  EXPECT_GE(pools, 20U);
  EXPECT_NE(refused->find("64 streams exist"), std::string::npos) << *refused;
  while (--pools > 0) library.memory.release_pool({0, pools});
  for (std::byte* const at : held) library.memory.release(at);
  library.begin(kPool, {library.streams[1]});
  library.end();
}

TEST(Captures, OneAtATime) {
  Library library;
  library.begin(kPool, {library.streams[1]});
  EXPECT_THROW(library.memory.begin_capture(kOtherPool), UsageError);
  library.end();
  library.memory.end_capture();  // there is none
}

/// Graphs that are captured, run and dropped among other work: nobody has memory of a graph, and a
/// stream's blocks of a capture never overlap while they are held.
void random_program(std::uint64_t seed) {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  };
  struct Graph {
    TensorMemory::PoolId pool;
    std::vector<Range> uses;
    std::vector<std::byte*> held;
  };
  Library library;
  std::mt19937_64 random(seed);
  const auto choose = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Graph> graphs;
  std::vector<std::pair<std::byte*, Range>> live;
  const auto allocate = [&](StreamHandle stream) {
    const std::size_t bytes = std::size_t{256} << choose(15);
    std::byte* const at = library.memory.allocate(bytes, stream);
    return std::pair(at, Range{at, at + bytes});
  };
  const auto check = [&](const Range& range) {
    for (const Graph& graph : graphs)
      for (const Range& use : graph.uses) ASSERT_FALSE(use.overlaps(range));
  };
  const auto release_any = [&](auto& from, auto address) {
    const std::size_t which = choose(from.size());
    library.memory.release(address(from[which]));
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
  };
  const auto capture = [&] {
    Graph graph{{0, choose(3)}, {}, {}};
    std::vector<std::pair<std::byte*, Range>> inside;
    library.begin(graph.pool, {library.streams[1], library.streams[2]});
    for (std::size_t steps = choose(20); steps > 0; --steps) {
      if (choose(3) == 0) library.memory.mark(library.streams[choose(3)]);
      if (!live.empty() && choose(4) == 0) release_any(live, [](auto& one) { return one.first; });
      if (!inside.empty() && choose(2) == 0)
        release_any(inside, [](auto& one) { return one.first; });
      if (choose(4) == 0) {
        live.push_back(allocate(library.streams[0]));
        check(live.back().second);
      }
      const auto made = allocate(library.streams[1 + choose(2)]);
      for (const auto& [at, range] : inside) ASSERT_FALSE(range.overlaps(made.second));
      for (const auto& [at, range] : live) ASSERT_FALSE(range.overlaps(made.second));
      inside.push_back(made);
      graph.uses.push_back(made.second);
    }
    const bool failed = choose(4) == 0;
    library.end(failed);
    for (const auto& [at, range] : inside) graph.held.push_back(at);
    if (failed)
      for (std::byte* const at : graph.held) library.memory.release(at);
    else
      graphs.push_back(std::move(graph));
  };
  for (int step = 0; step < 200; ++step) {
    switch (choose(6)) {
      case 0: capture(); break;
      case 1: {
        if (graphs.empty()) break;
        const std::size_t which = choose(graphs.size());
        const Graph gone = graphs[which];
        graphs.erase(graphs.begin() + static_cast<std::ptrdiff_t>(which));
        library.memory.release_pool(gone.pool);
        for (std::byte* const at : gone.held) library.memory.release(at);
        break;
      }
      case 2:
        if (!live.empty()) release_any(live, [](auto& one) { return one.first; });
        break;
      case 3: library.memory.trim(); break;
      default: live.push_back(allocate(library.streams[choose(3)])); check(live.back().second);
    }
  }
  for (const Graph& graph : graphs) {
    library.memory.release_pool(graph.pool);
    for (std::byte* const at : graph.held) library.memory.release(at);
  }
  for (const auto& [at, range] : live) library.memory.release(at);
  library.memory.trim();
  EXPECT_EQ(library.mapped(), 0U);
  library.open.heap().verify();
}

TEST(Captures, RandomProgramsKeepTheMemoryOfGraphsApart) {
  for (std::uint64_t seed = 0; seed < 15; ++seed) {
    random_program(seed);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace segfuse::runtime
