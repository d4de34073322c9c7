// Programs on the CPU as plans on streams: the same bits as in place, under the race checker, with
// records of memory and times of steps.

#include <gmock/gmock.h>

#include "doctor/record.h"
#include "engine/backend.h"
#include "engine/device/accelerator.h"
#include "ir/builder.h"
#include "ir/text.h"
#include "runtime/check/listener.h"
#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "segfuse/error.h"
#include "support/random/random_fusion.h"
#include "support/system/wait_dropper.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using segfuse::testing::Numbers;
using segfuse::testing::same_bits;
using segfuse::testing::uniform;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<Accelerator> two_streams() {
  return Accelerator::make("cpu", nullptr, std::make_unique<runtime::CpuDevice>(),
                           {.streams = 2, .check_streams = true});
}

/// Two chains of products that meet: each can have a stream of its own.
ir::Fusion two_chains() {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::ValId x = fusion.add_input("x", DType::kF32, {ir::Extent(32), ir::Extent(32)});
  const ir::ValId y = fusion.add_input("y", DType::kF32, {ir::Extent(32), ir::Extent(32)});
  const ir::ValId left = b.matmul(b.matmul(x, y), y);
  const ir::ValId right = b.matmul(b.matmul(y, x), x);
  fusion.add_output(b.matmul(left, right));
  return fusion;
}

std::vector<Tensor> inputs_of_chains() {
  Rng rng(1);
  return {uniform(rng, DType::kF32, {32, 32}, -0.1, 0.1),
          uniform(rng, DType::kF32, {32, 32}, -0.1, 0.1)};
}

TEST(CpuStreams, GiveTheSameBitsAsARunInPlaceAndNoRace) {
  const auto host = two_streams();
  ThreadPool pool(2);
  const runtime::RaceListener listener;
  for (const Numbers numbers : {Numbers::kSmooth32, Numbers::kSmooth, Numbers::kExact})
    for (std::uint64_t seed = 900; seed < 904; ++seed)
      for (const std::string backend : {"compiled", "loops"}) {
        SCOPED_TRACE(backend + " seed " + std::to_string(seed));
        const auto program = segfuse::testing::random_fusion(seed, numbers);
        Executable in_place(program.fusion, pool, {.backend = backend});
        Executable on_streams(program.fusion, pool,
                              {.backend = backend, .poison = true, .host = host});
        for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {3, 70}, {0, 4}}) {
          const auto inputs = segfuse::testing::random_inputs(program, seed, b, t);
          const std::vector<Tensor> expected = in_place.run(inputs);
          const std::vector<Tensor> found = on_streams.run(inputs);
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(same_bits(expected[i], found[i])) << "output " << i;
        }
      }
  EXPECT_THAT(listener.findings(), IsEmpty());
  EXPECT_GT(listener.operations(), 200U);
}

TEST(CpuStreams, AMissingWaitIsFound) {
  runtime::CpuDevice device;
  runtime::RaceChecker checker(device, runtime::CheckMode::kThrow);
  auto dropper = std::make_unique<runtime::WaitDropper>(checker);
  runtime::WaitDropper& waits = *dropper;
  const auto host = Accelerator::make("cpu", nullptr, std::move(dropper), {.streams = 2});
  ThreadPool pool(1);
  Executable executable(two_chains(), pool, {.host = host});
  const std::vector<Tensor> inputs = inputs_of_chains();
  (void)executable.run(inputs);
  EXPECT_EQ(checker.count(), 0U);
  EXPECT_EQ(waits.waits(), 1U);  // the last product waits for the other chain
  waits.drop(1);
  try {
    (void)executable.run(inputs);
    FAIL() << "a run without its wait was not noticed";
  } catch (const runtime::RaceFound& race) {
    EXPECT_THAT(race.what(), HasSubstr("matmul"));
    EXPECT_NE(race.finding.earlier.stream, race.finding.later.stream);
  }
}

TEST(CpuStreams, MemoryRecordsHaveTheScratchOfRuns) {
  const auto host = two_streams();
  host->heap().keep_history(1000);
  ThreadPool pool(1);
  Executable executable(two_chains(), pool, {.host = host});
  (void)executable.run(inputs_of_chains());
  const doctor::MemoryRecord record =
      doctor::parse_record(doctor::to_json(doctor::capture(host->heap())), "record");
  EXPECT_THAT(record.history, Contains(Field(&runtime::HeapEvent::label, "scratch")));
  ASSERT_TRUE(record.snapshot);
  EXPECT_EQ(record.snapshot->device, "cpu");
  EXPECT_GE(record.snapshot->statistics.peak_taken_bytes, std::size_t{2} * 32 * 32 * sizeof(float));
}

TEST(CpuStreams, StepsAreMeasured) {
  for (const auto& host : {two_streams(), std::shared_ptr<Accelerator>()}) {
    ThreadPool pool(1);
    Executable executable(two_chains(), pool, {.profile = true, .host = host});
    (void)executable.run(inputs_of_chains());
    (void)executable.run(inputs_of_chains());
    const std::vector<StepTime> times = executable.step_times();
    ASSERT_EQ(times.size(), 5U);
    EXPECT_THAT(times, Each(Field(&StepTime::runs, 2)));
    EXPECT_THAT(times, Each(Field(&StepTime::seconds, Gt(0.0))));
    EXPECT_THAT(times, Each(Field(&StepTime::what, HasSubstr("matmul"))));
  }
}

TEST(CpuStreams, ErrorsOfStepsReachTheCallerAndTheNextRunIsFine) {
  const auto host = two_streams();
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::ValId x = fusion.add_input("x", DType::kF32, {ir::Extent(4)});
  const ir::ValId at = fusion.add_input("at", DType::kI32, {ir::Extent(2)});
  fusion.add_output(b.take(x, at, 0));
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.host = host});
  const Tensor values = segfuse::testing::row({1, 2, 3, 4}).to(DType::kF32);
  const auto indices = [](std::int32_t second) {
    Tensor tensor(DType::kI32, {2});
    tensor.set(0, 1);
    tensor.set(1, second);
    return tensor;
  };
  EXPECT_THROW((void)executable.run(std::vector{values, indices(4)}), UsageError);
  EXPECT_EQ(executable.run(std::vector{values, indices(3)})[0].at(1), values.at(3));
}

TEST(CpuStreams, InputsThatOverlapRunInTheOrderOfThePlan) {
  const auto host = two_streams();
  ThreadPool pool(1);
  Rng rng(4);
  Tensor all = uniform(rng, DType::kF32, {32 * 32 + 5}, -0.1, 0.1);
  const auto at = [&](std::size_t begin) {
    auto* const memory = static_cast<std::byte*>(all.data()) + begin * sizeof(float);
    return Tensor::borrow(DType::kF32, {32, 32}, {memory, [](std::byte*) {}});
  };
  const std::vector<Tensor> same = {at(0), at(0)};
  const std::vector<Tensor> shifted = {at(0), at(5)};
  Executable in_place(two_chains(), pool);
  Executable on_streams(two_chains(), pool, {.host = host});
  for (const auto& inputs : {same, shifted})
    EXPECT_TRUE(same_bits(in_place.run(inputs)[0], on_streams.run(inputs)[0]));
}

/// What a UsageError of `action` says.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Backends, AreFoundByNameAndDevice) {
  EXPECT_FALSE(find_backend("compiled").on_device);
  EXPECT_TRUE(find_backend("compiled", true).on_device);
  EXPECT_FALSE(find_backend("loops", true).on_device);
  EXPECT_THAT(
      refusal([] { (void)find_backend("loop"); }),
      AllOf(HasSubstr("backend 'loop' is unknown; known are 'compiled'"), HasSubstr("'loops'")));
}

class EveryBackend : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryBackend, AgreesWithTheReference) {
  ThreadPool pool(1);
  const std::vector<Tensor> inputs = inputs_of_chains();
  const Tensor expected = Executable(two_chains(), pool, {.backend = "reference"}).run(inputs)[0];
  const Tensor found = Executable(two_chains(), pool, {.backend = GetParam()}).run(inputs)[0];
  for (std::int64_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found.at(i), expected.at(i), 1e-6) << "element " << i;
}

/// Passes make a constant of what has no elements, and leave out what it is made from: sizes that
/// the program cannot run with are refused all the same.
TEST_P(EveryBackend, RefusesASliceThatLiesOutsideThoughItsResultIsEmpty) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"empty\" {\n  symbols N\n  %0 = input \"x\" : f32[N]\n"
      "  %1 = slice(%0) {starts=[8], sizes=[0]}\n  %2 = sum(%1) {axes=[0]}\n"
      "  output %2\n}\n");
  ThreadPool pool(1);
  Executable executable(fusion, pool, {.backend = GetParam()});
  EXPECT_EQ(executable.run(std::vector{Tensor::zeros(DType::kF32, {9})})[0].at(0), 0);
  EXPECT_THAT(refusal([&] { executable.run(std::vector{Tensor::zeros(DType::kF32, {4})}); }),
              HasSubstr("slice: [8, 8 + 0) is outside axis 0 of 4 elements (N) in 'empty'"));
}

std::vector<std::string> host_backends() {
  std::vector<std::string> names;
  for (const BackendInfo& info : backends())
    if (!info.on_device) names.emplace_back(info.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, EveryBackend, ::testing::ValuesIn(host_backends()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace segfuse::engine
