#pragma once
// A training that takes no time.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "base/rng.h"
#include "comm/threads/thread_group.h"
#include "learn/train/loop/crf_start.h"
#include "learn/train/loop/trainer.h"
#include "learn/train/loop/training_step.h"
#include "segfuse/error.h"
#include "small_data.h"
#include "support/files.h"
#include "support/tensors.h"

namespace segfuse::learn {

/// A model with parameters, and its flat state.
struct Model {
  explicit Model(HeadKind head) : Model(tiny(0.3, head)) {}
  explicit Model(const ModelConfig& config)
      : segmenter(config), layout(segmenter.parameters(), is_crf) {
    Rng rng(4);
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      parameters.push_back(segfuse::testing::uniform(rng, DType::kF32, spec.shape));
    limit = duration_limit_table({4, 4, 4}, 4);
  }
  FlatState state() const {
    return {optim::FlatTensors::copy(layout, parameters), optim::FlatTensors::zeros(layout),
            optim::FlatTensors::zeros(layout), optim::FlatTensors::copy(layout, parameters)};
  }

  Segmenter segmenter;
  optim::FlatLayout layout;
  std::vector<Tensor> parameters;
  Tensor limit;
};

/// A training of a few epochs with a checkpoint of its own.
struct Training {
  Model model;
  TrainingPlan plan;
  TrainerOptions options;
  std::vector<Sequence> sequences = some_sequences();

  explicit Training(const ModelConfig& config = tiny(0.3)) : model(config) {
    plan.epochs = 2;
    plan.batch_size = 4;
    plan.shards = 4;
    options.quiet = true;
    options.checkpoint = folder / "checkpoint";
  }
  test::TemporaryDirectory folder;
  TrainingOutcome run(int threads) {
    options.execution.context = Context().with(options::kThreads, std::int64_t{threads});
    std::vector<Tensor> own;
    for (const Tensor& parameter : model.parameters) own.push_back(parameter.clone());
    return train(model.segmenter, plan, own, model.limit, sequences, {}, {}, options);
  }
  std::string refusal() {
    try {
      (void)run(1);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

inline void expect_equal(const TrainingOutcome& a, const TrainingOutcome& b) {
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(segfuse::testing::same_bits(a.parameters[i], b.parameters[i])) << i;
  for (std::size_t e = 0; e < a.history.size(); ++e)
    EXPECT_EQ(a.history[e].train_loss, b.history[e].train_loss);
}

/// Several ranks as threads of this process; each may have options of its own.
inline TrainingOutcome run_on_ranks(
    int ranks, Training& training,
    const std::function<void(comm::Group&, TrainerOptions&)>& change = {}) {
  training.options.interruptible = false;
  TrainingOutcome first;
  comm::run_ranks(ranks, [&](comm::Group& group) {
    TrainerOptions options = training.options;
    options.group = &group;
    options.execution.context = Context().with(options::kThreads, std::int64_t{1});
    if (change) change(group, options);
    std::vector<Tensor> own;
    for (const Tensor& parameter : training.model.parameters) own.push_back(parameter.clone());
    const auto score = [&](const std::vector<std::vector<FrameSegment>>& decoded) {
      EXPECT_EQ(group.rank(), 0) << "only the first rank scores";
      return DevScores{static_cast<double>(decoded[0].size()), 0, 0};
    };
    const TrainingOutcome outcome =
        train(training.model.segmenter, training.plan, own, training.model.limit,
              training.sequences, training.sequences, score, options);
    const std::string mine(reinterpret_cast<const char*>(outcome.parameters[0].data()),
                           outcome.parameters[0].bytes());
    for (const std::string& other : group.gather(mine)) EXPECT_EQ(other, mine);
    if (group.rank() == 0) first = outcome;
  });
  return first;
}

}  // namespace segfuse::learn
