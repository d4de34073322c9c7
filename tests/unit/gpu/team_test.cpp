// Passes that several blocks share, which wait for each other at every boundary.

#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

/// Lanes that do not fit beside each other: the passes go to teams of blocks.
CudaOptions wide_passes() {
  CudaOptions options;
  options.lanes_per_class = 32;
  return options;
}

template <class T>
void expect_loss_is_the_cpus(const runtime::DeviceAccess& gpu, const CudaOptions& options,
                             const Problem<T>& p, Rng& rng) {
  const Segmentations gold = random_gold(p, rng);
  const std::vector<double> weights(static_cast<std::size_t>(p.B), 0.7);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
  const Results mine = device_loss(gpu, engine, p, gold, weights);
  const Results host = host_loss(p, gold, weights, Algorithm::kFast);
  expect_same(mine, host, sizeof(T) == 4 ? 1e-6 : 1e-10, static_cast<double>(p.T_));
}

TEST_P(GpuSemiCrf, WidePassesAreTheCpus) {
  Rng rng(41);
  for (const std::int64_t K : {1, 2, 40}) {
    for (const Draw& draw : {Draw(gaussian), Draw(holes)}) {
      auto p = random_problem<double>(2, 15, K, 33, false, draw, rng);
      p.lengths = {15, 9};
      if (K == 2) p.with_start = p.with_end = false;
      SCOPED_TRACE(K);
      expect_loss_is_the_cpus(gpu, wide_passes(), p, rng);
    }
  }
}

/// Scores at the range's ends and out of it; rows of no frames.
TEST_P(GpuSemiCrf, WidePassesInAndOutOfRange) {
  Rng rng(42);
  for (const Draw& draw : {Draw(wide), Draw(extreme)}) {
    auto p = random_problem<double>(3, 30, 6, 33, false, draw, rng);
    p.lengths = {30, 0, 1};
    const Segmentations gold = random_gold(p, rng);
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, wide_passes());
    const Results mine = device_loss(gpu, engine, p, gold, {});
    const Results host = host_loss(p, gold, {}, Algorithm::kFast);
    ASSERT_EQ(mine.status, host.status);
    for (std::size_t b = 0; b < 3; ++b)
      ASSERT_LT(relative(mine.log_partition[b], host.log_partition[b]), 1e-12) << b;
  }
  // Emissions fall far enough for pending sums to absorb their factors often.
  auto p = random_problem<double>(1, 60, 30, 33, false, gaussian, rng);
  for (double& e : p.emission) e *= 8.0;
  expect_loss_is_the_cpus(gpu, wide_passes(), p, rng);
}

TEST_P(GpuSemiCrf, BlocksOfATeamDoNotShowInTheBits) {
  if (is_device()) GTEST_SKIP() << "a device has as many multiprocessors as it has";
  Rng rng(43);
  auto p = random_problem<double>(1, 9, 1200, 33, false, gaussian, rng);
  const Segmentations gold = random_gold(p, rng);
  std::vector<Results> found;
  for (const int multiprocessors : {1, 4, 10}) {
    const auto emulator = segfuse::testing::make_gpu_emulator(multiprocessors);
    CudaEngine engine = OverDevice::make<CudaEngine>(emulator, wide_passes());
    found.push_back(device_loss(emulator, engine, p, gold, {}));
    ASSERT_EQ(found.back().log_partition, found[0].log_partition);
    ASSERT_EQ(found.back().gradients, found[0].gradients);
  }
  expect_same(found[0], host_loss(p, gold, {}, Algorithm::kFast), 1e-10, 9.0);
}

TEST_P(GpuSemiCrf, TeamsByDurationAreThePlainRecursion) {
  if (is_device()) GTEST_SKIP() << "a device has as many multiprocessors as it has";
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "too long for the emulator under a sanitizer";
#endif
  Rng rng(44);
  // The second has more classes than lanes and windows that fit shared memory in some
  // teams only.
  for (const std::int64_t C : {12, 35}) {
    auto p =
        random_problem<double>(1, C == 12 ? 25 : 4, C == 12 ? 30 : 180, C, true, gaussian, rng);
    if (C == 12)
      for (double& x : p.transition) x *= 60.0;  // some sums are formed from logarithms
    const Segmentations gold = random_gold(p, rng);
    const Results host = host_loss(p, gold, {}, Algorithm::kReference);
    std::vector<Results> found;
    for (const int multiprocessors : {1, 17}) {
      const auto emulator = segfuse::testing::make_gpu_emulator(multiprocessors);
      CudaEngine engine = OverDevice::make<CudaEngine>(emulator);
      found.push_back(device_loss(emulator, engine, p, gold, {}));
      ASSERT_EQ(found.back().log_partition, found[0].log_partition);
      for (std::size_t i = 0; i < host.gradients.size(); ++i)
        ASSERT_EQ(found.back().gradients[i], found[0].gradients[i])
            << "gradient " << i << " of " << host.gradients.size() << ", " << multiprocessors;
    }
    expect_same(found[0], host, 1e-10, 40.0);
    CudaOptions alone;
    alone.teams = false;
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, alone);
    expect_same(device_loss(gpu, engine, p, gold, {}), host, 1e-10, 40.0);
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
