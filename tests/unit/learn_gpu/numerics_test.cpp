// --check-numerics of a training on a device: what it names, and that it changes nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/numerics/examine.h"
#include "learn/train/loop/training_step.h"
#include "support/files.h"
#include "support/gpu/faulty_gpu.h"
#include "support/tensors.h"
#include "unit/learn_gpu/trial.h"

namespace segfuse::learn {
namespace {

using segfuse::testing::Change;
using segfuse::testing::replaced;
using ::testing::HasSubstr;
using ::testing::Not;

/// As --check-numerics says it.
TrainerOptions checking(std::string_view level) {
  TrainerOptions how;
  how.name_offender = level != "off";
  how.execution.check_numerics = level == "op";
  return how;
}

const Change kNone = [](std::string source) { return source; };

TEST(CheckNumericsOnADevice, ChangesNoBitAndStepsCostNothing) {
  const test::TemporaryDirectory directory;
  std::vector<TrainingOutcome> outcomes;
  std::vector<std::size_t> launches;
  for (const char* level : {"off", "step", "op"}) {
    const auto gpu = std::make_shared<segfuse::testing::FaultyKernels>(
        segfuse::testing::make_program_kernels(), kNone);
    const auto accelerator = engine::Accelerator::make(
        "sim:0", gpu, std::make_unique<runtime::sim::SimDevice>(runtime::sim::lazy()),
        {.check_streams = true});
    Trial trial(HeadKind::kSemiMarkov);
    trial.plan.epochs = 2;
    trial.how = checking(level);
    outcomes.push_back(trial.run(accelerator, directory / "c.safetensors"));
    launches.push_back(gpu->launches);
  }
  for (const TrainingOutcome& outcome : outcomes)
    for (std::size_t i = 0; i < outcome.parameters.size(); ++i)
      EXPECT_TRUE(segfuse::testing::same_bits(outcome.parameters[i], outcomes[0].parameters[i]));
  EXPECT_EQ(launches[1], launches[0]) << "a step computes its loss and norm anyway";
  EXPECT_GT(launches[2], launches[0]);
}

TEST(CheckNumericsOnADevice, TheOperationIsNamedWithWhatItRead) {
  const test::TemporaryDirectory directory;
  for (const char* level : {"off", "step", "op"}) {
    SCOPED_TRACE(level);
    const auto accelerator = segfuse::testing::make_sim_accelerator().accelerator;
    Trial trial(HeadKind::kSemiMarkov);
    trial.how = checking(level);
    trial.parameters[trial.position("stem.weight")].set(2, 3e38);
    const std::string message = trial.refusal(accelerator, directory / "c.safetensors");
    EXPECT_THAT(message, HasSubstr("step 1 (epoch 1, first recording"));
    if (std::string_view(level) == "off") {
      EXPECT_THAT(message, Not(HasSubstr("gave ")));
      continue;
    }
    EXPECT_THAT(message, HasSubstr("gave "));
    EXPECT_THAT(message, HasSubstr("its operands were finite"));
    EXPECT_THAT(message, HasSubstr("beyond 3.40282e+38"));
  }
}

TEST(CheckNumericsOnADevice, AnInputIsNamedWhereItIsTheCause) {
  const test::TemporaryDirectory directory;
  for (const char* level : {"step", "op"}) {
    const auto accelerator = segfuse::testing::make_sim_accelerator().accelerator;
    Trial trial(HeadKind::kSoftmax);
    trial.how = checking(level);
    trial.parameters[trial.position("block0.mix.weight")].set(8, std::nan(""));
    EXPECT_THAT(trial.refusal(accelerator, directory / "c.safetensors"),
                HasSubstr("'block0.mix.weight' holds nan at [1, 2]"));
  }
}

/// The CPU finds nothing wrong with the step: only the device knows.
TEST(CheckNumericsOnADevice, AKernelIsNamedWhereItIsTheCause) {
  const test::TemporaryDirectory directory;
  for (const char* level : {"step", "op"}) {
    SCOPED_TRACE(level);
    const auto accelerator = segfuse::testing::make_faulty_accelerator(
        replaced("return log(a);", "return a > 1 ? (a - a) / (a - a) : log(a);"));
    Trial trial(HeadKind::kSoftmax);
    trial.how = checking(level);
    const std::string message = trial.refusal(accelerator, directory / "c.safetensors");
    EXPECT_THAT(message, HasSubstr("gave nan at element"));
    EXPECT_THAT(message, HasSubstr("on sim:0, where it should be"));
    EXPECT_THAT(message, HasSubstr("the kernel is at fault"));
  }
}

/// What segfuse doctor numerics does with a configuration and --device.
TEST(CheckNumericsOnADevice, AStepPassesTheDoctor) {
  Trial trial(HeadKind::kSemiMarkov);
  const ir::Fusion fusion = trial.segmenter.training();
  BoundInputs inputs(fusion);
  for (std::size_t i = 0; i < trial.parameters.size(); ++i)
    inputs.set(trial.segmenter.parameters()[i].name, trial.parameters[i]);
  inputs.set("duration_limit", Tensor::zeros(DType::kF32, {4, kClasses}));
  const Batch batch = make_batch(trial.training, {0, 1}, trial.segmenter.config());
  bind_batch(inputs, batch, {1, 0, batch.segments});
  const NumericsReport report = engine::numerics::examine(
      fusion, inputs.tensors(),
      engine::numerics::Place{.subject = engine::numerics::device_subject(
                                  segfuse::testing::make_sim_accelerator().accelerator),
                              .functions = engine::numerics::Functions::kDevice},
      2);
  EXPECT_GT(report.groups, 10U);
  for (const NumericsFinding& finding : report.findings)
    ADD_FAILURE() << finding.sentence << "\n" << finding.statement << "\n" << finding.group;
}

}  // namespace
}  // namespace segfuse::learn
