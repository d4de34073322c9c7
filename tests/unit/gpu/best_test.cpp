// The best segmentation on a GPU, with passes and ways back cut in time: always the CPU's path.

#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

/// Cut with the shortest warm-up and a longer one, and not cut.
template <class T>
void expect_best_is_the_cpus(const runtime::DeviceAccess& gpu, const Problem<T>& p,
                             const std::vector<std::int64_t>& warm_ups, int lanes = 0) {
  const BestPaths host = host_best(p);
  for (const std::int64_t warm_up : warm_ups) {
    SCOPED_TRACE(warm_up);
    CudaOptions options;
    options.chunked = warm_up > 0;
    options.warm_up = warm_up;
    options.lanes_per_class = lanes;
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    const BestPaths mine = device_best(gpu, engine, p);
    ASSERT_EQ(mine.path, host.path);
    ASSERT_EQ(mine.status, host.status);
    for (std::size_t b = 0; b < host.score.size(); ++b)
      ASSERT_LT(relative(mine.score[b], host.score[b]), 1e-12) << "row " << b;
  }
}

Problem<float> long_rows(std::int64_t frames, std::int64_t K, std::int64_t C, const Draw& draw,
                         Rng& rng) {
  auto p = random_problem<float>(2, frames, K, C, false, draw, rng);
  p.lengths = {frames, frames - 37};
  return p;
}

TEST_P(GpuSemiCrf, BestPathsOfCutRows) {
  Rng rng(31);
  for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(holes), Draw(ties), Draw(zero)}) {
    auto p = long_rows(260, 4, 3, draw, rng);
    expect_best_is_the_cpus(gpu, p, {4, 16, 0});
    p.with_start = p.with_end = p.with_initial = p.with_final = false;
    expect_best_is_the_cpus(gpu, p, {4, 0});
  }
}

TEST_P(GpuSemiCrf, BestPathsOfSlowlyMixingRows) {
  Rng rng(32);
  auto p = long_rows(300, 4, 3, [](Rng& r) { return 0.1 * r.normal(); }, rng);
  for (std::int64_t i = 0; i < 9; ++i) p.transition[i] -= i % 4 == 0 ? 0.0F : 10.0F;
  expect_best_is_the_cpus(gpu, p, {4, 12, 0});
  // Every segment has four frames: where a chunk begins is never forgotten.
  for (const Draw& draw : {Draw(gaussian), Draw(ties)}) {
    auto q = random_problem<float>(2, 320, 4, 3, false, draw, rng);
    for (std::int64_t i = 0; i < 9; ++i) q.duration[i] = static_cast<float>(-kInf);
    q.lengths = {320, 319};  // the second has no path
    expect_best_is_the_cpus(gpu, q, {4, 8, 0});
  }
}

TEST_P(GpuSemiCrf, BestPathsOfScoresOffTheGrid) {
  Rng rng(33);
  // Too large for a grid, and as large as it bears.
  for (const double size : {1e7, 300.0, 1e-20})
    expect_best_is_the_cpus(
        gpu, long_rows(200, 4, 3, [size](Rng& r) { return size * r.normal(); }, rng), {4, 0});
  // Labels that never follow each other drift apart; the one behind must win.
  auto p = random_problem<float>(1, 6000, 3, 2, false, gaussian, rng);
  p.with_start = p.with_end = false;
  p.transition[1] = p.transition[2] = static_cast<float>(-kInf);
  p.final[0] = static_cast<float>(-kInf);
  for (std::int64_t t = 0; t < p.T_; ++t) p.emission[t * 2 + 1] -= 8.0F;
  expect_best_is_the_cpus(gpu, p, {4, 0});
}

/// Pointers back are found from values: windows of several runs of boundaries, ends of rows within
/// one, equal scores, and paths of the longest segments.
TEST_P(GpuSemiCrf, BestPathsOfLongWindows) {
  Rng rng(35);
  for (const Draw& draw : {Draw(gaussian), Draw(holes), Draw(ties), Draw(zero)}) {
    auto p = long_rows(150, 8, 3, draw, rng);
    expect_best_is_the_cpus(gpu, p, {8, 0}, 4);
    for (std::int64_t i = 0; i < 9; ++i) p.transition[i] -= 20.0F;
    p.with_start = p.with_end = false;
    expect_best_is_the_cpus(gpu, p, {8, 0}, 4);
    for (const std::int64_t frames : {1, 2, 3, 4, 5, 9}) {
      auto q = random_problem<float>(3, frames, 8, 3, false, draw, rng);
      q.lengths = {frames, 0, frames - 1};
      expect_best_is_the_cpus(gpu, q, {0}, 4);
    }
  }
}

/// Labels that some frames all but forbid, by a number or by -inf, in sums that round and in exact
/// ones; one label is left in every frame.
TEST_P(GpuSemiCrf, BestPathsOfMaskedFrames) {
  Rng rng(36);
  for (const double mask : {-1e4, -1e9, -3e38, -kInf}) {
    auto p = long_rows(180, 4, 3, gaussian, rng);
    for (std::int64_t i = 0; i < 2 * 180 * 3; ++i)
      if (i % 3 != i / 15 % 3 && i % 7 < 5) p.emission[i] = static_cast<float>(mask);
    expect_best_is_the_cpus(gpu, p, {4, 0});
    p.with_start = p.with_end = false;
    expect_best_is_the_cpus(gpu, p, {4, 0});
  }
}

/// Kernels without registers for their state, and transitions by duration: ways back are cut alike.
TEST_P(GpuSemiCrf, WaysBackOfEveryPass) {
  Rng rng(34);
  for (const Draw& draw : {Draw(gaussian), Draw(ties)}) {
    CudaOptions options;
    options.algorithm = Algorithm::kReference;
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    const auto p = long_rows(270, 5, 7, draw, rng);
    ASSERT_EQ(device_best(gpu, engine, p).path, host_best(p).path);
    auto q = random_problem<float>(2, 150, 3, 3, true, draw, rng);
    q.lengths = {150, 130};
    ASSERT_EQ(device_best(gpu, engine, q).path, host_best(q).path);
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
