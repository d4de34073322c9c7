// Training on a simulated device, and on a CUDA device where there is one: as on the CPU.

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"
#include "support/gpu/program_gpu.h"
#include "unit/learn_gpu/trial.h"

namespace segfuse::learn {
namespace {

class TrainingOnADevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "simulated") {
      accelerator =
          segfuse::testing::make_sim_accelerator({.check_streams = true}, runtime::sim::lazy())
              .accelerator;
      return;
    }
    std::string reason;
    if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
    accelerator = engine::open_accelerator("cuda");
  }
  std::shared_ptr<engine::Accelerator> accelerator;
};
INSTANTIATE_TEST_SUITE_P(Places, TrainingOnADevice, ::testing::Values("simulated", "cuda"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(TrainingOnADevice, FollowsTheCpuAndStopsGrowing) {
  const test::TemporaryDirectory directory;
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kSoftmax}) {
    Trial trial(head);
    const TrainingOutcome host = trial.run(nullptr, directory / "host.safetensors");
    std::vector<std::uint64_t> grown;
    const TrainingOutcome device = trial.run(accelerator, directory / "device.safetensors", [&] {
      grown.push_back(accelerator->heap().statistics().grown);
    });
    ASSERT_EQ(device.history.size(), host.history.size());
    for (std::size_t e = 0; e < host.history.size(); ++e) {
      EXPECT_NEAR(device.history[e].train_loss, host.history[e].train_loss, 2e-4) << e;
      EXPECT_NEAR(device.history[e].dev_loss, host.history[e].dev_loss, 2e-4) << e;
    }
    EXPECT_LT(device.history.back().train_loss, device.history.front().train_loss);
    for (std::size_t i = 0; i < host.parameters.size(); ++i)
      for (std::int64_t k = 0; k < host.parameters[i].size(); ++k)
        EXPECT_NEAR(device.parameters[i].at(k), host.parameters[i].at(k), 5e-3)
            << trial.segmenter.parameters()[i].name << " " << k;
    // The first epoch's shapes are those of all.
    ASSERT_EQ(grown.size(), 3U);
    EXPECT_EQ(grown[2], grown[0]);
    // The same bits again.
    const TrainingOutcome again = trial.run(accelerator, directory / "again.safetensors");
    for (std::size_t e = 0; e < host.history.size(); ++e)
      EXPECT_EQ(again.history[e].train_loss, device.history[e].train_loss);
  }
}

TEST(TrainingWithoutMemory, NamesTheBatchAndWhatToChange) {
  const test::TemporaryDirectory directory;
  Trial trial(HeadKind::kSoftmax);
  trial.training[3].features = Tensor::zeros(DType::kF32, {200'000, kFeatures});
  trial.training[3].segments = {{0, 200'000, 0}};
  const segfuse::testing::SimAccelerator sim = segfuse::testing::make_sim_accelerator();
  sim.device->set_limit(std::size_t{12} << 20);
  try {
    trial.run(sim.accelerator, directory / "c.safetensors");
    FAIL();
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the batch of step "), std::string::npos) << text;
    EXPECT_NE(text.find("padded to 200000 frames"), std::string::npos) << text;
    EXPECT_NE(text.find("lower training.batch_frames (now 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("out of device memory: "), std::string::npos) << text;
    EXPECT_EQ(error.exit_code(), ExitCode::kDevice);
  }
}

}  // namespace
}  // namespace segfuse::learn
