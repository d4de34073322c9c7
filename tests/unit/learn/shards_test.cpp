// Steps of several shards: each gradient by itself, their sum in the tree, and one update of flat
// vectors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/os/file.h"
#include "base/thread_pool.h"
#include "comm/threads/thread_group.h"
#include "learn/data/buckets.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/loop/ranks.h"
#include "small_training.h"

namespace segfuse::learn {
namespace {

using optim::FlatLayout;
using optim::FlatTensors;
using segfuse::testing::same_bits;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(FlatLayout, ParametersLieApartAndInTheirRanges) {
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kSoftmax}) {
    const Model model(head);
    const FlatLayout& layout = model.layout;
    EXPECT_EQ(layout.size % FlatLayout::kBlock, 0);
    EXPECT_LE(layout.decayed, layout.last);
    EXPECT_LE(layout.last, layout.size);
    std::vector<int> owners(static_cast<std::size_t>(layout.size), 0);
    for (std::size_t i = 0; i < layout.begin.size(); ++i) {
      const nn::ParameterSpec& spec = model.segmenter.parameters()[i];
      const std::int64_t end = layout.begin[i] + num_elements(spec.shape);
      EXPECT_EQ(layout.begin[i] % FlatLayout::kAlignment, 0);
      EXPECT_EQ(layout.begin[i] < layout.decayed, spec.decay) << spec.name;
      EXPECT_EQ(layout.begin[i] >= layout.last, is_crf(spec)) << spec.name;
      for (std::int64_t e = layout.begin[i]; e < end; ++e) ++owners[static_cast<std::size_t>(e)];
    }
    EXPECT_EQ(*std::ranges::max_element(owners), 1);
    FlatTensors flat = FlatTensors::copy(layout, model.parameters);
    for (std::size_t i = 0; i < flat.parts.size(); ++i)
      EXPECT_TRUE(same_bits(flat.parts[i], model.parameters[i]));
    flat.parts[2].set(0, 17);
    EXPECT_EQ(flat.whole.at(layout.begin[2]), 17);
  }
}

/// The gradient of one shard by a program of its own, one after the other.
std::vector<Tensor> gradient_of(const Model& model, const Batch& batch, const ShardPlace& place,
                                double* loss) {
  ThreadPool pool(1);
  engine::Executable program(model.segmenter.training(), pool);
  BoundInputs inputs(program.fusion());
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    inputs.set(model.segmenter.parameters()[i].name, model.parameters[i]);
  if (inputs.has("duration_limit")) inputs.set("duration_limit", model.limit);
  bind_batch(inputs, batch, place);
  std::vector<Tensor> results = program.run(inputs.tensors());
  *loss += results[0].at(0);
  results.erase(results.begin());
  return results;
}

Tensor sum_of(const Tensor& left, const Tensor& right) {
  Tensor sum(DType::kF32, left.shape());
  for (std::int64_t e = 0; e < sum.size(); ++e)
    sum.set(e, left.span<float>()[static_cast<std::size_t>(e)] +
                   right.span<float>()[static_cast<std::size_t>(e)]);
  return sum;
}

/// A step of `rows` against the recursion over the gradients of each, and AdamW parameter by
/// parameter.
void expect_step(HeadKind head, std::int64_t shards,
                 const std::vector<std::vector<std::int64_t>>& rows) {
  const Model model(head);
  StepOptions plan;
  plan.shards = shards;
  plan.crf_reg = 0.25;
  plan.adamw.average = 0.5;
  const std::vector<Sequence> sequences = some_sequences();
  const FlatState state = model.state();
  TrainingStep step(model.segmenter, plan, state, model.layout, {{"duration_limit", model.limit}},
                    {});
  step.begin(static_cast<std::int64_t>(rows.size()));
  std::vector<std::vector<Tensor>> gradients;
  double loss = 0;
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const Batch batch = make_batch(sequences, rows[s], model.segmenter.config());
    const ShardPlace place{7, 40 + static_cast<std::int64_t>(s), 30};
    step.add(batch, place);
    gradients.push_back(gradient_of(model, batch, place, &loss));
  }
  TrainingRanks alone(nullptr, shards);
  double found = 0;
  for (const float of_shard : step.losses()) found += static_cast<double>(of_shard);
  const double norm = step.reduce(alone);
  step.update(0.01, 0.5, 3);
  EXPECT_EQ(found, loss);

  ir::Fusion update = optim::adamw_update(model.segmenter.parameters(), plan.adamw);
  BoundInputs inputs(update);
  double squares = 0;
  const FlatState expected = model.state();
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const nn::ParameterSpec& spec = model.segmenter.parameters()[i];
    // Pairs, then pairs of pairs: the last of an odd number goes up by itself.
    std::vector<Tensor> level;
    for (const std::vector<Tensor>& shard : gradients) level.push_back(shard[i]);
    while (level.size() > 1) {
      std::vector<Tensor> above;
      for (std::size_t k = 0; k < level.size(); k += 2)
        above.push_back(k + 1 < level.size() ? sum_of(level[k], level[k + 1]) : level[k]);
      level = above;
    }
    Tensor gradient = level[0].clone();
    for (std::int64_t e = 0; e < gradient.size() && is_crf(spec); ++e) {
      const float pull = static_cast<float>(model.parameters[i].at(e)) * 0.25F;
      gradient.set(e, static_cast<float>(gradient.at(e)) + pull);
    }
    for (std::int64_t e = 0; e < gradient.size(); ++e) squares += gradient.at(e) * gradient.at(e);
    inputs.set(spec.name, expected.parameters.parts[i]);
    inputs.set("gradient." + spec.name, gradient);
    inputs.set("m." + spec.name, expected.first_moment.parts[i]);
    inputs.set("v." + spec.name, expected.second_moment.parts[i]);
    inputs.set("mean." + spec.name, expected.average.parts[i]);
  }
  const auto scalar = [&](const char* name, double value) {
    inputs.set(name, Tensor::full(DType::kF32, {}, value));
  };
  scalar("rate", 0.01);
  scalar("clip", 0.5);
  scalar("correction1", 1 / (1 - std::pow(plan.adamw.beta1, 3)));
  scalar("correction2", 1 / (1 - std::pow(plan.adamw.beta2, 3)));
  ThreadPool pool(1);
  engine::Executable(update, pool).run(inputs.tensors());
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * norm);
  EXPECT_TRUE(same_bits(state.parameters.whole, expected.parameters.whole));
  EXPECT_TRUE(same_bits(state.first_moment.whole, expected.first_moment.whole));
  EXPECT_TRUE(same_bits(state.second_moment.whole, expected.second_moment.whole));
  EXPECT_TRUE(same_bits(state.average.whole, expected.average.whole));
  EXPECT_FALSE(same_bits(state.parameters.whole, model.state().parameters.whole));
}

TEST(TrainingStep, AddsShardsInTheTreeAndUpdatesAllParameters) {
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax}) {
    expect_step(head, 1, {{0, 3, 5}});
    expect_step(head, 4, {{0}, {1, 2}, {3}, {4}});
    expect_step(head, 8, {{0}, {1, 2}, {3}, {4}, {5}, {6}, {7}});
    expect_step(head, 8, {{0}, {1}, {3}, {4}, {9}});
  }
}

TEST(Shards, AnyNumberOfThreadsMakesTheSameBits) {
  Training training;
  const TrainingOutcome one = training.run(1);
  expect_equal(one, training.run(2));
  Training other;
  other.plan.shards = 2;
  EXPECT_NE(other.run(1).history[1].train_loss, one.history[1].train_loss)
      << "other shards have other random numbers";
}

/// Which batches, random numbers, scale, rate and clip each step has.
TEST(Shards, ATrainingIsTheStepsOfItsShards) {
  Training training;
  training.plan.shards = 2;
  training.plan.clip = 1e-3;
  const TrainingOutcome outcome = training.run(1);
  const Model& model = training.model;
  const TrainingPlan& plan = training.plan;
  std::vector<std::int64_t> lengths;
  for (const Sequence& sequence : training.sequences) lengths.push_back(sequence.frames());
  const auto steps_of = [&](std::int64_t epoch) {
    return make_steps(lengths, {plan.batch_size / 2, 0, plan.seed}, 2, epoch);
  };
  optim::ScheduleConfig schedule{plan.learning_rate};
  schedule.total_steps = static_cast<std::int64_t>(steps_of(0).size() + steps_of(1).size());
  schedule.warmup_steps = std::llround(plan.warmup * static_cast<double>(schedule.total_steps));
  FlatState state = model.state();
  state.average = {};
  TrainingStep step(model.segmenter, {2, 0, plan.adamw}, state, model.layout,
                    {{"duration_limit", model.limit}}, {});
  TrainingRanks alone(nullptr, 2);
  std::int64_t done = 0;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch)
    for (const auto& shards : steps_of(epoch)) {
      std::int64_t segments = 0;
      for (const auto& rows : shards)
        for (const std::int64_t row : rows)
          segments += static_cast<std::int64_t>(
              training.sequences[static_cast<std::size_t>(row)].segments.size());
      step.begin(static_cast<std::int64_t>(shards.size()));
      for (std::size_t s = 0; s < shards.size(); ++s)
        step.add(make_batch(training.sequences, shards[s], model.segmenter.config()),
                 {plan.seed, 2 * done + static_cast<std::int64_t>(s), segments});
      const double norm = step.reduce(alone);
      ASSERT_GT(norm, plan.clip);
      step.update(optim::learning_rate(schedule, done), plan.clip / norm, done + 1);
      ++done;
    }
  for (std::size_t i = 0; i < outcome.parameters.size(); ++i)
    EXPECT_TRUE(same_bits(outcome.parameters[i], state.parameters.parts[i])) << i;
}

/// From a checkpoint within the first epoch.
void expect_goes_on(Training& training) {
  training.options.checkpoint_seconds = 1e-9;  // after every step
  const std::filesystem::path& checkpoint = training.options.checkpoint;
  const std::filesystem::path kept = checkpoint.string() + ".kept";
  std::vector<Tensor> own;
  for (const Tensor& parameter : training.model.parameters) own.push_back(parameter.clone());
  const auto keep = [&](const auto&) {
    if (!std::filesystem::exists(kept)) std::filesystem::copy_file(checkpoint, kept);
    return DevScores{};
  };
  training.options.execution.context = Context().with(options::kThreads, std::int64_t{1});
  const TrainingOutcome expected =
      train(training.model.segmenter, training.plan, own, training.model.limit, training.sequences,
            training.sequences, keep, training.options);
  const TrainingState state =
      read_checkpoint(kept, training.model.segmenter.parameters(), expected.recipe);
  EXPECT_EQ(state.epoch, 0);
  EXPECT_EQ(state.step, 2);
  std::filesystem::rename(kept, checkpoint);
  training.options.resume = true;
  expect_equal(train(
                   training.model.segmenter, training.plan, training.model.parameters,
                   training.model.limit, training.sequences, training.sequences,
                   [](const auto&) { return DevScores{}; }, training.options),
               expected);
}

TEST(Shards, ATrainingGoesOnWhereItWas) {
  Training training;
  expect_goes_on(training);
}

class RecurrentShards : public ::testing::TestWithParam<nn::Recurrence> {
 protected:
  static ModelConfig config() {
    ModelConfig config = tiny(0.3);
    config.recurrence = GetParam();
    config.recurrent_blocks = 2;
    config.recurrent_states = 3;
    return config;
  }
};

TEST_P(RecurrentShards, AnyNumberOfThreadsAndRanksMakesTheSameBits) {
  Training training(config());
  const TrainingOutcome one = training.run(1);
  expect_equal(one, training.run(2));
  const TrainingOutcome alone = run_on_ranks(1, training);
  expect_equal(run_on_ranks(2, training), alone);
  EXPECT_EQ(alone.history[1].train_loss, one.history[1].train_loss);
}

TEST_P(RecurrentShards, ATrainingGoesOnWhereItWas) {
  Training training(config());
  expect_goes_on(training);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecurrentShards,
                         ::testing::Values(nn::Recurrence::kLstm, nn::Recurrence::kGru,
                                           nn::Recurrence::kSsm));

TEST(Shards, AnyNumberOfRanksMakesTheSameBits) {
  for (const std::int64_t shards : {8, 16}) {
    Training training;
    training.plan.shards = shards;
    training.plan.batch_size = shards;  // the second step of an epoch is a short one
    training.plan.crf_reg = 0.01;
    training.plan.adamw.average = 0.9;
    for (Sequence& more : some_sequences()) training.sequences.push_back(std::move(more));
    const TrainingOutcome one = run_on_ranks(1, training);
    const std::string checkpoint = read_file(training.options.checkpoint);
    for (const int ranks : {2, 3, 5, 8}) {
      expect_equal(run_on_ranks(ranks, training), one);
      EXPECT_EQ(read_file(training.options.checkpoint), checkpoint) << ranks << " ranks";
    }
  }
}

TEST(Shards, ATrainingGoesOnOnOtherRanks) {
  Training training;
  training.plan.shards = training.plan.batch_size = 8;
  const TrainingOutcome one = run_on_ranks(3, training);
  training.options.checkpoint_seconds = 1e-9;
  std::filesystem::remove(training.options.checkpoint);
  const std::filesystem::path kept = training.options.checkpoint.string() + ".kept";
  comm::run_ranks(4, [&](comm::Group& group) {
    TrainerOptions options = training.options;
    options.group = &group;
    options.interruptible = false;
    options.execution.context = Context().with(options::kThreads, std::int64_t{1});
    std::vector<Tensor> own;
    for (const Tensor& parameter : training.model.parameters) own.push_back(parameter.clone());
    static_cast<void>(train(
        training.model.segmenter, training.plan, own, training.model.limit, training.sequences,
        training.sequences,
        [&](const auto&) {
          if (!std::filesystem::exists(kept)) std::filesystem::copy_file(options.checkpoint, kept);
          return DevScores{};
        },
        options));
  });
  training.options.resume = true;
  for (const int ranks : {1, 5}) {
    std::filesystem::copy_file(kept, training.options.checkpoint,
                               std::filesystem::copy_options::overwrite_existing);
    const TrainingOutcome resumed = run_on_ranks(ranks, training);
    ASSERT_THAT(resumed.history, SizeIs(2));
    EXPECT_EQ(resumed.history[1].train_loss, one.history[1].train_loss);
    EXPECT_EQ(resumed.history[0].train_loss, one.history[0].train_loss);
  }
  std::filesystem::remove(kept);
}

/// The first cause, on every rank.
TEST(Shards, RanksEndTogether) {
  Training training;
  training.plan.shards = training.plan.batch_size = 8;
  training.options.interruptible = false;
  const auto failure = [&](int guilty, const auto& harm) {
    std::vector<std::string> said(4);
    try {
      comm::run_ranks(4, [&](comm::Group& group) {
        TrainerOptions options = training.options;
        options.group = &group;
        options.execution.context = Context().with(options::kThreads, std::int64_t{1});
        std::vector<Tensor> own;
        for (const Tensor& p : training.model.parameters) own.push_back(p.clone());
        TrainingPlan plan = training.plan;
        std::vector<Sequence> sequences;
        for (const Sequence& s : training.sequences)
          sequences.push_back({s.id, s.features.clone(), s.segments});
        if (guilty < 0 || group.rank() == guilty) harm(plan, sequences);
        try {
          static_cast<void>(train(training.model.segmenter, plan, own, training.model.limit,
                                  sequences, {}, {}, options));
        } catch (const std::exception& error) {
          said[static_cast<std::size_t>(group.rank())] = error.what();
          throw;
        }
      });
    } catch (const std::exception&) {
    }
    return said;
  };
  const auto other_data = failure(
      2, [](TrainingPlan&, std::vector<Sequence>& sequences) { sequences[3].features.set(1, 5); });
  EXPECT_THAT(other_data[0], HasSubstr("rank 2 does not train the same as rank 0"));
  EXPECT_THAT(other_data[0], HasSubstr("features of the training recordings"));
  for (const std::string& text : other_data)
    EXPECT_THAT(text, HasSubstr("rank 2 does not train the same"));
  const auto diverged = failure(-1, [](TrainingPlan&, std::vector<Sequence>& sequences) {
    sequences[4].features.set(3, -INFINITY);
  });
  for (const std::string& text : diverged) {
    EXPECT_THAT(text, HasSubstr("first recording 'r17'"));
    EXPECT_THAT(text, HasSubstr("'features' holds -inf at ["));
  }
}

/// Programs that are cut and ordered differently would give other last digits, and no word of it.
TEST(Shards, RanksWithOtherPlansEndTogether) {
  Training training;
  training.plan.shards = training.plan.batch_size = 8;
  training.options.execution.backend = "loops";
  try {
    (void)run_on_ranks(3, training, [](comm::Group& group, TrainerOptions& own) {
      if (group.rank() == 1) own.execution.backend = "reference";
    });
    FAIL() << "they trained together";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 does not train the same as rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("back end: loops then, reference now"));
  }
}

TEST(Shards, WhatIsNotFiniteIsNamedByItsShard) {
  Training training;
  training.plan.batch_size = 16;
  training.plan.shards = 16;
  training.sequences[4].features.set(3, -INFINITY);
  const std::string message = training.refusal();
  EXPECT_THAT(message, HasSubstr("step 1 (epoch 1, first recording 'r17')"));
  EXPECT_THAT(message, HasSubstr("'features' holds -inf at ["));
}

}  // namespace
}  // namespace segfuse::learn
