// Training batches with augmentation: the same bits wherever and in whatever company a sequence is.
#include <csignal>

#include "base/thread_pool.h"
#include "learn/data/features/augmentation.h"
#include "small_training.h"

namespace segfuse::learn {
namespace {

std::shared_ptr<const data::Augmenter> two_columns() {
  FeatureConfig features;
  features.n_mels = 2;
  return augmenter_of({.time_masks = 1,
                       .time_mask_ms = 40,
                       .frequency_masks = 1,
                       .frequency_mask_bands = 1,
                       .gain_db = 6,
                       .noise_snr_db = {5, 15},
                       .transpose_bands = 1},
                      features, {{0.5, -1}, {1, 2}}, 5);
}

TEST(AugmentedBatch, ARowDoesNotDependOnItsCompanyAndPaddingStays) {
  const std::vector<Sequence> sequences = some_sequences();
  const auto augmenter = two_columns();
  ThreadPool one(1), four(4);
  const auto batch_of = [&](const std::vector<std::int64_t>& rows, ThreadPool& pool) {
    Batch batch = make_batch(sequences, rows, tiny(0));
    augment(batch, *augmenter, 3, pool);
    return batch;
  };
  const std::vector<std::int64_t> rows{4, 0, 7, 5};
  const Batch together = batch_of(rows, four);
  EXPECT_TRUE(segfuse::testing::same_bits(together.features, batch_of(rows, one).features));
  const std::int64_t padded = together.features.shape()[1] * 2;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const Batch alone = batch_of({rows[i]}, one);
    const std::int64_t own = sequences[static_cast<std::size_t>(rows[i])].frames() * 2;
    for (std::int64_t at = 0; at < own; ++at)
      EXPECT_EQ(together.features.at(row * padded + at), alone.features.at(at));
    for (std::int64_t at = own; at < padded; ++at)
      EXPECT_EQ(together.features.at(row * padded + at), 0) << "padding of row " << i;
  }
  EXPECT_TRUE(
      segfuse::testing::same_bits(together.labels, make_batch(sequences, rows, tiny(0)).labels));
}

TEST(Augmented, AnyNumberOfThreadsAndRanksMakesTheSameBits) {
  const auto augmenter = two_columns();
  Training plain, training, other;
  training.options.augmenter = augmenter;
  const TrainingOutcome expected = training.run(1);
  EXPECT_FALSE(segfuse::testing::same_bits(plain.run(1).parameters[0], expected.parameters[0]));
  expect_equal(training.run(4), expected);
  other.options.augmenter = augmenter;
  const TrainingOutcome on_ranks = run_on_ranks(2, other);
  for (std::size_t e = 0; e < expected.history.size(); ++e)
    EXPECT_EQ(on_ranks.history[e].train_loss, expected.history[e].train_loss);
}

TEST(Augmented, EachEpochShowsSomethingElse) {
  // Without learning, the loss of a sequence is the same unless it looks different.
  const auto augmenter = two_columns();
  Training training(tiny(0));
  training.plan.learning_rate = 0;
  training.plan.adamw.weight_decay = 0;
  training.options.augmenter = augmenter;
  const TrainingOutcome outcome = training.run(1);
  EXPECT_NE(outcome.history[0].train_loss, outcome.history[1].train_loss);
  training.options.augmenter = nullptr;
  const TrainingOutcome plain = training.run(1);
  EXPECT_NEAR(plain.history[0].train_loss, plain.history[1].train_loss, 1e-5);
}

TEST(Augmented, AnInterruptedTrainingGoesOnWithTheSameBits) {
  const auto augmenter = two_columns();
  const auto score = [](const std::vector<std::vector<FrameSegment>>&) {
    static int scorings = 0;
    if (++scorings == 1) std::raise(SIGINT);
    return DevScores{1, 0, 0};
  };
  const auto run = [&](Training& training, const Scorer& scorer) {
    training.plan.epochs = 4;
    training.options.augmenter = augmenter;
    training.options.execution.context = Context().with(options::kThreads, std::int64_t{1});
    std::vector<Tensor> own;
    for (const Tensor& parameter : training.model.parameters) own.push_back(parameter.clone());
    return train(training.model.segmenter, training.plan, own, training.model.limit,
                 training.sequences, some_sequences(6, {8, 5}), scorer, training.options);
  };
  Training whole, stopped;
  const TrainingOutcome expected = run(whole, [](const auto&) { return DevScores{1, 0, 0}; });
  EXPECT_THROW(run(stopped, score), Interrupted);
  stopped.options.resume = true;
  expect_equal(run(stopped, score), expected);
}

}  // namespace
}  // namespace segfuse::learn
