// Training on a simulated device, and on a CUDA device where there is one: as on the CPU.

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/context/pool.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/training_step.h"
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

TEST_P(TrainingOnADevice, OfRecurrentModelsHasTheGradientsOfTheCpu) {
  for (const nn::Recurrence kind :
       {nn::Recurrence::kSsm, nn::Recurrence::kLstm, nn::Recurrence::kGru}) {
    ModelConfig config = causal_model();
    config.recurrence = kind;
    config.causal = kind != nn::Recurrence::kGru;  // that one in both directions
    Trial trial(config);
    const auto gradients = [&](const std::shared_ptr<engine::Accelerator>& where) {
      engine::ExecutableOptions execution;
      execution.accelerator = where;
      execution.context = trial.context;
      engine::Executable program(trial.segmenter.training(), pool_of(trial.context), execution);
      BoundInputs inputs(program.fusion());
      for (std::size_t i = 0; i < trial.parameters.size(); ++i)
        inputs.set(trial.segmenter.parameters()[i].name, trial.parameters[i]);
      inputs.set("duration_limit",
                 Tensor::zeros(DType::kF32, {trial.segmenter.max_duration(), kClasses}));
      const Batch batch = make_batch(trial.training, {0, 1, 2}, trial.segmenter.config());
      bind_batch(inputs, batch, {1, 0, batch.segments});
      std::vector<Tensor> results = program.run(inputs.tensors());
      for (Tensor& result : results) result = result.to_host();
      program.check();
      return results;
    };
    const std::vector<Tensor> host = gradients(nullptr);
    const std::vector<Tensor> device = gradients(accelerator);
    ASSERT_EQ(device.size(), host.size());
    for (std::size_t i = 0; i < host.size(); ++i)
      for (std::int64_t k = 0; k < host[i].size(); ++k)
        EXPECT_NEAR(device[i].at(k), host[i].at(k), 1e-4) << i << ", " << k;
  }
}

/// States go from piece to piece on the device as on the host.
TEST_P(TrainingOnADevice, DecodesInPiecesAsTheCpu) {
  ModelConfig config = causal_model();
  config.attention_blocks = 0;
  Trial trial(config);
  Decoder::Options options;
  options.piece_frames = 3;
  options.frame_posteriors = true;
  const auto decoded = [&](const std::shared_ptr<engine::Accelerator>& where) {
    engine::ExecutableOptions execution;
    execution.accelerator = where;
    execution.context = trial.context;
    Decoder decoder(trial.segmenter, trial.parameters,
                    Tensor::zeros(DType::kF32, {config.max_duration, kClasses}), execution);
    bool given = false;
    return decoder.decode_long(
        "x",
        [&] {
          return std::exchange(given, true) ? Tensor::zeros(DType::kF32, {0})
                                            : trial.training[0].features;
        },
        options);
  };
  const Decoded host = decoded(nullptr);
  const Decoded device = decoded(accelerator);
  EXPECT_EQ(segments_of({device}), segments_of({host}));
  ASSERT_EQ(device.label.size(), host.label.size());
  for (std::size_t i = 0; i < host.label.size(); ++i)
    EXPECT_NEAR(device.label[i], host.label[i], 1e-4) << i;
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
