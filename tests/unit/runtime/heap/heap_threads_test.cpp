// Many threads on one heap; run under the thread sanitizer too (property 14).

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "support/sim/sim_device.h"
#include "unit/runtime/heap/heap_program.h"

namespace segfuse::runtime {
namespace {

struct Machine {
  explicit Machine(HeapOptions options = {})
      : device({.schedule = nullptr, .granule = 4096, .limit = std::size_t{64} << 20}),
        heap(device, timeline, options),
        executor(timeline) {}
  sim::SimDevice device;
  Timeline timeline;
  Heap heap;
  Executor executor;
};

Work check(const Buffer& buffer, std::uint64_t expected, std::atomic<int>& wrong) {
  return {"check", [at = buffer.address(), expected, &wrong](StreamHandle) {
            if (*reinterpret_cast<const std::uint64_t*>(at) != expected) ++wrong;
          }};
}
Work put(const Buffer& buffer, std::uint64_t value) {
  return {"put", [at = buffer.address(), bytes = buffer.bytes(), value](StreamHandle) {
            std::fill_n(reinterpret_cast<std::uint64_t*>(at), bytes / 8, value);
          }};
}

TEST(HeapThreads, EachOnItsStream) {
  Machine machine;
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&machine, &wrong, t] {
        const StreamId stream = machine.timeline.create(machine.device);
        std::mt19937 random(t);
        for (std::uint64_t i = 0; i < 300; ++i) {
          const std::size_t bytes = 8 * (1 + random() % (1U << (random() % 15)));
          const Buffer buffer = machine.heap.allocate(bytes, stream);
          machine.executor.launch(stream, put(buffer, i), {writes(buffer)});
          machine.executor.launch(stream, check(buffer, i, wrong), {reads(buffer)});
        }
        machine.timeline.synchronize(stream);
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  machine.heap.verify();
  EXPECT_EQ(machine.heap.statistics().live_blocks, 0U);
}

// Buffers made by one thread are read and dropped by others, on other streams.
TEST(HeapThreads, HandedFromThreadToThread) {
  HeapOptions options;
  options.soft_limit = std::size_t{1} << 20;
  Machine machine(options);
  std::atomic<int> wrong{0};
  struct Item {
    Buffer buffer;
    std::uint64_t value = 0;
  };
  std::mutex mutex;
  std::vector<Item> items;
  std::atomic<int> producing{2};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        const StreamId stream = machine.timeline.create(machine.device);
        std::mt19937 random(t);
        for (std::uint64_t i = 1; i <= 200; ++i) {
          Item item{machine.heap.allocate(8 * (1 + random() % 20'000), stream), i};
          machine.executor.launch(stream, put(item.buffer, i), {writes(item.buffer)});
          const std::lock_guard lock(mutex);
          items.push_back(std::move(item));
        }
        --producing;
      });
    }
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        const StreamId stream = machine.timeline.create(machine.device);
        for (;;) {
          Item item;
          {
            const std::lock_guard lock(mutex);
            if (!items.empty()) {
              item = std::move(items.back());
              items.pop_back();
            } else if (producing == 0) {
              break;
            }
          }
          if (!item.buffer) {
            std::this_thread::yield();
            continue;
          }
          machine.executor.launch(stream, check(item.buffer, item.value, wrong),
                                  {reads(item.buffer)});
        }
        machine.timeline.synchronize(stream);
      });
    }
    threads.emplace_back([&] {
      while (producing > 0) {
        machine.heap.trim();
        (void)machine.heap.snapshot();
        machine.timeline.poll();
        std::this_thread::yield();
      }
    });
  }
  EXPECT_EQ(wrong, 0);
  machine.heap.verify();
  EXPECT_EQ(machine.heap.statistics().live_blocks, 0U);
  machine.heap.trim();
}

TEST(HeapThreads, OneStreamSharedByAll) {
  Machine machine;
  std::atomic<int> wrong{0};
  const StreamId stream = machine.timeline.create(machine.device);
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::uint64_t i = 0; i < 200; ++i) {
          const Buffer buffer = machine.heap.allocate(1000, stream);
          machine.executor.launch(stream, put(buffer, i), {writes(buffer)});
          machine.executor.launch(stream, check(buffer, i, wrong), {reads(buffer)});
        }
      });
    }
  }
  machine.timeline.synchronize(stream);
  EXPECT_EQ(wrong, 0);
}

// Random programs once more, on a device whose streams are threads.
TEST(HeapThreads, RandomProgramsOnThreads) {
  for (std::uint64_t seed = 500; seed < 540; ++seed) {
    SCOPED_TRACE(seed);
    sim::SimDevice device({.schedule = nullptr, .granule = 4096, .limit = std::size_t{64} << 20});
    RunOptions options;
    options.verify = false;
    options.heap.soft_limit = seed % 2 == 0 ? 0 : 16384;
    Runner runner(device, device.base(), options);
    runner.run(random_program(seed, {}));
    runner.finish();
    EXPECT_EQ(runner.wrong_words(), 0U);
    EXPECT_EQ(device.mapped(), 0U);
  }
}

}  // namespace
}  // namespace segfuse::runtime
