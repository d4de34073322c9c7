// Passes in registers that the blocks of a cluster share, and those with durations in shared
// memory.

#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#include "unit/gpu/gpu_test.h"

namespace segfuse::semicrf::testing {
namespace {

CudaOptions clusters_of(int blocks, int lanes, std::int64_t warm_up = 0) {
  CudaOptions options;
  options.lanes_per_class = lanes;
  options.blocks_per_pass = blocks;
  options.chunked = warm_up > 0;
  options.warm_up = warm_up;
  return options;
}

/// Every number of blocks gives the bits of one block, which are right.
void expect_bits_of_one_block(const runtime::DeviceAccess& gpu, const Problem<double>& p, int lanes,
                              const std::vector<int>& blocks, std::int64_t warm_up, Rng& rng) {
  const Segmentations gold = random_gold(p, rng);
  CudaEngine one = OverDevice::make<CudaEngine>(gpu, clusters_of(1, lanes, warm_up));
  const Results expected = device_loss(gpu, one, p, gold, {});
  expect_same(expected, host_loss(p, gold, {}, Algorithm::kFast), 1e-10, static_cast<double>(p.T_));
  for (const int count : blocks) {
    SCOPED_TRACE(count);
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, clusters_of(count, lanes, warm_up));
    const Results mine = device_loss(gpu, engine, p, gold, {});
    ASSERT_EQ(mine.status, expected.status);
    ASSERT_EQ(mine.log_partition, expected.log_partition);
    ASSERT_EQ(mine.gradients, expected.gradients);
  }
}

TEST_P(GpuSemiCrf, BlocksOfAClusterDoNotShowInTheBits) {
  Rng rng(61);
  for (const Draw& draw : {Draw(gaussian), Draw(holes), Draw(wide)}) {
    auto p = random_problem<double>(3, 41, 4, 3, false, draw, rng);
    p.lengths = {41, 0, 30};
    expect_bits_of_one_block(gpu, p, 4, {2}, 4, rng);
    expect_bits_of_one_block(gpu, p, 1, {3}, 0, rng);
    p.with_start = p.with_end = false;
    expect_bits_of_one_block(gpu, p, 4, {2}, 12, rng);
  }
  // The last block has fewer warps with classes than the others.
  const auto p = random_problem<double>(2, 21, 7, 33, false, gaussian, rng);
  expect_bits_of_one_block(gpu, p, 2, {2}, 0, rng);
  auto q = random_problem<double>(2, 37, 6, 39, false, gaussian, rng);
  q.with_start = q.with_end = false;
  expect_bits_of_one_block(gpu, q, 2, {2, 3}, 8, rng);
}

/// Where a chunk begins is never forgotten: rows are done again in one piece.
TEST_P(GpuSemiCrf, ClustersRunRowsAgain) {
  Rng rng(62);
  auto p = random_problem<double>(2, 160, 4, 3, false, gaussian, rng);
  for (std::int64_t i = 0; i < 9; ++i) p.duration[i] = -kInf;
  p.lengths = {160, 120};
  expect_bits_of_one_block(gpu, p, 4, {2}, 8, rng);
}

/// Durations in shared memory give the bits of durations in registers.
TEST_P(GpuSemiCrf, DurationsInSharedMemoryDoNotShowInTheBits) {
  Rng rng(67);
  for (const Draw& draw : {Draw(gaussian), Draw(holes), Draw(wide)}) {
    for (const auto& [lanes, durations, most] : {std::array{4, 1, 2}, std::array{1, 2, 3}}) {
      const std::int64_t K = lanes == 4 ? 7 : 4;
      auto p = random_problem<double>(3, 90, K, 3, false, draw, rng);
      p.lengths = {90, 0, 61};
      const Segmentations gold = random_gold(p, rng);
      const BestPaths best = host_best(p);
      for (const std::int64_t warm_up : {0, 12}) {
        CudaOptions options = clusters_of(1, lanes, warm_up);
        CudaEngine all = OverDevice::make<CudaEngine>(gpu, options);
        const Results expected = device_loss(gpu, all, p, gold, {});
        options.durations_per_lane = durations;
        for (int blocks = lanes == 4 ? 1 : most; blocks <= most; ++blocks) {
          SCOPED_TRACE(blocks);
          options.blocks_per_pass = blocks;
          CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
          const Results mine = device_loss(gpu, engine, p, gold, {});
          ASSERT_EQ(mine.status, expected.status);
          ASSERT_EQ(mine.log_partition, expected.log_partition);
          ASSERT_EQ(mine.gradients, expected.gradients);
          ASSERT_EQ(device_best(gpu, engine, p).path, best.path);
        }
      }
    }
  }
}

TEST_P(GpuSemiCrf, DurationsInSharedMemoryInAndOutOfRange) {
  Rng rng(68);
  for (const Draw& draw : {Draw(wide), Draw(extreme)}) {
    auto p = random_problem<double>(3, 60, 7, 3, false, draw, rng);
    p.lengths = {60, 0, 1};
    const Segmentations gold = random_gold(p, rng);
    const Results host = host_loss(p, gold, {}, Algorithm::kFast);
    CudaOptions options = clusters_of(1, 4);
    options.durations_per_lane = 1;
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, options);
    const Results mine = device_loss(gpu, engine, p, gold, {});
    ASSERT_EQ(mine.status, host.status);
    for (std::size_t b = 0; b < 3; ++b)
      ASSERT_LT(relative(mine.log_partition[b], host.log_partition[b]), 1e-12) << b;
    ASSERT_EQ(device_best(gpu, engine, p).path, host_best(p).path);
  }
}

TEST_P(GpuSemiCrf, ClustersInAndOutOfRange) {
  Rng rng(63);
  auto p = random_problem<double>(3, 30, 4, 3, false, extreme, rng);
  p.lengths = {30, 0, 1};
  const Segmentations gold = random_gold(p, rng);
  const Results host = host_loss(p, gold, {}, Algorithm::kFast);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu, clusters_of(2, 4));
  const Results mine = device_loss(gpu, engine, p, gold, {});
  ASSERT_EQ(mine.status, host.status);
  for (std::size_t b = 0; b < 3; ++b)
    ASSERT_LT(relative(mine.log_partition[b], host.log_partition[b]), 1e-12) << b;
}

template <class T>
void expect_best_is_the_cpus(const runtime::DeviceAccess& gpu, const Problem<T>& p, int lanes,
                             int blocks, const std::vector<std::int64_t>& warm_ups) {
  const BestPaths host = host_best(p);
  for (const std::int64_t warm_up : warm_ups) {
    SCOPED_TRACE(warm_up);
    CudaEngine engine = OverDevice::make<CudaEngine>(gpu, clusters_of(blocks, lanes, warm_up));
    const BestPaths mine = device_best(gpu, engine, p);
    ASSERT_EQ(mine.path, host.path);
    ASSERT_EQ(mine.status, host.status);
    for (std::size_t b = 0; b < host.score.size(); ++b)
      ASSERT_LT(relative(mine.score[b], host.score[b]), 1e-12) << "row " << b;
  }
}

TEST_P(GpuSemiCrf, BestPathsOfClusters) {
  Rng rng(64);
  for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(holes), Draw(ties), Draw(zero)}) {
    auto p = random_problem<float>(3, 90, 4, 3, false, draw, rng);
    p.lengths = {90, 33, 0};
    expect_best_is_the_cpus(gpu, p, 4, 2, {4, 0});
    expect_best_is_the_cpus(gpu, p, 1, 3, {12});
    p.with_start = p.with_end = false;
    expect_best_is_the_cpus(gpu, p, 4, 2, {4});
  }
  const auto p = random_problem<double>(1, 41, 7, 33, false, ties, rng);
  expect_best_is_the_cpus(gpu, p, 2, 2, {8, 0});
  auto q = random_problem<double>(1, 41, 6, 39, false, gaussian, rng);
  q.with_start = q.with_end = false;
  for (const int blocks : {2, 3}) expect_best_is_the_cpus(gpu, q, 2, blocks, {8});
}

/// More labels than the threads of a block that finds them back.
TEST_P(GpuSemiCrf, BestPathsOfManyLabels) {
  Rng rng(69);
  const auto p = random_problem<float>(1, 11, 1, 385, false, ties, rng);
  expect_best_is_the_cpus(gpu, p, 8, 16, {0});
}

TEST_P(GpuSemiCrf, BestPathsOfClustersThatRunChunksAgain) {
  Rng rng(65);
  // Every segment has four frames: where a chunk begins is never forgotten.
  for (const Draw& draw : {Draw(gaussian), Draw(ties)}) {
    auto p = random_problem<float>(2, 128, 4, 3, false, draw, rng);
    for (std::int64_t i = 0; i < 9; ++i) p.duration[i] = static_cast<float>(-kInf);
    p.lengths = {128, 127};  // the second has no path
    expect_best_is_the_cpus(gpu, p, 4, 2, {4, 8});
  }
  // Too large for a grid, and as large as it bears.
  for (const double size : {1e7, 300.0, 1e-20}) {
    auto p = random_problem<float>(
        2, 90, 4, 3, false, [size](Rng& r) { return size * r.normal(); }, rng);
    expect_best_is_the_cpus(gpu, p, 4, 2, {4});
  }
  // Labels that never follow each other drift apart; the one behind must win.
  auto p = random_problem<float>(1, 700, 4, 3, false, gaussian, rng);
  for (std::int64_t i = 0; i < 9; ++i)
    if (i % 4 != 0) p.transition[i] = static_cast<float>(-kInf);
  p.final[0] = p.final[2] = static_cast<float>(-kInf);
  for (std::int64_t t = 0; t < p.T_; ++t) p.emission[t * 3 + 1] -= 64.0F;
  expect_best_is_the_cpus(gpu, p, 4, 2, {4});
}

/// A device with clusters that has no place for one.
class WithoutRoom final : public runtime::KernelLoader {
 public:
  explicit WithoutRoom(std::shared_ptr<runtime::KernelLoader> kernels)
      : kernels_(std::move(kernels)) {}
  int multiprocessors() const override { return kernels_->multiprocessors(); }
  int shared_bytes() const override { return kernels_->shared_bytes(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return kernels_->kernel(program, entry);
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    if (launch.cluster > 1) throw std::logic_error("a cluster that does not fit");
    kernels_->launch(stream, kernel, launch, argument, size);
  }

 private:
  std::shared_ptr<runtime::KernelLoader> kernels_;
};

/// A device that has no place for a cluster uses teams of blocks.
TEST_P(GpuSemiCrf, WithoutClustersTeamsDoThePasses) {
  Rng rng(66);
  const auto p = random_problem<double>(2, 15, 4, 3, false, gaussian, rng);
  const Segmentations gold = random_gold(p, rng);
  const runtime::DeviceAccess old{gpu.device, std::make_shared<WithoutRoom>(gpu.kernels),
                                  gpu.memory, gpu.home};
  CudaEngine engine = OverDevice::make<CudaEngine>(old, clusters_of(2, 4));
  expect_same(device_loss(old, engine, p, gold, {}), host_loss(p, gold, {}, Algorithm::kFast),
              1e-10, 15.0);
  const BestPaths best = device_best(old, engine, p);
  EXPECT_EQ(best.path, host_best(p).path);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
