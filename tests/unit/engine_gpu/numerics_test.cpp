// The numerics doctor and --check-numerics over programs on a device: faults of programs and of
// kernels are named by the device's own kernels, and looking changes no bit.

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "engine/numerics/examine.h"
#include "engine/numerics/part.h"
#include "engine/numerics/synthesis.h"
#include "ir/rules/verify.h"
#include "segfuse/error.h"
#include "support/gpu/faulty_gpu.h"
#include "support/planted_faults.h"
#include "support/random/random_fusion.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine::testing {
namespace {

using numerics::Functions;
using segfuse::testing::Change;
using segfuse::testing::PlantedFault;
using segfuse::testing::replaced;
using segfuse::testing::row;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

NumericsReport examine_text(const std::string& text, std::shared_ptr<Accelerator> accelerator,
                            int runs = 4) {
  const ir::Fusion fusion = ir::parse(text);
  ir::verify(fusion);
  std::vector<std::string> notes;
  const std::vector<Tensor> inputs =
      numerics::make_inputs(fusion, {}, 1, numerics::read_values(text, "<text>"), notes);
  const std::string name = accelerator->name();
  return numerics::examine(fusion, inputs,
                           numerics::Place{.subject = numerics::device_subject(accelerator),
                                           .functions = Functions::kDevice,
                                           .products = "products",
                                           .device = name},
                           runs);
}

/// The same faults in the text of kernels.
Change faulty_text(const std::string& name) {
  if (name == "UnorderedSum")  // as if now and then another part came first
    return replaced("T result() const { return value; }",
                    "T result() const {\n    static int turn = 0;\n"
                    "    return turn++ % 7 == 0 ? value : value * T(1.0000003);\n  }");
  if (name == "RunningSumOfManyFrames")
    return replaced("    value = sum;\n", "    value = T(int(sum * 16)) / 16;\n");
  if (name == "UnwrittenTail")
    return replaced("for (int i1 = whole; i1 < end; ++i1)", "for (int i1 = end; i1 < end; ++i1)",
                    {"add_f32(", "pointwise("});
  if (name == "WrongStride") return replaced("unsigned(64)) * 24 + ", "unsigned(64)) * 0 + ");
  throw InternalError(fmt::format("no text for '{}'", name));
}

std::vector<PlantedFault> all_faults() {
  std::vector<PlantedFault> all = segfuse::testing::faults_of_programs();
  for (const PlantedFault& fault : segfuse::testing::faults_of_kernels()) all.push_back(fault);
  return all;
}

bool of_a_kernel(const PlantedFault& fault) {
  const auto kernels = segfuse::testing::faults_of_kernels();
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const PlantedFault& known) { return known.name == fault.name; });
}

class PlantedOnDevice : public ::testing::TestWithParam<PlantedFault> {};
INSTANTIATE_TEST_SUITE_P(Ten, PlantedOnDevice, ::testing::ValuesIn(all_faults()),
                         [](const auto& suite) { return suite.param.name; });

TEST_P(PlantedOnDevice, AreNamedFirst) {
  const PlantedFault& planted = GetParam();
  const NumericsReport report = examine_text(
      planted.program, of_a_kernel(planted)
                           ? segfuse::testing::make_faulty_accelerator(faulty_text(planted.name))
                           : segfuse::testing::make_sim_accelerator().accelerator);
  ASSERT_THAT(report.findings, Not(IsEmpty()));
  const NumericsFinding& first = report.findings[0];
  EXPECT_EQ(first.fault, planted.fault) << first.sentence;
  EXPECT_EQ(first.operation, planted.operation) << first.sentence;
  EXPECT_THAT(first.statement, HasSubstr(planted.statement));
  EXPECT_THAT(first.cause, HasSubstr(planted.cause));
  EXPECT_THAT(first.sentence, HasSubstr(planted.sentence));
  EXPECT_EQ(report.device, "sim:0");
}

/// Right kernels on the programs of the faulty ones.
TEST_P(PlantedOnDevice, AreNotSeenWhereThereIsNone) {
  PlantedFault planted = GetParam();
  if (!of_a_kernel(planted))
    planted.program.resize(std::min(planted.program.find("#:"), planted.program.size()));
  const NumericsReport report =
      examine_text(planted.program, segfuse::testing::make_sim_accelerator().accelerator);
  EXPECT_THAT(report.findings, IsEmpty()) << report.findings[0].sentence;
}

TEST(DeviceNumerics, AFaultOfAFusedKernelIsFoundWithWhatComesBefore) {
  const NumericsReport report =
      examine_text(R"(fusion "m" {
  %0 = input "x" : f32[4, 8]
  %1 = neg(%0) : f32[4, 8]
  %2 = exp(%1) : f32[4, 8]
  %3 = sum(%2) {axes=[1]} : f32[4]
  %4 = log(%3) : f32[4]
  output %4
})",
                   segfuse::testing::make_faulty_accelerator(
                       replaced("return value; }", "return value * T(1.001); }", {"exp_f32("})));
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].fault, NumericsFault::kError);
  EXPECT_EQ(report.findings[0].operation, "sum");
  EXPECT_THAT(report.findings[0].group, HasSubstr("of 4 operations"));
}

TEST(DeviceNumerics, RandomProgramsPass) {
  const auto accelerator = segfuse::testing::make_sim_accelerator().accelerator;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto program = segfuse::testing::random_fusion(seed, segfuse::testing::Numbers::kSmooth);
    const auto inputs = segfuse::testing::random_inputs(program, seed, 2, 5);
    const NumericsReport report =
        numerics::examine(program.fusion, inputs,
                          numerics::Place{.subject = numerics::device_subject(accelerator),
                                          .functions = Functions::kDevice},
                          2);
    for (const NumericsFinding& finding : report.findings)
      if (finding.fault != NumericsFault::kInfinity && finding.fault != NumericsFault::kNaN)
        ADD_FAILURE() << finding.sentence << "\n" << finding.statement;
  }
}

TEST(DeviceNumerics, BoundsOfADeviceAreNoTighterThanOurs) {
  for (const ir::OpInfo& info : ir::all_ops())
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const auto ours = numerics::stated_ulps(info.op, dtype);
      const auto device = numerics::stated_ulps(info.op, dtype, Functions::kDevice);
      ASSERT_EQ(ours.has_value(), device.has_value()) << info.name;
      EXPECT_GE(device.value_or(0), ours.value_or(0)) << info.name;
    }
}

/// Mixed groups, a product, a view, an overwritten input; `x` decides whether it overflows.
ir::Fusion some_program() {
  return ir::parse(R"(fusion "m" {
  symbols B
  %0 = input "x" : f32[B, 4]
  %1 = input "w" : f32[4, 4]
  %2 = input "rate" : f32[]
  %3 = matmul(%0, %1) {transpose_a=0, transpose_b=0} : f32[B, 4]
  %4 = exp(%3) : f32[B, 4]
  %5 = sum(%4) {axes=[1]} : f32[B]
  %6 = broadcast(%5) {axes=[0], shape=[B, 4]} : f32[B, 4]
  %7 = div(%4, %6) : f32[B, 4]
  %8 = sum(%7) {axes=[0]} : f32[4]
  %9 = broadcast(%2) {axes=[], shape=[4, 4]} : f32[4, 4]
  %10 = broadcast(%8) {axes=[1], shape=[4, 4]} : f32[4, 4]
  %11 = mul(%9, %10) : f32[4, 4]
  %12 = sub(%1, %11) : f32[4, 4]
  output %5 "sums"
  output %12 "moved"
  alias %12 -> %1
})");
}

std::vector<Tensor> some_inputs(double scale) {
  Rng rng(3);
  Tensor x = segfuse::testing::uniform(rng, DType::kF32, {3, 4});
  Tensor w = segfuse::testing::uniform(rng, DType::kF32, {4, 4});
  for (std::int64_t i = 0; i < 4; ++i) x.set(8 + i, scale);
  return {x, w, Tensor::full(DType::kF32, {}, 0.1)};
}

std::string refusal(Executable& executable, const std::vector<Tensor>& inputs) {
  try {
    static_cast<void>(executable.run(inputs));
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST_P(OnDevice, LookingChangesNoBit) {
  Executable plain(some_program(), pool, on_device());
  ExecutableOptions how = on_device();
  how.check_numerics = true;
  Executable checked(some_program(), pool, how);
  how = on_device();
  how.poison = true;
  Executable poisoned(some_program(), pool, how);
  const std::vector<Tensor> inputs = some_inputs(0.5);
  std::vector<std::vector<Tensor>> found;
  for (Executable* executable : {&plain, &checked, &poisoned}) {
    std::vector<Tensor> given;
    for (const Tensor& input : inputs) given.push_back(accelerator->upload(input));
    std::vector<Tensor> results;
    for (int step = 0; step < 3; ++step) results = executable->run(given);
    EXPECT_EQ(executable->look(given), "");
    executable->check();
    results.push_back(given[1]);
    for (Tensor& result : results) result = result.to_host();
    found.push_back(results);
  }
  for (const std::vector<Tensor>& other : found)
    for (std::size_t o = 0; o < other.size(); ++o)
      EXPECT_TRUE(segfuse::testing::same_bits(other[o], found[0][o])) << "output " << o;
}

TEST_P(OnDevice, AnOverflowIsNamedWithWhatItWasMadeOf) {
  ExecutableOptions how = on_device();
  how.check_numerics = true;
  Executable checked(some_program(), pool, how);
  for (const bool there : {false, true}) {
    std::vector<Tensor> inputs = some_inputs(1e20);
    inputs[1] = Tensor::full(DType::kF32, {4, 4}, 1);
    if (there)
      for (Tensor& input : inputs) input = accelerator->upload(input);
    const std::string message = refusal(checked, inputs);
    EXPECT_THAT(message, HasSubstr("exp gave inf at element [2, 0] of value "));
    EXPECT_THAT(message, HasSubstr("f32[3, 4]; its operands were finite (4.00000008"));
    EXPECT_THAT(message, HasSubstr("88.72"));
    EXPECT_EQ(inputs[1].to_host().at(5), 1) << "nothing was updated";
  }
  std::vector<Tensor> inputs = some_inputs(0.5);
  inputs[1].set(6, std::nan(""));
  EXPECT_THAT(refusal(checked, inputs), HasSubstr("'w' holds nan at [1, 2]"));
  inputs = some_inputs(0.5);
  EXPECT_EQ(refusal(checked, inputs), "");
}

/// Masks with infinities, given or standing in the program, are no faults.
TEST_P(OnDevice, MasksAreNoFaults) {
  const ir::Fusion fusion = ir::parse(R"(fusion "m" {
  %0 = input "x" : f32[2, 4]
  %1 = input "inside" : bool[2, 4]
  %2 = input "limit" : f32[4]
  %3 = constant {value=-inf, dtype=f32} : f32[]
  %4 = broadcast(%3) {axes=[], shape=[2, 4]} : f32[2, 4]
  %5 = where(%1, %0, %4) : f32[2, 4]
  %6 = broadcast(%2) {axes=[1], shape=[2, 4]} : f32[2, 4]
  %7 = add(%5, %6) : f32[2, 4]
  %8 = logsumexp(%7) {axes=[1]} : f32[2]
  %9 = matmul(%0, %6) {transpose_a=0, transpose_b=1} : f32[2, 2]
  output %5
  output %8
})");
  ExecutableOptions how = on_device();
  how.check_numerics = true;
  Executable checked(fusion, pool, how);
  const double inf = std::numeric_limits<double>::infinity();
  Tensor inside = Tensor::zeros(DType::kBool, {2, 4});
  for (std::int64_t i = 0; i < 3; ++i) inside.set(i, 1);
  const std::vector<Tensor> inputs{segfuse::testing::counting({2, 4}, DType::kF32), inside,
                                   row({0, -inf, 1, 2}, DType::kF32)};
  EXPECT_EQ(refusal(checked, inputs), "");
}

TEST(DeviceNumerics, KernelsThatAreAtFaultAreNamed) {
  ThreadPool pool(1);
  const auto look = [&](const Change& change) {
    const auto accelerator = segfuse::testing::make_faulty_accelerator(change);
    Executable checked(some_program(), pool, {.check_numerics = true, .accelerator = accelerator});
    return refusal(checked, some_inputs(0.5));
  };
  EXPECT_EQ(look([](std::string source) { return source; }), "");
  // By itself.
  EXPECT_THAT(look(replaced("return exp(a);", "return a > 0.9f ? (a - a) / (a - a) : exp(a);")),
              ::testing::ContainsRegex("^exp gave nan at element .* on sim:0, where it should be"));
  // Only together with others.
  const std::string together =
      look(replaced("return value; }", "return value - value / (value - value); }", {"exp_f32("}));
  EXPECT_THAT(together, HasSubstr("the kernel '"));
  EXPECT_THAT(together, HasSubstr("exp"));
  EXPECT_THAT(together, HasSubstr("on sim:0, where it should be "));
  EXPECT_THAT(together, HasSubstr("doctor numerics --device sim:0"));
}

/// A look is one run and one small kernel for each value; without it nothing is added.
TEST(DeviceNumerics, NotLookingCostsNothing) {
  ThreadPool pool(1);
  const auto launches = [&](bool check) {
    auto gpu = std::make_shared<segfuse::testing::FaultyKernels>(
        segfuse::testing::make_program_kernels(), [](std::string source) { return source; });
    const auto accelerator = Accelerator::make(
        "sim:0", gpu, std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()), {});
    Executable executable(some_program(), pool,
                          {.check_numerics = check, .accelerator = accelerator});
    static_cast<void>(executable.run(some_inputs(0.5)));
    return gpu->launches;
  };
  const std::size_t plain = launches(false);
  EXPECT_GT(launches(true), 2 * plain);
  EXPECT_LE(launches(true), 4 * plain + 4);
}

}  // namespace
}  // namespace segfuse::engine::testing
