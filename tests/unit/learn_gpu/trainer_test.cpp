// Training on a simulated device, and on a CUDA device where there is one: as on the CPU.

#include "learn/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "learn/train/decoder.h"
#include "segfuse/error.h"
#include "support/files.h"
#include "support/program_gpu.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kClasses = 3;
constexpr std::int64_t kFeatures = 2;

ModelConfig small_model(HeadKind head) {
  ModelConfig config;
  config.width = 6;
  config.kernel = 3;
  config.dilations = {2};
  config.head = head;
  config.features = kFeatures;
  config.classes = kClasses;
  config.max_duration = head == HeadKind::kSemiMarkov ? 4 : 1;
  return config;
}

/// Features that tell the label, with noise.
std::vector<Sequence> sequences(int count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Sequence> all;
  for (int i = 0; i < count; ++i) {
    Sequence sequence;
    sequence.id = "recording " + std::to_string(i);
    std::int64_t frames = 0;
    while (frames < 9 + i % 3) {
      const auto duration = static_cast<std::int64_t>(1 + rng.below(4));
      const auto label = static_cast<std::int32_t>(rng.below(kClasses));
      sequence.segments.push_back({frames, duration, label});
      frames += duration;
    }
    sequence.features = Tensor(DType::kF32, {frames, kFeatures});
    for (const FrameSegment& s : sequence.segments)
      for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
        for (std::int64_t d = 0; d < kFeatures; ++d)
          sequence.features.set(t * kFeatures + d, (s.label == d) + 0.3 * rng.normal());
    all.push_back(std::move(sequence));
  }
  return all;
}

struct Trial {
  explicit Trial(HeadKind head) : segmenter(small_model(head)) {
    plan.epochs = 3;
    plan.batch_size = 4;
    plan.learning_rate = 0.02;
    plan.adamw.average = 0.5;
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      parameters.push_back(nn::initial_value(spec, 5));
  }

  TrainingOutcome run(const std::shared_ptr<engine::Accelerator>& accelerator,
                      const std::filesystem::path& checkpoint,
                      const std::function<void()>& at_epoch = {}) {
    std::vector<Tensor> start;
    for (const Tensor& parameter : parameters) start.push_back(parameter.clone());
    TrainerOptions options;
    options.checkpoint = checkpoint;
    options.quiet = true;
    options.execution.accelerator = accelerator;
    const Scorer scorer = [&](const std::vector<std::vector<FrameSegment>>& decoded) {
      if (at_epoch) at_epoch();
      double segments = 0;
      for (const auto& one : decoded) segments += static_cast<double>(one.size());
      return segments;
    };
    return train(pool, segmenter, plan, start,
                 Tensor::zeros(DType::kF32, {segmenter.max_duration(), kClasses}), training, dev,
                 scorer, options);
  }

  ThreadPool pool{2};
  Segmenter segmenter;
  TrainingPlan plan;
  std::vector<Tensor> parameters;
  std::vector<Sequence> training = sequences(10, 1);
  std::vector<Sequence> dev = sequences(3, 2);
};

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
