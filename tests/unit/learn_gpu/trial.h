#pragma once
// A small training for tests on devices.

#include <fmt/core.h>

#include <functional>

#include "base/rng.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/loop/trainer.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::learn {

inline constexpr std::int64_t kClasses = 3;
inline constexpr std::int64_t kFeatures = 2;

inline ModelConfig small_model(HeadKind head) {
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

/// The same that looks at no later frame, with a block of each kind that a GPU runs, and durations
/// that follow a formula.
inline ModelConfig causal_model() {
  ModelConfig config = small_model(HeadKind::kSemiMarkov);
  config.causal = true;
  config.recurrence = nn::Recurrence::kSsm;
  config.recurrent_blocks = 1;
  config.recurrent_states = 3;
  config.attention_blocks = 1;
  config.attention_heads = 2;
  config.durations = semicrf::DurationFamily::kNegativeBinomial;
  return config;
}

/// Features that tell the label, with noise.
inline std::vector<Sequence> sequences(int count, std::uint64_t seed) {
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
  explicit Trial(HeadKind head) : Trial(small_model(head)) {}
  explicit Trial(const ModelConfig& config) : segmenter(config) {
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
    TrainerOptions options = how;
    options.checkpoint = checkpoint;
    options.quiet = true;
    options.execution.accelerator = accelerator;
    options.execution.context = context;
    const Scorer scorer = [&](const std::vector<std::vector<FrameSegment>>& decoded) {
      if (at_epoch) at_epoch();
      double segments = 0;
      for (const auto& one : decoded) segments += static_cast<double>(one.size());
      return DevScores{segments, 0, 0};
    };
    return train(segmenter, plan, start,
                 Tensor::zeros(DType::kF32, {segmenter.max_duration(), kClasses}), training, dev,
                 scorer, options);
  }

  /// The message of a training that is refused; empty: it went through.
  std::string refusal(const std::shared_ptr<engine::Accelerator>& accelerator,
                      const std::filesystem::path& checkpoint) {
    try {
      static_cast<void>(run(accelerator, checkpoint));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::size_t position(const std::string& name) const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (segmenter.parameters()[i].name == name) return i;
    throw InternalError(fmt::format("no parameter {}", name));
  }

  TrainerOptions how;
  Context context = Context().with(options::kThreads, std::int64_t{2});
  Segmenter segmenter;
  TrainingPlan plan;
  std::vector<Tensor> parameters;
  std::vector<Sequence> training = sequences(10, 1);
  std::vector<Sequence> dev = sequences(3, 2);
};

}  // namespace segfuse::learn
