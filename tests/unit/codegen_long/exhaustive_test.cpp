// All 2^32 floats through the prelude's elementary functions.

#include <gtest/gtest.h>

#include <bit>
#include <mutex>

#include "base/thread_pool.h"
#include "support/c/compiled_c.h"
#include "support/c/prelude_functions.h"
#include "support/elementary.h"

namespace segfuse::test {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

/// The worst error over the floats with these upper 16 bits.
double worst_in_block(PreludeLoop* loop, double (*exact)(double), std::int64_t block) {
  std::vector<float> x(kBlock), y(kBlock);
  for (std::int64_t i = 0; i < kBlock; ++i)
    x[static_cast<std::size_t>(i)] =
        std::bit_cast<float>(static_cast<std::uint32_t>(block << 16 | i));
  loop(x.data(), nullptr, y.data(), kBlock);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], exact(static_cast<double>(x[i]))));
  return worst;
}

class AllFloats : public ::testing::TestWithParam<Elementary<double>> {};

TEST_P(AllFloats, AreWithinTheDocumentedBound) {
  const auto& [op, exact] = GetParam();
  const PreludeFunction function{op, "f32", "f32", 1};
  const CompiledC library(with_prelude(prelude_loop(function)), "-O2 -march=native");
  PreludeLoop* const loop = library.get<PreludeLoop>("run_" + function.name());
  std::mutex mutex;
  double worst = 0;
  ThreadPool().run(1 << 16, [&](std::int64_t block) {
    const double found = worst_in_block(loop, exact, block);
    const std::lock_guard lock(mutex);
    worst = std::max(worst, found);
  });
  EXPECT_LE(worst, documented_bounds().at(function.name()));
  RecordProperty(op, std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Prelude, AllFloats, ::testing::ValuesIn(elementary_functions<double>()),
                         [](const auto& one) { return one.param.op; });

}  // namespace
}  // namespace segfuse::test
