// Transitions that depend on the new segment's duration, on the device.

#include <algorithm>
#include <cmath>

#include "segfuse/error.h"
#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

CudaOptions algorithm_of(Algorithm algorithm) {
  CudaOptions options;
  options.algorithm = algorithm;
  return options;
}

TEST_P(GpuSemiCrf, ByDurationLossAndGradientsAreThoseOfThePlainRecursion) {
  Rng rng(31);
  for (const Draw& draw : all_draws()) {
    for (int round = 0; round < 8; ++round) {
      CudaEngine engine = OverDevice::make<CudaEngine>(
          gpu, algorithm_of(round % 4 == 3 ? Algorithm::kReference : Algorithm::kFast));
      const auto B = static_cast<std::int64_t>(1 + rng.below(3));
      const auto frames = static_cast<std::int64_t>(1 + rng.below(10));
      const auto K = static_cast<std::int64_t>(2 + rng.below(4));
      const auto C = static_cast<std::int64_t>(1 + rng.below(4));
      Problem<double> p = random_problem<double>(B, frames, K, C, true, draw, rng);
      p.with_start = rng.below(2) == 0;
      p.with_end = rng.below(2) == 0;
      p.with_initial = rng.below(2) == 0;
      p.with_final = rng.below(2) == 0;
      std::vector<double> weights;
      for (std::int64_t b = 0; b < B; ++b) {
        if (round % 2 == 0)
          p.lengths.push_back(
              static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(frames) + 1)));
        if (round % 3 == 0) weights.push_back(rng.normal());
      }
      SCOPED_TRACE(::testing::Message() << "B " << B << " T " << frames << " K " << K << " C " << C
                                        << " round " << round);
      const Segmentations gold = random_gold(p, rng);
      expect_same(device_loss(gpu, engine, p, gold, weights),
                  host_loss(p, gold, weights, Algorithm::kReference), rounding(p), 40.0);
      if (HasFatalFailure()) return;
    }
  }
}

/// More classes than lanes, more durations than parts, several slices of time and tiles of sources;
/// and transitions that underflow beside others of the same boundary.
TEST_P(GpuSemiCrf, ByDurationAwkwardSizes) {
  Rng rng(32);
  for (const double spread : {1.0, 80.0}) {
    for (const std::int64_t C : {3, 34}) {
      const std::int64_t K = C == 3 ? 21 : 5;
      // The emulator takes its time.
      const std::int64_t frames = (C == 3 ? 140 : 40) / (is_device() ? 1 : 2);
      const std::int64_t rows = is_device() ? 2 : 1;
      Problem<double> p = random_problem<double>(rows, frames, K, C, true, gaussian, rng);
      for (double& x : p.transition) x *= spread;
      p.lengths = {frames};
      if (rows == 2) p.lengths.push_back(frames - 9);
      SCOPED_TRACE(::testing::Message() << C << " classes, spread " << spread);
      const Segmentations gold = random_gold(p, rng);
      CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
      expect_same(device_loss(gpu, engine, p, gold, {}),
                  host_loss(p, gold, {}, Algorithm::kReference), rounding(p), 40.0);
      if (HasFatalFailure()) return;
    }
  }
}

/// A path of which every sum in the linear domain underflows: 2^-700 of what is beside it at each
/// boundary, but alone with a way on.
TEST_P(GpuSemiCrf, ByDurationSumsThatUnderflow) {
  Rng rng(33);
  Problem<double> p = random_problem<double>(1, 12, 3, 3, true, gaussian, rng);
  for (std::int64_t t = 0; t < p.T_; ++t) p.emission[static_cast<std::size_t>(t * 3)] += 600.0;
  for (std::int64_t k = 0; k < p.K; ++k)
    for (std::int64_t c = 0; c < 3; ++c)
      p.transition[static_cast<std::size_t>((k * 3 + 0) * 3 + c)] = -kInf;  // label 0 leads nowhere
  p.final[0] = -kInf;
  const Segmentations gold = [] {
    Segmentations y;
    for (std::int64_t t = 0; t < 12; t += 3) y.append(t, 3, 1 + t / 3 % 2);
    y.end_row();
    return y;
  }();
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  expect_same(device_loss(gpu, engine, p, gold, {}), host_loss(p, gold, {}, Algorithm::kReference),
              rounding(p), 40.0);
}

TEST_P(GpuSemiCrf, ByDurationOnlyWhatIsAskedFor) {
  Rng rng(34);
  const Problem<double> p = random_problem<double>(2, 30, 4, 3, true, gaussian, rng);
  DeviceArrays device(gpu);
  const Potentials<double> q = on_device(p, device);
  OwnedGradients<double> host(p);
  std::vector<double> partition(2);
  Engine(1).log_partition(p.potentials(), {partition, {}}, host.views());
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  double* z = device.space<double>(2);
  engine.log_partition(q, {{z, {2}}, {}});
  engine.check();
  const std::vector<double> alone = device.read(z, 2);
  for (std::size_t b = 0; b < 2; ++b) EXPECT_LT(relative(alone[b], partition[b]), 1e-12);
  Gradients<double> gradients;
  gradients.duration = {device.space<double>(4 * 3), {4, 3}};
  engine.log_partition(q, {}, gradients);
  const std::vector<double> duration = device.read(gradients.duration.data(), 12);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(duration[i], host.duration[i], 1e-11);
  gradients = {};
  gradients.initial = {device.space<double>(3), {3}};
  engine.log_partition(q, {}, gradients);
  const std::vector<double> initial = device.read(gradients.initial.data(), 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(initial[i], host.initial[i], 1e-11);
}

TEST_P(GpuSemiCrf, ByDurationBestPathIsTheCpus) {
  Rng rng(35);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  for (const Draw& draw : all_draws()) {
    for (int round = 0; round < 12; ++round) {
      const auto K = static_cast<std::int64_t>(2 + rng.below(4));
      const auto C = static_cast<std::int64_t>(1 + rng.below(round % 4 == 0 ? 40 : 4));
      Problem<double> p = random_problem<double>(3, 11, K, C, true, draw, rng);
      p.lengths = {static_cast<std::int64_t>(rng.below(12)), 11, 0};
      p.with_start = rng.below(2) == 0;
      const BestPaths mine = device_best(gpu, engine, p);
      const BestPaths host = host_best(p);
      ASSERT_EQ(mine.path, host.path);
      ASSERT_EQ(mine.status, host.status);
      for (std::size_t b = 0; b < 3; ++b)
        ASSERT_LT(relative(mine.score[b], host.score[b]), rounding(p));
    }
  }
}

/// Sizes of real use; the device alone is fast enough.
TEST_P(GpuSemiCrf, ByDurationLargeSizes) {
  if (!is_device()) GTEST_SKIP() << "too large for the emulator";
  Rng rng(36);
  Problem<float> p = random_problem<float>(2, 700, 50, 70, true, gaussian, rng);
  p.lengths = {700, 333};
  const Segmentations gold = random_gold(p, rng);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  const Results first = device_loss(gpu, engine, p, gold, {});
  expect_same(first, host_loss(p, gold, {}, Algorithm::kFast), 4e-6, 2.0);
  EXPECT_EQ(device_loss(gpu, engine, p, gold, {}).gradients, first.gradients);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
