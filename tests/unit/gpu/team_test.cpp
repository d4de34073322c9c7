// Passes that several blocks share, which wait for each other at every boundary.

#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

/// Lanes that do not fit beside each other: the passes go to teams of blocks.
CudaOptions wide_passes() {
  CudaOptions options;
  options.lanes_per_class = 1024;
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

/// The only path is so unlikely at first that a change of the scale would make it nothing.
TEST_P(GpuSemiCrf, NoPathIsLostToTheScale) {
  Rng rng(48);
  constexpr double kBit = 0.69314718055994530942;
  auto p = random_problem<double>(1, 9, 8, 2, false, zero, rng);
  for (std::int64_t k = 0; k < 8; ++k) p.duration[2 * k] = p.duration[2 * k + 1] = -kInf;
  p.duration[0] = p.duration[2 * 7 + 1] = 0.0;  // segments of one frame, of eight frames
  p.transition = {0.0, 0.0, -kInf, -kInf};
  p.initial = {0.0, -kInf};
  p.emission[2 * 8] = -kInf;
  for (std::int64_t t = 4; t < 7; ++t) p.start[2 * t] = 130.0 * kBit;
  for (std::int64_t t = 2; t < 9; ++t) p.start[2 * t + 1] = -kInf;
  CudaOptions in_registers;
  in_registers.lanes_per_class = 4;
  for (const auto& [first, later] : {std::pair(-200.0, -105.0), std::pair(-150.0, -109.0)}) {
    for (std::int64_t t = 1; t < 8; ++t) p.emission[2 * t + 1] = (t < 4 ? first : later) * kBit;
    for (const CudaOptions& options : {wide_passes(), in_registers}) {
      SCOPED_TRACE(options.lanes_per_class);
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
      DeviceArrays device(gpu);
      const View<double, 1> values(device.space<double>(1), {1});
      engine.log_partition<double>(on_device(p, device), {values, {}});
      engine.check();
      EXPECT_NEAR(device.read(values.data(), 1)[0], (3 * first + 4 * later) * kBit, 1e-9);
    }
  }
}

/// Cut with warm-ups that do and do not reach, and rows that are done again in one piece.
TEST_P(GpuSemiCrf, WidePassesCutInTime) {
#ifdef __SANITIZE_ADDRESS__
  if (!is_device()) GTEST_SKIP() << "too long for the emulator under a sanitizer";
#endif
  Rng rng(47);
  for (const Draw& draw : {Draw(gaussian), Draw(holes), Draw(wide)}) {
    auto p = random_problem<double>(3, 130, 4, 3, false, draw, rng);
    p.lengths = {130, 0, 77};
    for (const std::int64_t warm_up : {4, 12, 32}) {
      SCOPED_TRACE(warm_up);
      CudaOptions options = wide_passes();
      options.warm_up = warm_up;
      expect_loss_is_the_cpus(gpu, options, p, rng);
    }
  }
  // Every segment has four frames: where a chunk begins is never forgotten.
  auto p = random_problem<double>(2, 160, 4, 3, false, gaussian, rng);
  for (std::int64_t i = 0; i < 9; ++i) p.duration[i] = -kInf;
  p.lengths = {160, 120};
  CudaOptions options = wide_passes();
  options.warm_up = 8;
  expect_loss_is_the_cpus(gpu, options, p, rng);
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

/// Best paths of teams: cut with the shortest warm-up and a longer one, and not cut; blocks as
/// there are multiprocessors for.
template <class T>
void expect_best_is_the_cpus(const std::vector<runtime::DeviceAccess>& machines,
                             const Problem<T>& p, const std::vector<std::int64_t>& warm_ups) {
  const BestPaths host = host_best(p);
  for (const std::int64_t warm_up : warm_ups) {
    for (const runtime::DeviceAccess& gpu : machines) {
      SCOPED_TRACE(warm_up);
      CudaOptions options = wide_passes();
      options.chunked = warm_up > 0;
      options.warm_up = warm_up;
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
      const BestPaths mine = device_best(gpu, engine, p);
      ASSERT_EQ(mine.path, host.path);
      ASSERT_EQ(mine.status, host.status);
      for (std::size_t b = 0; b < host.score.size(); ++b)
        ASSERT_LT(relative(mine.score[b], host.score[b]), 1e-12) << "row " << b;
    }
  }
}

std::vector<runtime::DeviceAccess> machines_of(const runtime::DeviceAccess& gpu, bool device) {
  if (device) return {gpu};
  return {gpu, segfuse::testing::make_gpu_emulator(9), segfuse::testing::make_gpu_emulator(200)};
}

TEST_P(GpuSemiCrf, BestPathsOfTeams) {
#ifdef __SANITIZE_ADDRESS__
  if (!is_device()) GTEST_SKIP() << "too long for the emulator under a sanitizer";
#endif
  Rng rng(45);
  const auto machines = machines_of(gpu, is_device());
  for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(holes), Draw(ties), Draw(zero)}) {
    for (const std::int64_t K : {1, 4}) {
      SCOPED_TRACE(K);
      auto p = random_problem<float>(3, 50, K, 3, false, draw, rng);
      p.lengths = {50, 33, 0};
      expect_best_is_the_cpus(machines, p, {4, 0});
      if (K == 1) continue;
      p.with_start = p.with_end = p.with_initial = p.with_final = false;
      expect_best_is_the_cpus(machines, p, {12});
    }
  }
  // Several classes a warp, more labels than lanes, a block with fewer classes than others.
  const auto p = random_problem<double>(1, 9, 60, 37, false, gaussian, rng);
  expect_best_is_the_cpus({machines.front(), machines.back()}, p, {0});
  const auto q = random_problem<double>(1, 17, 3, 67, false, ties, rng);
  expect_best_is_the_cpus({machines.back()}, q, {4});
}

TEST_P(GpuSemiCrf, BestPathsOfTeamsThatRunChunksAgain) {
  Rng rng(46);
  const auto machines = machines_of(gpu, is_device());
  // Every segment has four frames: where a chunk begins is never forgotten.
  for (const Draw& draw : {Draw(gaussian), Draw(ties)}) {
    auto p = random_problem<float>(2, 64, 4, 3, false, draw, rng);
    for (std::int64_t i = 0; i < 9; ++i) p.duration[i] = static_cast<float>(-kInf);
    p.lengths = {64, 63};  // the second has no path
    expect_best_is_the_cpus(machines, p, {4, 8});
  }
  // Too large for a grid, and as large as it bears.
  for (const double size : {1e7, 300.0, 1e-20}) {
    auto p = random_problem<float>(
        2, 50, 4, 3, false, [size](Rng& r) { return size * r.normal(); }, rng);
    expect_best_is_the_cpus(machines, p, {4});
  }
  // Labels that never follow each other drift apart; the one behind must win.
  auto p = random_problem<float>(1, 700, 3, 2, false, gaussian, rng);
  p.with_start = p.with_end = false;
  p.transition[1] = p.transition[2] = static_cast<float>(-kInf);
  p.final[0] = static_cast<float>(-kInf);
  for (std::int64_t t = 0; t < p.T_; ++t) p.emission[t * 2 + 1] -= 64.0F;
  expect_best_is_the_cpus({machines.back()}, p, {4});
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
