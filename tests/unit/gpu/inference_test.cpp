// CudaInference on the emulator: what the CPU's tests, compiled against it, do not ask.

#include <gtest/gtest.h>

#include "segfuse/error.h"
#include "semicrf/cuda/over_device.h"
#include "support/emulator/gpu_emulator.h"
#include "unit/gpu/device_problem.h"

namespace segfuse::semicrf::testing {
namespace {

template <class T>
Problem<T> ragged(bool by_duration, std::uint64_t seed) {
  Rng rng(seed);
  auto p = random_problem<T>(4, 25, 4, 3, by_duration, gaussian, rng);
  p.lengths = {25, 0, 1, 17};
  return p;
}

TEST(CudaInference, DrawsAreTheCpusDraws) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  for (const bool by_duration : {false, true}) {
    const auto p = ragged<float>(by_duration, 3);
    SegmentationLists wanted;
    Inference(1).sample(p.potentials(), {}, 20, 99, wanted, 7);
    CudaInference inference = OverDevice::make<CudaInference>(gpu);
    DeviceArrays device(gpu);
    const DeviceSegmentationLists out = lists_in(device, 4, 20, 4 * 20 * 25);
    inference.sample(on_device(p, device), {}, 20, 99, out, 7);
    inference.check();
    const SegmentationLists found = fetched(out, device);
    EXPECT_EQ(found.list_pointer, wanted.list_pointer);
    EXPECT_EQ(found.segmentations, wanted.segmentations);
    for (std::size_t i = 0; i < wanted.score.size(); ++i)
      EXPECT_NEAR(found.score[i], wanted.score[i], 1e-12);
  }
}

TEST(CudaInference, ListsThatDoNotFitAreAFaultThatSaysHowManySegmentsThereAre) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  const auto p = ragged<double>(false, 4);
  SegmentationLists wanted;
  Inference(1).k_best(p.potentials(), {}, 3, wanted);
  const std::int64_t needed = wanted.segmentations.segments();
  CudaInference inference = OverDevice::make<CudaInference>(gpu);
  DeviceArrays device(gpu);
  const DeviceSegmentationLists tight = lists_in(device, 4, 3, needed);
  inference.k_best(on_device(p, device), {}, 3, tight);
  inference.check();
  EXPECT_EQ(fetched(tight, device).segmentations, wanted.segmentations);
  const DeviceSegmentationLists small = lists_in(device, 4, 3, needed - 1);
  inference.k_best(on_device(p, device), {}, 3, small);
  try {
    inference.check();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find(std::to_string(needed) + " segments do not fit"),
              std::string("semicrf: ").size())
        << error.what();
  }
  inference.check();  // a fault is told once
}

TEST(CudaInference, WithoutRowsThereAreNoListsAndNoGradients) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  Rng rng(5);
  const auto p = random_problem<double>(0, 6, 3, 2, false, gaussian, rng);
  CudaInference inference = OverDevice::make<CudaInference>(gpu);
  DeviceArrays device(gpu);
  const DeviceSegmentationLists out = lists_in(device, 0, 5, 0);
  inference.sample(on_device(p, device), {}, 5, 1, out);
  EXPECT_EQ(fetched(out, device).list_pointer, (std::vector<std::int64_t>{0}));
  const std::vector<double> tail = {-1.0, -2.0};
  const DeviceGradients<double> g(p, device);
  double* tail_gradient = device.space<double>(2);
  inference.log_partition(on_device(p, device), {{}, {device.copy(tail), {2}}}, {}, g.views,
                          {tail_gradient, {2}});
  inference.check();
  EXPECT_EQ(device.read(tail_gradient, 2), (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(device.read(g.views.duration.data(), 6), std::vector<double>(6, 0.0));
  EXPECT_EQ(device.read(g.views.transition.data(), 4), std::vector<double>(4, 0.0));
}

TEST(CudaInference, LeavesNoMemoryBehindAndWrongShapesAreRefusedAtOnce) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  const auto p = ragged<double>(true, 6);
  DeviceArrays device(gpu);
  const Potentials<double> q = on_device(p, device);
  double* z = device.space<double>(4);
  const std::vector<double> tail(3, -0.5);
  const Scope scope = {{}, {device.copy(tail), {3}}};
  const std::size_t before = segfuse::testing::bytes_in_use(gpu);
  {
    CudaInference inference = OverDevice::make<CudaInference>(gpu);
    inference.log_partition(q, scope, {{z, {4}}, {}});
    inference.partial_loss(q, scope, {});
    inference.kl(q, q, {z, {4}});
    inference.check();
    EXPECT_THROW(inference.log_partition(q, {{}, {tail.data(), {2}}}, {}), UsageError);
    EXPECT_THROW(inference.log_partition(q, scope, {{z, {3}}, {}}), UsageError);
    EXPECT_THROW(inference.boundary_within(q, scope, -1, View<double, 2>(z, {4, 25})), UsageError);
    DeviceArrays others(gpu);
    EXPECT_THROW(inference.k_best(q, scope, 0, lists_in(others, 4, 0, 0)), UsageError);
  }
  EXPECT_EQ(segfuse::testing::bytes_in_use(gpu), before);
}

TEST(CudaInference, NotANumberIsAFaultByInput) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  auto p = ragged<float>(false, 8);
  p.start[(3 * 25 + 16) * 3 + 2] = static_cast<float>(kNaN);
  p.emission[(3 * 25 + 17) * 3] = static_cast<float>(kNaN);  // beyond the row's end
  CudaInference inference = OverDevice::make<CudaInference>(gpu);
  DeviceArrays device(gpu);
  const std::vector<double> tail(3, -0.5);
  inference.log_partition(on_device(p, device), {{}, {device.copy(tail), {3}}}, {});
  try {
    inference.check();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("start at batch 3, time 16, class 2"),
              std::string::npos)
        << error.what();
  }
}

TEST(CudaInference, TablesAreForTheCpu) {
  const auto gpu = segfuse::testing::make_gpu_emulator();
  const auto p = ragged<double>(true, 6);
  DeviceArrays device(gpu);
  Potentials<double> q = on_device(p, device);
  double* z = device.space<double>(p.B * p.T_ * std::max(p.K, p.C) * p.C);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  CudaInference inference = OverDevice::make<CudaInference>(gpu);
  const auto refused = [&](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what())
                    .find("_scores; docs/semicrf.md has a list of those that "
                          "do, all of them on the CPU"),
                std::string::npos)
          << error.what();
    }
  };
  for (const bool segments : {true, false}) {
    q.segment_scores = {}, q.transition_scores = {};
    if (segments)
      q.segment_scores = {z, {p.B, p.T_, p.K, p.C}};
    else
      q.transition_scores = {z, {1, p.T_, p.C, p.C}};
    refused([&] { engine.log_partition(q, {}); });
    refused([&] { engine.posteriors(q, {}); });
    refused([&] { inference.log_partition(q, {}, {}); });
    refused([&] { inference.expected_durations(q, {}, View<double, 2>(z, {p.K, p.C})); });
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
