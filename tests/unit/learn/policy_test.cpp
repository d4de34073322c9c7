// What a training does between its steps: clipping, AdamW's corrections, which epochs are scored,
// which is the best, when it ends, and what a checkpoint keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include "base/rng.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/loop/crf_start.h"
#include "learn/train/loop/trainer.h"
#include "segfuse/error.h"
#include "small_data.h"
#include "support/files.h"
#include "support/tensors.h"

namespace segfuse::learn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A training whose development scores are the test's.
struct Training {
  Segmenter segmenter{tiny(0)};
  TrainingPlan plan;
  TrainerOptions options;
  std::vector<Tensor> parameters;
  std::vector<Sequence> sequences = some_sequences(5, {9, 14, 11, 6});
  std::vector<Sequence> dev = some_sequences(6, {8, 5});
  std::vector<DevScores> scores;  // of one scoring after the other; the last one stays
  std::function<void(std::size_t)> watch = [](std::size_t) {};
  std::size_t scorings = 0;

  Training() {
    plan.epochs = 3;
    plan.batch_size = 4;
    plan.learning_rate = 0.02;
    options.quiet = true;
    options.checkpoint = folder / "checkpoint";
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      parameters.push_back(nn::initial_value(spec, 1));
  }
  test::TemporaryDirectory folder;
  TrainingOutcome run() {
    options.execution.context = Context().with(options::kThreads, std::int64_t{1});
    std::vector<Tensor> own;
    for (const Tensor& parameter : parameters) own.push_back(parameter.clone());
    const auto score = [this](const std::vector<std::vector<FrameSegment>>& decoded) {
      EXPECT_THAT(decoded, SizeIs(dev.size()));
      watch(scorings);
      const std::size_t at = scorings++;
      return scores.empty() ? DevScores{} : scores[std::min(at, scores.size() - 1)];
    };
    return train(segmenter, plan, own, duration_limit_table({4, 4, 4}, 4), sequences, dev, score,
                 options);
  }
  /// The label errors of one scoring after the other.
  void errors(const std::vector<double>& values) {
    for (const double value : values) scores.push_back({value, 0, 0});
  }
  TrainingState state(const TrainingOutcome& outcome) const {
    return read_checkpoint(options.checkpoint, segmenter.parameters(), outcome.recipe);
  }
};

double norm_of(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors)
    for (std::int64_t i = 0; i < tensor.size(); ++i) sum += tensor.at(i) * tensor.at(i);
  return std::sqrt(sum);
}

TEST(Clipping, TheUpdateSeesAGradientOfAtMostThatNorm) {
  const auto norm_seen = [](double clip) {
    Training training;
    training.plan.epochs = 1;  // of one batch: one step
    training.plan.clip = clip;
    const TrainingOutcome outcome = training.run();
    return norm_of(training.state(outcome).first_moment) / (1 - training.plan.adamw.beta1);
  };
  const double norm = norm_seen(0);
  ASSERT_GT(norm, 0.01);
  EXPECT_NEAR(norm_seen(0.5 * norm), 0.5 * norm, 1e-4 * norm);
  EXPECT_NEAR(norm_seen(0.01 * norm), 0.01 * norm, 1e-6 * norm);
  EXPECT_NEAR(norm_seen(2 * norm), norm, 1e-4 * norm) << "a smaller one is left alone";
}

TEST(Steps, AreAdamWWithBothCorrections) {
  Training training;
  training.plan.epochs = 4;
  training.plan.warmup = 0;
  training.plan.clip = 0;
  training.plan.adamw.beta1 = 0.8;
  training.plan.adamw.beta2 = 0.95;
  std::vector<TrainingState> states(1);
  states[0].parameters = training.parameters;
  states[0].first_moment = states[0].second_moment = {};
  for (const Tensor& p : training.parameters) {
    states[0].first_moment.push_back(Tensor::zeros(p.dtype(), p.shape()));
    states[0].second_moment.push_back(Tensor::zeros(p.dtype(), p.shape()));
  }
  Recipe recipe;
  add_data(recipe, "training", training.sequences);
  add_data(recipe, "development", training.dev);
  const auto keep = [&] {
    states.push_back(
        read_checkpoint(training.options.checkpoint, training.segmenter.parameters(), recipe));
  };
  training.watch = [&](std::size_t scoring) {
    if (scoring > 0) keep();  // the checkpoint of the epoch before
  };
  const TrainingOutcome outcome = training.run();
  keep();
  ASSERT_THAT(states, SizeIs(5));
  const optim::AdamWConfig& adamw = training.plan.adamw;
  for (std::size_t t = 1; t < states.size(); ++t) {
    const double rate = outcome.history[t - 1].learning_rate;
    ASSERT_GT(rate, 0);
    double largest = 0;
    for (std::size_t i = 0; i < training.parameters.size(); ++i) {
      const bool decays = training.segmenter.parameters()[i].decay;
      for (std::int64_t e = 0; e < training.parameters[i].size(); ++e) {
        const double m = states[t].first_moment[i].at(e);
        const double v = states[t].second_moment[i].at(e);
        const double before = states[t - 1].parameters[i].at(e);
        const double gradient =
            (m - adamw.beta1 * states[t - 1].first_moment[i].at(e)) / (1 - adamw.beta1);
        EXPECT_NEAR(v,
                    adamw.beta2 * states[t - 1].second_moment[i].at(e) +
                        (1 - adamw.beta2) * gradient * gradient,
                    1e-5 * (1 + gradient * gradient));
        const double steps = static_cast<double>(t);
        const double moved = m / (1 - std::pow(adamw.beta1, steps)) /
                             (std::sqrt(v / (1 - std::pow(adamw.beta2, steps))) + adamw.epsilon);
        const double expected =
            before - rate * (moved + (decays ? adamw.weight_decay * before : 0));
        EXPECT_NEAR(states[t].parameters[i].at(e), expected, 2e-5 * rate + 1e-6)
            << "step " << t << " of " << training.segmenter.parameters()[i].name;
        largest = std::max(largest, std::abs(moved));
      }
    }
    EXPECT_GT(largest, 0.5);
  }
}

TEST(Patience, EndsAfterThatManyEpochsThatWereNoBetter) {
  const auto epochs = [](std::int64_t patience, const std::vector<double>& errors) {
    Training training;
    training.plan.epochs = 8;
    training.plan.patience = patience;
    training.errors(errors);
    const TrainingOutcome outcome = training.run();
    EXPECT_EQ(outcome.stopped_early, outcome.history.size() < 8);
    return std::pair(outcome.best_epoch, outcome.history.size());
  };
  EXPECT_EQ(epochs(2, {5, 4, 4.5, 4.2, 3}), std::pair(std::int64_t{2}, std::size_t{4}));
  EXPECT_EQ(epochs(3, {5, 4, 4.5, 4.2, 3, 3.5}), std::pair(std::int64_t{5}, std::size_t{8}));
  EXPECT_EQ(epochs(1, {5, 5, 1}), std::pair(std::int64_t{2}, std::size_t{2}))
      << "as good is not better, though kept for its lower loss";
  EXPECT_EQ(epochs(0, {5, 6}), std::pair(std::int64_t{1}, std::size_t{8}));
}

TEST(Selection, OnlySomeEpochsAreScoredAndTheLastIs) {
  Training training;
  training.plan.epochs = 7;
  training.plan.select_every = 3;
  training.errors({3, 2, 1});
  ::testing::internal::CaptureStderr();
  training.options.quiet = false;
  const TrainingOutcome outcome = training.run();
  const std::string said = ::testing::internal::GetCapturedStderr();
  std::vector<std::int64_t> scored;
  for (const EpochRecord& record : outcome.history) {
    EXPECT_EQ(std::isnan(record.dev_error), std::isnan(record.dev_loss));
    if (!std::isnan(record.dev_error)) scored.push_back(record.epoch);
  }
  EXPECT_THAT(scored, ElementsAre(3, 6, 7));
  EXPECT_EQ(outcome.best_epoch, 7);
  EXPECT_EQ(said.find("nan"), std::string::npos) << said;
}

TEST(Selection, TheParametersKeptAreThoseOfTheBestEpoch) {
  Training training;
  training.plan.epochs = 4;
  training.errors({3, 1, 1, 2});
  std::vector<std::vector<Tensor>> after;
  Recipe recipe;
  add_data(recipe, "training", training.sequences);
  add_data(recipe, "development", training.dev);
  training.watch = [&](std::size_t scoring) {
    if (scoring > 0)
      after.push_back(
          read_checkpoint(training.options.checkpoint, training.segmenter.parameters(), recipe)
              .parameters);
  };
  const TrainingOutcome outcome = training.run();
  EXPECT_LT(outcome.history[2].dev_loss, outcome.history[1].dev_loss);
  EXPECT_EQ(outcome.best_epoch, 3) << "of equals the one with the lower loss";
  for (std::size_t i = 0; i < outcome.parameters.size(); ++i)
    EXPECT_TRUE(segfuse::testing::same_bits(outcome.parameters[i], after.at(2)[i])) << i;
}

TEST(Selection, OfEqualEpochsTheOneWithTheLowestLossIsKept) {
  const auto best = [](double rate) {
    Training training;
    training.plan.epochs = 5;
    training.plan.learning_rate = rate;
    training.plan.warmup = 0;
    training.errors({2, 1, 1, 1, 3});
    const TrainingOutcome outcome = training.run();
    std::size_t least = 1;
    for (std::size_t i = 1; i < 4; ++i)
      if (outcome.history[i].dev_loss < outcome.history[least].dev_loss) least = i;
    EXPECT_EQ(outcome.best_epoch, outcome.history[least].epoch);
    return outcome.best_epoch;
  };
  EXPECT_EQ(best(1e-3), 4) << "the loss falls";
  EXPECT_EQ(best(0), 2) << "the first where that is equal, too";
}

TEST(Selection, EachCriterionChoosesByItsOwnFigure) {
  const auto best = [](Selection by) {
    Training training;
    training.plan.epochs = 4;
    training.plan.select_by = by;
    training.scores = {{0.4, 0.1, 0.9}, {0.2, 0.5, 0.1}, {0.3, 0.8, 0.2}, {0.5, 0.7, 0.3}};
    const TrainingOutcome outcome = training.run();
    std::size_t least = 0;
    for (std::size_t i = 1; i < 4; ++i)
      if (outcome.history[i].dev_loss < outcome.history[least].dev_loss) least = i;
    if (by == Selection::kLoss) {
      EXPECT_EQ(outcome.best_epoch, outcome.history[least].epoch);
    }
    EXPECT_EQ(outcome.history[2].dev_error, 0.3);
    return outcome.best_epoch;
  };
  EXPECT_EQ(best(Selection::kLabelError), 2);
  EXPECT_EQ(best(Selection::kBoundaryF1), 3);
  EXPECT_EQ(best(Selection::kSegmentF1), 1);
  EXPECT_EQ(best(Selection::kLoss), 4) << "this one falls all the time";
}

TEST(Selection, RecordingsWithUnknownLabelsHaveNoLoss) {
  Training known;
  known.dev.resize(1);
  const double expected = known.run().history[0].dev_loss;
  Training some;
  some.dev[1].segments[0].label = kUnknownLabel;
  EXPECT_EQ(some.run().history[0].dev_loss, expected);
  for (Sequence& sequence : some.dev) sequence.segments[0].label = kUnknownLabel;
  EXPECT_TRUE(std::isnan(some.run().history[0].dev_loss));
  some.plan.select_by = Selection::kLoss;
  EXPECT_THROW(some.run(), UsageError);
}

TEST(Divergence, SeenFirstOnTheDevelopmentSetNamesTheEpochAndTheRecording) {
  Training training;
  training.plan.learning_rate = 1e30;  // finite in the step, not in what is decoded after it
  training.plan.warmup = 0;
  try {
    (void)training.run();
    FAIL() << "nothing was said";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("after epoch 1: r5: "));
    EXPECT_THAT(error.what(), HasSubstr("lower training.learning_rate or set training.clip"));
  }
}

// ------------------------------------------------------------------------------------ checkpoints

TEST(Resuming, KeepsEverythingThatTheNextStepDependsOn) {
  const Segmenter segmenter(tiny(0));
  Rng rng(3);
  TrainingState state;
  for (auto* tensors :
       {&state.parameters, &state.first_moment, &state.second_moment, &state.average, &state.best})
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      tensors->push_back(segfuse::testing::uniform(rng, DType::kF32, spec.shape));
  state.step = 17;
  state.epoch = 3;
  state.batch = 5;
  state.epoch_loss = 123.4375;
  state.epoch_segments = 61;
  state.best_score = 0.1875;
  state.best_epoch = 2;
  state.history = {{1, 2.5, 3.5, 0.5, 1e-3, 4.5, 5.5, 0.25},
                   {2, 1.5, kNaN, kNaN, 2e-3, 6, 7, kNaN},
                   {3, 1.25, 2.5, 0.25, 3e-3, 5, 6, 0.1875}};
  const test::TemporaryDirectory folder;
  const auto path = folder / "checkpoint";
  const Recipe recipe{{"features.kind", "\"log_mel\""}, {"label 0", "a"}};
  write_checkpoint(path, state, segmenter.parameters(), recipe);
  const TrainingState back = read_checkpoint(path, segmenter.parameters(), recipe);
  EXPECT_EQ(back.step, state.step);
  EXPECT_EQ(back.epoch, state.epoch);
  EXPECT_EQ(back.batch, state.batch);
  EXPECT_EQ(back.epoch_loss, state.epoch_loss);
  EXPECT_EQ(back.epoch_segments, state.epoch_segments);
  EXPECT_EQ(back.best_score, state.best_score);
  EXPECT_EQ(back.best_epoch, state.best_epoch);
  ASSERT_THAT(back.history, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) {
    const EpochRecord& a = state.history[i];
    const EpochRecord& b = back.history[i];
    EXPECT_EQ(b.epoch, a.epoch);
    const std::vector<double> kept{b.train_loss,  b.dev_loss,      b.dev_error, b.learning_rate,
                                   b.crf_largest, b.other_largest, b.dev_score};
    const std::vector<double> given{a.train_loss,  a.dev_loss,      a.dev_error, a.learning_rate,
                                    a.crf_largest, a.other_largest, a.dev_score};
    for (std::size_t k = 0; k < kept.size(); ++k)
      EXPECT_TRUE(kept[k] == given[k] || (std::isnan(kept[k]) && std::isnan(given[k]))) << k;
  }
  for (auto member : {&TrainingState::parameters, &TrainingState::first_moment,
                      &TrainingState::second_moment, &TrainingState::average, &TrainingState::best})
    for (std::size_t i = 0; i < segmenter.parameters().size(); ++i)
      EXPECT_TRUE(segfuse::testing::same_bits((back.*member)[i], (state.*member)[i]));
  std::filesystem::remove(path);
}

TEST(Resuming, AnInterruptedTrainingEndsWithTheSameBitsAndEpochs) {
  Training whole;
  whole.plan.epochs = 6;
  whole.plan.patience = 3;
  whole.plan.adamw.average = 0.5;
  whole.errors({5, 4, 3, 4, 4, 4});
  const TrainingOutcome expected = whole.run();
  Training stopped;
  stopped.plan = whole.plan;
  stopped.scores = whole.scores;
  stopped.watch = [](std::size_t scoring) {
    if (scoring == 1 || scoring == 3) std::raise(SIGINT);
  };
  EXPECT_THROW(stopped.run(), Interrupted);
  stopped.options.resume = true;
  EXPECT_THROW(stopped.run(), Interrupted);
  const TrainingOutcome resumed = stopped.run();
  EXPECT_EQ(resumed.best_epoch, expected.best_epoch);
  EXPECT_EQ(resumed.stopped_early, expected.stopped_early);
  ASSERT_EQ(resumed.history.size(), expected.history.size());
  for (std::size_t i = 0; i < resumed.history.size(); ++i) {
    EXPECT_EQ(resumed.history[i].train_loss, expected.history[i].train_loss);
    EXPECT_EQ(resumed.history[i].dev_loss, expected.history[i].dev_loss);
    EXPECT_EQ(resumed.history[i].dev_error, expected.history[i].dev_error);
  }
  for (std::size_t i = 0; i < resumed.parameters.size(); ++i)
    EXPECT_TRUE(segfuse::testing::same_bits(resumed.parameters[i], expected.parameters[i])) << i;
}

TEST(Recipe, EveryDifferenceIsNamed) {
  const Recipe then{{"features.kind", "\"log_mel\""}, {"features.fmin", "20"}, {"label 1", "b"}};
  EXPECT_EQ(differences(then, then), "");
  EXPECT_EQ(differences(then, {{"features.kind", "\"mfcc\""}, {"features.fmin", "20"}}),
            "features.kind: \"log_mel\" then, \"mfcc\" now; label 1: b then, nothing now");
  Recipe many;
  for (int i = 0; i < 9; ++i) many.emplace_back("label " + std::to_string(i), "x");
  EXPECT_THAT(differences({}, many), HasSubstr("label 3: nothing then, x now; and 5 more"));
}

TEST(Recipe, OneBitOfTheDataIsAnotherRun) {
  const auto recipe_of_data = [](const std::function<void(Sequence&)>& change) {
    std::vector<Sequence> data = some_sequences(5, {9, 14});
    change(data[1]);
    Recipe recipe;
    add_data(recipe, "training", data);
    return recipe;
  };
  const Recipe same = recipe_of_data([](Sequence&) {});
  const auto named = [&](const std::function<void(Sequence&)>& change) {
    return differences(same, recipe_of_data(change));
  };
  EXPECT_EQ(named([](Sequence&) {}), "");
  EXPECT_THAT(named([](Sequence& s) { s.features.set(27, s.features.at(27) + 1e-3); }),
              HasSubstr("features of the training recordings"));
  EXPECT_THAT(named([](Sequence& s) { s.segments.back().label ^= 1; }),
              HasSubstr("gold segments of the training recordings"));
  EXPECT_THAT(named([](Sequence& s) { s.id += "x"; }), HasSubstr("ids of the training recordings"));
}

}  // namespace
}  // namespace segfuse::learn
