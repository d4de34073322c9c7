#pragma once
// A heap on a simulated device that has done something of everything.

#include <random>
#include <vector>

#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "support/sim/sim_device.h"

namespace segfuse::doctor {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

struct SomeHeap {
  explicit SomeHeap(std::size_t history = 100'000, std::uint64_t seed = 1)
      : device({.schedule = runtime::sim::lazy(), .granule = 4096, .limit = 64 * kMiB}),
        heap(device, timeline, {.hard_limit = 16 * kMiB}),
        executor(timeline),
        a(timeline.create(device, "compute")),
        b(timeline.create(device, "copy")),
        random(seed) {
    heap.keep_history(history);
  }
  void work(int steps) {
    static constexpr std::array<const char*, 4> kLabels = {"weights", "hidden \"x\" <&>", "", "é"};
    for (int i = 0; i < steps; ++i) {
      const runtime::StreamId on = random() % 2 == 0 ? a : b;
      const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 2 * kMiB : 20'000);
      if (held.size() > 12 || random() % 3 == 0) {
        if (!held.empty())
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
        continue;
      }
      held.push_back(heap.allocate(bytes, on, kLabels[random() % kLabels.size()]));
      executor.launch(on, {"write", {}}, {writes(held.back())});
      executor.launch(random() % 2 == 0 ? a : b, {"read", {}}, {reads(held.back())});
      if (random() % 40 == 0) timeline.synchronize(a);
      if (random() % 60 == 0) heap.trim();
    }
  }

  runtime::sim::SimDevice device;
  runtime::Timeline timeline;
  runtime::Heap heap;
  runtime::Executor executor;
  runtime::StreamId a, b;
  std::mt19937_64 random;
  std::vector<runtime::Buffer> held;
};

}  // namespace segfuse::doctor
