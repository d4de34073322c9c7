// The heap on every device there is: contents are right, what is dropped goes back, limits hold
// (design 4.5: properties 2, 6, 8, 9, 16 and the story, on a GPU too).

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "unit/runtime/device_harness.h"

namespace segfuse::runtime {
namespace {

class HeapOnDevices : public Conformance {
 protected:
  std::size_t room() { return std::min(device().memory().total, std::size_t{96} << 20); }
};

/// Bytes that were copied to pinned memory, and what they should be.
struct Read {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::uint8_t value = 0;
};

class Program {
 public:
  Program(Device& device, std::size_t room, std::uint64_t seed)
      : device_(device),
        most_(room / 12),
        heap_(device, timeline_,
              {.hard_limit = room / 2, .soft_limit = static_cast<std::size_t>(seed % 2)}),
        executor_(timeline_),
        random_(seed),
        pinned_(device.allocate_pinned(kPinned)) {
    for (StreamId& stream : streams_) stream = timeline_.create(device);
  }
  ~Program() { device_.release_pinned(pinned_, kPinned); }

  void step() {
    Slot& slot = slots_[below(slots_.size())];
    const StreamId stream = streams_[below(streams_.size())];
    switch (below(8)) {
      case 0:
      case 1: {
        slot = {heap_.allocate(64 + below(most_ >> below(10)), stream), 0, false};
        break;
      }
      case 2:
      case 3:
        if (!slot.buffer) break;
        slot.value = static_cast<std::uint8_t>(1 + below(255));
        slot.written = true;
        executor_.fill(stream, slot.buffer, slot.value);
        break;
      case 4: {
        const Slot& from = slots_[below(slots_.size())];
        if (!slot.buffer || !from.written || from.buffer.same_memory(slot.buffer) ||
            from.buffer.bytes() < slot.buffer.bytes())
          break;
        executor_.copy(stream, slot.buffer, 0, from.buffer, 0, slot.buffer.bytes());
        slot.value = from.value;
        slot.written = true;
        break;
      }
      case 5:
      case 6: read(slot, stream); break;
      default: slot = {};
    }
    if (below(40) == 0) heap_.trim();
    if (below(30) == 0) timeline_.synchronize(stream);
  }

  void finish() {
    for (Slot& slot : slots_) slot = {};
    for (const StreamId stream : streams_) timeline_.synchronize(stream);
    std::size_t wrong = 0;
    std::size_t seen = 0;
    for (const Read& read : reads_) {
      seen += read.bytes;
      for (std::size_t i = 0; i < read.bytes; ++i)
        wrong += std::to_integer<std::uint8_t>(pinned_[read.offset + i]) != read.value ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0U) << "of " << seen << " bytes";
    EXPECT_GT(seen, 1000U);
    EXPECT_LE(heap_.statistics().peak_mapped_bytes, 2 * most_ * 12);
    heap_.verify();
    heap_.trim();
    EXPECT_EQ(heap_.statistics().mapped_bytes, 0U);
  }

 private:
  static constexpr std::size_t kPinned = std::size_t{512} << 10;
  struct Slot {
    Buffer buffer;
    std::uint8_t value = 0;
    bool written = false;
  };

  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }

  // The head of the buffer goes to pinned memory, by a copy that the executor does not see.
  void read(const Slot& slot, StreamId stream) {
    const std::size_t bytes = std::min<std::size_t>(slot.buffer.bytes(), 4096);
    if (!slot.written || used_ + bytes > kPinned) return;
    const Borrow loan = slot.buffer.borrow(timeline_, stream);
    const std::size_t tail = slot.buffer.bytes() - bytes;  // written last
    device_.copy(timeline_.handle(stream), pinned_ + used_, loan.address() + tail, bytes);
    reads_.push_back({used_, bytes, slot.value});
    used_ += bytes;
  }

  Device& device_;
  std::size_t most_;
  Timeline timeline_;
  Heap heap_;
  Executor executor_;
  std::mt19937_64 random_;
  std::byte* pinned_;
  std::size_t used_ = 0;
  std::array<StreamId, 4> streams_;
  std::array<Slot, 8> slots_;
  std::vector<Read> reads_;
};

TEST_P(HeapOnDevices, ContentsAreRightAndAllGoesBack) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Program program(device(), room(), seed);
    for (int step = 0; step < 400; ++step) {
      try {
        program.step();
      } catch (const OutOfDeviceMemory&) {
        // Eight large buffers may be more than half the room.
      }
    }
    program.finish();
  }
}

TEST_P(HeapOnDevices, AHitMakesNoCallAndGivesTheSameAddress) {
  Timeline timeline;
  Heap heap(device(), timeline, {.hard_limit = room()});
  const StreamId stream = timeline.create(device());
  Executor executor(timeline);
  const std::byte* address = nullptr;
  {
    const Buffer buffer = heap.allocate(1000, stream);
    executor.fill(stream, buffer, 1);
    address = buffer.address();
  }
  const TimelineCounts before = timeline.counts();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(heap.allocate(1000, stream).address(), address);
  const TimelineCounts after = timeline.counts();
  EXPECT_EQ(after.records, before.records);
  EXPECT_EQ(after.waits, before.waits);
}

// Indices that another stream still reads are dropped, and their memory is requested again.
TEST_P(HeapOnDevices, TheStory) {
  Timeline timeline;
  Heap heap(device(), timeline, {.hard_limit = room(), .soft_limit = 1});
  Executor executor(timeline);
  const StreamId prepare = timeline.create(device());
  const StreamId compute = timeline.create(device());
  const std::size_t bytes = room() / 8;
  constexpr int kSteps = 50;
  std::byte* const pinned = device().allocate_pinned(4096 * kSteps);
  const Buffer table = heap.allocate(bytes, compute);
  int reused = 0;
  const std::byte* last = nullptr;
  for (int step = 0; step < kSteps; ++step) {
    const Buffer indices = heap.allocate(bytes, prepare, "indices");
    reused += indices.address() == last ? 1 : 0;
    last = indices.address();
    executor.fill(prepare, indices, static_cast<std::uint8_t>(step + 1));
    executor.copy(compute, table, 0, indices, 0, bytes);
    const Borrow loan = table.borrow(timeline, compute);
    device().copy(timeline.handle(compute), pinned + 4096 * step, loan.address() + bytes - 4096,
                  4096);
  }
  timeline.synchronize(compute);
  timeline.synchronize(prepare);
  EXPECT_GT(reused, kSteps / 2) << "the memory was not asked for again";
  for (int step = 0; step < kSteps; ++step)
    for (int i = 0; i < 4096; ++i)
      ASSERT_EQ(std::to_integer<int>(pinned[4096 * step + i]), step + 1) << "step " << step;
  device().release_pinned(pinned, 4096 * kSteps);
}

INSTANTIATE_TEST_SUITE_P(Devices, HeapOnDevices, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace segfuse::runtime
