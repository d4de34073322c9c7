// The heap and the executor under the race checker, which computes order from the device calls
// alone (design 4.5, properties 3 and 5).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/check/race_checker.h"
#include "support/system/wait_dropper.h"
#include "unit/runtime/heap/heap_program.h"

namespace segfuse::runtime {
namespace {

struct Checked {
  explicit Checked(RunOptions options)
      : device({.schedule = sim::lazy(), .granule = 4096, .limit = std::size_t{64} << 20}),
        checker(device),
        dropper(checker),
        runner(dropper, device.base(), std::move(options)) {}
  sim::SimDevice device;
  RaceChecker checker;
  WaitDropper dropper;
  Runner runner;
};

RunOptions tight(std::uint64_t seed) {
  RunOptions options;
  options.verify = false;
  options.heap.soft_limit = seed % 3 == 0 ? 0 : 16384;
  options.heap.magazine_bytes = seed % 4 == 0 ? 0 : std::size_t{8} << 20;
  return options;
}

TEST(HeapRaces, Test03EveryUseIsOrderedAfterFormerHolders) {
  std::uint64_t waits = 0;
  for (std::uint64_t seed = 600; seed < 800; ++seed) {
    Checked checked(tight(seed));
    ProgramShape shape;
    shape.steps = 120;
    checked.runner.run(random_program(seed, shape));
    checked.runner.finish();
    waits += checked.dropper.waits();
    for (const Finding& finding : checked.checker.findings())
      ADD_FAILURE() << "seed " << seed << ": " << finding.describe();
    if (HasFailure()) break;
  }
  EXPECT_GT(waits, 1000U);
}

// No wait could be left out: each is missed by the checker. What is handed out is written at once,
// so that waits for memory have a use behind them.
TEST(HeapRaces, Test05RemovingAnyOneWaitIsReported) {
  std::uint64_t waits = 0;
  for (std::uint64_t seed = 800; seed < 860; ++seed) {
    ProgramShape shape;
    shape.steps = 40;
    shape.use_at_once = true;
    shape.unseen = false;  // a loan may end unused
    shape.recreate = false;
    const Program program = random_program(seed, shape);
    std::uint64_t all = 0;
    {
      Checked checked(tight(seed));
      checked.runner.run(program);
      all = checked.dropper.waits();
    }
    waits += all;
    for (std::uint64_t k = 1; k <= all; ++k) {
      Checked checked(tight(seed));
      checked.dropper.drop(k);
      checked.runner.run(program);
      ASSERT_GT(checked.checker.count(), 0U)
          << "seed " << seed << ": wait " << k << " is not needed\n"
          << to_string(program);
    }
  }
  EXPECT_GT(waits, 200U);
}

}  // namespace
}  // namespace segfuse::runtime
