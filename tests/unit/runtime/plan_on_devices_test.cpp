// Plans of copies and fills on every device, step by step and as one piece of work.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/plan_runner.h"
#include "support/random/random_plan.h"
#include "unit/runtime/device_harness.h"

namespace segfuse::runtime {
namespace {

/// Scratch and outputs are filled, then copies go back and forth.
plan::Plan copies_and_fills(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  plan::Plan plan{"copies", {}, {}, {}};
  using Kind = plan::BufferSpec::Kind;
  for (std::uint32_t b = 0; b < 8; ++b)
    plan.buffers.push_back({b < 3 ? Kind::kOutput : Kind::kScratch, std::to_string(b), 4096});
  for (std::uint32_t b = 0; b < 8; ++b)
    plan.steps.push_back(
        {plan::Step::Kind::kFill, "fill", 0, static_cast<std::uint8_t>(b + 1), {}, {{b}}});
  for (int i = 0; i < 40; ++i) {
    const std::uint32_t from = below(8);
    const std::uint32_t to = below(8);
    if (from == to) continue;
    if (below(5) == 0)
      plan.steps.push_back(
          {plan::Step::Kind::kFill, "fill", 0, static_cast<std::uint8_t>(below(256)), {}, {{to}}});
    else
      plan.steps.push_back({plan::Step::Kind::kCopy, "copy", 0, 0, {{from}}, {{to}}});
  }
  return plan;
}

std::vector<std::uint8_t> in_order(const plan::Plan& plan) {
  std::vector<std::uint8_t> values(plan.buffers.size(), 0);
  for (const plan::Step& step : plan.steps)
    values[step.writes[0].index] =
        step.kind == plan::Step::Kind::kFill ? step.value : values[step.reads[0].index];
  return values;
}

class PlanOnDevices : public Conformance {
 protected:
  // Three runs, each after the outputs were overwritten.
  void expect_right(std::uint64_t seed, bool frozen) {
    const plan::Plan plan = copies_and_fills(seed);
    const std::vector<std::uint8_t> expected = in_order(plan);
    Timeline timeline;
    const std::size_t most = std::min(device().memory().total, std::size_t{64} << 20);
    Heap heap(device(), timeline, {.hard_limit = most});
    Executor executor(timeline);
    std::vector<StreamId> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(timeline.create(device()));
    PlanRunner runner(plan, {}, heap, executor, streams);
    std::vector<Buffer> outputs;
    for (int i = 0; i < 3; ++i) outputs.push_back(heap.allocate(4096, streams[2]));
    FrozenPlan one;
    if (frozen) one = runner.freeze(outputs);
    EXPECT_EQ(frozen && GetParam().name == "cuda", one.is_one_launch());
    for (int run = 0; run < 3; ++run) {
      for (const Buffer& output : outputs) executor.fill(streams[1], output, 0xEE);
      frozen ? one.run() : runner.run(outputs);
      for (std::size_t i = 0; i < 3; ++i) {
        executor.wait_written(outputs[i]);
        for (const int value : harness().read(outputs[i].address(), 4096))
          ASSERT_EQ(value, expected[i]) << "buffer " << i << " seed " << seed;
      }
    }
  }
};

TEST_P(PlanOnDevices, StepByStep) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) expect_right(seed, false);
}

TEST_P(PlanOnDevices, Frozen) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) expect_right(seed, true);
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanOnDevices, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace segfuse::runtime
