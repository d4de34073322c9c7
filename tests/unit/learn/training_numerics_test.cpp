// The numbers of a training: penalties, pieces of one length, magnitudes, and what is said when a
// step is not finite.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/thread_pool.h"
#include "ir/builder.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/files/safetensors.h"
#include "learn/train/loop/crf_start.h"
#include "learn/train/loop/offender.h"
#include "learn/train/loop/trainer.h"
#include "learn/train/loop/training_step.h"
#include "segfuse/error.h"
#include "small_data.h"
#include "support/files.h"
#include "support/structure.h"
#include "support/tensors.h"

namespace segfuse::learn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// A training of a few epochs in a folder of its own.
struct Training {
  Segmenter segmenter{tiny(0.1)};
  TrainingPlan plan;
  TrainerOptions options;
  std::vector<Tensor> parameters;
  std::vector<Sequence> sequences = some_sequences(5, {9, 14, 11, 6});

  Training() {
    plan.epochs = 3;
    plan.batch_size = 2;
    plan.learning_rate = 0.02;
    options.quiet = true;
    options.checkpoint = folder / "training.safetensors";
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      parameters.push_back(nn::initial_value(spec, 1));
  }
  test::TemporaryDirectory folder;

  std::size_t position(const std::string& name) const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (segmenter.parameters()[i].name == name) return i;
    throw InternalError(fmt::format("no parameter {}", name));
  }
  TrainingOutcome run(int threads = 2) {
    options.execution.context = Context().with(options::kThreads, std::int64_t{threads});
    std::vector<Tensor> own;
    for (const Tensor& parameter : parameters) own.push_back(parameter.clone());
    const Tensor limit = duration_limit_table({4, 4, 4}, 4);
    return train(segmenter, plan, own, limit, sequences, {}, {}, options);
  }
  std::string refusal() {
    try {
      (void)run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST(CrfPenalty, HoldsTheScoresOfATraining) {
  Training training;
  training.plan.epochs = 12;
  const double free = training.run().history.back().crf_largest;
  training.plan.crf_reg = 10;
  const double held = training.run().history.back().crf_largest;
  EXPECT_LT(held, 0.8 * free);
}

TEST(FixedLength, CutsEveryFrameIntoPiecesOfOneLength) {
  const std::vector<Sequence> all = some_sequences(5, {9, 14, 11, 6});  // 9, 14, 11 and 6 frames
  const std::vector<Sequence> pieces = pieces_of(all, 7);
  ASSERT_THAT(pieces, SizeIs(6));
  const std::vector<std::string> ids{"r9@0", "r9@2", "r14@0", "r14@7", "r11@0", "r11@4"};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].id, ids[i]);
    EXPECT_EQ(pieces[i].frames(), 7);
    const auto at = static_cast<std::int64_t>(std::stoi(ids[i].substr(ids[i].find('@') + 1)));
    const Sequence& whole = all[i / 2];
    EXPECT_EQ(std::memcmp(pieces[i].features.data(), whole.features.span<float>().data() + 2 * at,
                          pieces[i].features.bytes()),
              0);
    // The segments tile the piece and have the labels of the whole.
    std::int64_t next = 0;
    for (const FrameSegment& s : pieces[i].segments) {
      EXPECT_EQ(s.start, next);
      next += s.duration;
      for (const FrameSegment& w : whole.segments)
        if (w.start <= at + s.start && at + s.start < w.start + w.duration) {
          EXPECT_EQ(s.label, w.label);
        }
    }
    EXPECT_EQ(next, 7);
  }
  EXPECT_THAT(pieces_of(all, 15), IsEmpty());
}

TEST(Magnitudes, AreThoseOfTheParametersAfterEachEpoch) {
  Training training;
  training.plan.learning_rate = 0;
  training.plan.adamw.weight_decay = 0;
  training.parameters[training.position("crf.initial")].set(1, -7.5);
  training.parameters[training.position("stem.weight")].set(3, 12.25);
  const TrainingOutcome outcome = training.run();
  ASSERT_THAT(outcome.history, SizeIs(3));
  for (const EpochRecord& record : outcome.history) {
    EXPECT_EQ(record.crf_largest, 7.5);
    EXPECT_EQ(record.other_largest, 12.25);
  }
}

TEST(Magnitudes, LargeScoresAreWarnedOfOnce) {
  Training training;
  training.plan.learning_rate = 1e-3;
  ::testing::internal::CaptureStderr();
  (void)training.run();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("largest parameter")));
  training.parameters[training.position("crf.transition")].set(0, 21.5);
  ::testing::internal::CaptureStderr();
  (void)training.run();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("after epoch 1 the largest parameter of the CRF is 21."));
  EXPECT_THAT(said, HasSubstr("--crf-reg"));
  EXPECT_EQ(said.find("largest parameter"), said.rfind("largest parameter"));
}

TEST(NotFinite, TheOperationIsNamedWithWhatItRead) {
  Training training;
  training.parameters[training.position("stem.weight")].set(2, 3e38);
  const std::string message = training.refusal();
  EXPECT_THAT(message, HasSubstr("step 1 (epoch 1, first recording"));
  EXPECT_THAT(message, HasSubstr("gave "));
  EXPECT_THAT(message, HasSubstr("its operands were finite"));
  EXPECT_THAT(message, HasSubstr("beyond 3.40282e+38"));
  training.options.name_offender = false;
  EXPECT_THAT(training.refusal(), Not(HasSubstr("gave ")));
}

/// Scores that are finite and a loss that is not.
TEST(NotFinite, ALossIsNamedWithItsStep) {
  Training training;
  training.parameters[training.position("crf.initial")].set(0, 3e38);
  training.parameters[training.position("crf.transition")].set(1, -3e38);
  const std::string message = training.refusal();
  EXPECT_THAT(message, ::testing::ContainsRegex("the (loss|gradient) of step [1-6] \\(epoch"));
  EXPECT_THAT(message, HasSubstr("lower training.learning_rate"));
}

TEST(NotFinite, AnInputIsNamedWhereItIsTheCause) {
  Training training;
  training.parameters[training.position("block0.mix.weight")].set(5, std::nan(""));
  EXPECT_THAT(training.refusal(), HasSubstr("'block0.mix.weight' holds nan at [1, 1]"));
  Training another;
  another.sequences[0].features.set(3, -INFINITY);
  another.plan.batch_size = 4;
  EXPECT_THAT(another.refusal(), HasSubstr("'features' holds -inf at ["));
}

TEST(NotFinite, NothingIsNamedWhereNothingIs) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  fusion.add_output(b.exp(fusion.add_input("x", DType::kF32, {2})));
  EXPECT_EQ(name_offender(fusion, {segfuse::testing::row({1, 2}, DType::kF32)}, {}), "");
  EXPECT_THAT(name_offender(fusion, {segfuse::testing::row({1, 200}, DType::kF32)}, {}),
              HasSubstr("exp gave inf at element [1]"));
}

/// Masks choose, they do not multiply: nothing beyond a sequence's end gets into loss or gradients.
TEST(Masks, WhateverStandsInPaddingChangesNoBit) {
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax}) {
    ModelConfig config = tiny(0.1, head);
    config.recurrence = head == HeadKind::kSemiMarkov    ? nn::Recurrence::kLstm
                        : head == HeadKind::kLinearChain ? nn::Recurrence::kGru
                                                         : nn::Recurrence::kSsm;
    config.recurrent_blocks = 1;
    config.recurrent_states = 3;
    config.attention_blocks = 1;
    config.attention_heads = 2;
    config.subsample = 2;
    const Segmenter segmenter(config);
    ThreadPool pool(2);
    engine::Executable program(segmenter.training(), pool);
    BoundInputs inputs(program.fusion());
    for (const nn::ParameterSpec& spec : segmenter.parameters())
      inputs.set(spec.name, nn::initial_value(spec, 3));
    if (inputs.has("duration_limit"))
      inputs.set("duration_limit", duration_limit_table({4, 4, 4}, 4));
    Batch batch = make_batch(some_sequences(5, {9, 14, 11, 6}), {0, 1, 3}, config);
    std::vector<Tensor> clean;
    for (const double padding : {0.0, 1e30, static_cast<double>(INFINITY), std::nan("")}) {
      batch.features = batch.features.clone();
      for (std::int64_t b = 0; b < 3; ++b)
        for (std::int64_t i = static_cast<std::int64_t>(batch.lengths.at(b)) * 2; i < 14 * 2; ++i)
          batch.features.set(b * 14 * 2 + i, padding);
      bind_batch(inputs, batch, {1, 0, batch.segments});
      const std::vector<Tensor> found = program.run(inputs.tensors());
      if (clean.empty()) clean = found;
      ASSERT_TRUE(std::isfinite(found[0].at(0)));
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(segfuse::testing::same_bits(found[i], clean[i]))
            << "output " << i << " with " << padding;
    }
  }
}

/// Looking changes no bit of what is learnt.
TEST(CheckNumerics, ResultsAreTheSameBits) {
  Training training;
  const TrainingOutcome plain = training.run();
  training.options.name_offender = false;
  const TrainingOutcome off = training.run();
  training.options.execution.check_numerics = true;
  const TrainingOutcome checked = training.run();
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(segfuse::testing::same_bits(plain.parameters[i], off.parameters[i])) << i;
    EXPECT_TRUE(segfuse::testing::same_bits(plain.parameters[i], checked.parameters[i])) << i;
  }
}

TEST(CheckNumerics, EveryOperationIsLookedAtWhenAsked) {
  Training training;
  training.options.execution.check_numerics = true;
  training.parameters[training.position("stem.weight")].set(2, 3e38);
  try {
    (void)training.run();
    FAIL() << "nothing was said";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gave "));
  }
}

/// What the checkpoint holds when the development set of the first epoch is scored, which is before
/// the checkpoint of that epoch.
std::string checkpoint_within_the_first_epoch(double seconds) {
  Training training;
  training.options.checkpoint_seconds = seconds;
  std::string state;
  training.options.execution.context = Context().with(options::kThreads, std::int64_t{2});
  static_cast<void>(train(
      training.segmenter, training.plan, training.parameters, duration_limit_table({4, 4, 4}, 4),
      training.sequences, training.sequences,
      [&](const auto&) {
        if (state.empty() && std::filesystem::exists(training.options.checkpoint))
          state = read_safetensors(training.options.checkpoint).metadata["state"];
        if (state.empty()) state = "none";
        return DevScores{0.5, 0, 0};
      },
      training.options));
  return state;
}

TEST(Checkpoints, AreWrittenWithinAnEpochWhenTheTimeHasCome) {
  EXPECT_EQ(checkpoint_within_the_first_epoch(0), "none");
  EXPECT_EQ(checkpoint_within_the_first_epoch(1e9), "none");
  EXPECT_THAT(checkpoint_within_the_first_epoch(1e-9), HasSubstr("\"step\":1,\"epoch\":0"));
}

}  // namespace
}  // namespace segfuse::learn
