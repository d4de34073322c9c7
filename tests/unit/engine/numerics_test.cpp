// The numerics doctor: faults put into programs, inputs and kernels on purpose are named, and the
// program that it writes shows the same fault; programs without faults pass.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/numerics/bounds.h"
#include "engine/numerics/examine.h"
#include "engine/numerics/part.h"
#include "engine/numerics/synthesis.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/elementary.h"
#include "support/files.h"
#include "support/gpu/faulty_kernels.h"
#include "support/planted_faults.h"
#include "support/random/random_fusion.h"
#include "support/source_dir.h"
#include "support/tensors.h"

namespace segfuse::engine::numerics {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

NumericsReport examine_text(const std::string& text, const Subject& subject,
                            const SizeExamples& sizes = {}) {
  const ir::Fusion fusion = ir::parse(text);
  ir::verify(fusion);
  std::vector<std::string> notes;
  const std::vector<Tensor> inputs =
      make_inputs(fusion, sizes, 1, read_values(text, "<text>"), notes);
  return examine(fusion, inputs, subject, 4);
}

using segfuse::testing::PlantedFault;

struct Planted : PlantedFault {
  Subject subject = cpu_subject("compiled");
};

Subject faulty_subject(const std::string& name) {
  using namespace segfuse::testing;
  if (name == "UnorderedSum") return with_faulty_kernel(ir::Op::sum, sum_as_threads_come);
  if (name == "RunningSumOfManyFrames") return with_faulty_kernel(ir::Op::sum, running_sum);
  if (name == "UnwrittenTail") return with_faulty_kernel(ir::Op::add, add_without_tail);
  if (name == "WrongStride") return with_faulty_kernel(ir::Op::permute, permute_by_wrong_stride);
  throw InternalError(fmt::format("no kernel for '{}'", name));
}

std::vector<Planted> planted_faults() {
  std::vector<Planted> all;
  for (const PlantedFault& fault : segfuse::testing::faults_of_programs()) all.push_back({fault});
  for (const PlantedFault& fault : segfuse::testing::faults_of_kernels())
    all.push_back({fault, faulty_subject(fault.name)});
  return all;
}

class PlantedFaults : public ::testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(Ten, PlantedFaults, ::testing::ValuesIn(planted_faults()),
                         [](const auto& suite) { return suite.param.name; });

TEST_P(PlantedFaults, AreNamedFirst) {
  const Planted& planted = GetParam();
  const NumericsReport report = examine_text(planted.program, planted.subject);
  ASSERT_THAT(report.findings, ::testing::Not(IsEmpty()));
  const NumericsFinding& first = report.findings[0];
  EXPECT_EQ(first.fault, planted.fault) << first.sentence;
  EXPECT_EQ(first.operation, planted.operation) << first.sentence;
  EXPECT_THAT(first.statement, HasSubstr(planted.statement));
  EXPECT_THAT(first.cause, HasSubstr(planted.cause));
  EXPECT_THAT(first.sentence, HasSubstr(planted.sentence));
  EXPECT_FALSE(first.operands.empty() && first.operation != "input");
  EXPECT_EQ(first.group.empty(), first.operation == "input");
}

/// The file that it writes: one operation, with the values that it needs.
TEST_P(PlantedFaults, AreShownByTheProgramThatIsWritten) {
  const Planted& planted = GetParam();
  const NumericsReport report = examine_text(planted.program, planted.subject);
  ASSERT_THAT(report.findings, ::testing::Not(IsEmpty()));
  const std::string& text = report.findings[0].program;
  const ir::Fusion fusion = ir::parse(text);
  EXPECT_THAT(fusion.live_exprs(), SizeIs(1)) << text;
  const NumericsReport again = examine_text(text, planted.subject);
  ASSERT_THAT(again.findings, ::testing::Not(IsEmpty())) << text;
  EXPECT_EQ(again.findings[0].fault, planted.fault) << text;
  EXPECT_EQ(again.findings[0].operation, planted.operation) << text;
}

/// Without its fault, each program passes.
TEST_P(PlantedFaults, AreNotSeenWhereThereIsNone) {
  Planted planted = GetParam();
  const std::size_t values = planted.program.find("#:");
  if (values != std::string::npos) planted.program.resize(values);
  const NumericsReport report = examine_text(planted.program, cpu_subject("compiled"));
  EXPECT_THAT(report.findings, IsEmpty()) << report.findings[0].sentence;
  EXPECT_THAT(report.notes, IsEmpty());
}

TEST(Numerics, FilesOfTheTestsPassOnEveryBackend) {
  const std::filesystem::path folder = SEGFUSE_SOURCE_DIR "/tests/golden/ir";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".sf") continue;
    SCOPED_TRACE(entry.path().string());
    for (const char* backend : {"compiled", "loops"}) {
      NumericsReport report;
      try {
        report = examine_numerics(
            entry.path(),
            {.runs = 2, .context = Context().with(options::kBackend, std::string(backend))});
      } catch (const UsageError&) {
        continue;  // its sizes are not 16
      }
      ++files;
      for (const NumericsFinding& finding : report.findings)
        ADD_FAILURE() << finding.sentence << "\n" << finding.statement;
    }
  }
  EXPECT_GE(files, 10);
}

TEST(Numerics, RandomProgramsPass) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    for (const auto numbers :
         {segfuse::testing::Numbers::kSmooth, segfuse::testing::Numbers::kExact}) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const auto program = segfuse::testing::random_fusion(seed, numbers);
      const auto inputs = segfuse::testing::random_inputs(program, seed, 2, 5);
      const NumericsReport report = examine(program.fusion, inputs, cpu_subject("compiled"), 2);
      for (const NumericsFinding& finding : report.findings)
        if (finding.fault != NumericsFault::kInfinity && finding.fault != NumericsFault::kNaN)
          ADD_FAILURE() << finding.sentence << "\n" << finding.statement;
    }
}

/// A fault that only shows when operations run in one kernel.
TEST(Numerics, AFaultOfAFusedKernelIsFoundWithWhatComesBefore) {
  const Subject fused = [](const ir::Fusion& fusion, std::span<const Tensor> inputs,
                           const Trial& trial) {
    std::vector<Tensor> outputs = cpu_subject("loops")(fusion, inputs, trial);
    bool exp = false;
    bool sum = false;
    for (const ir::ExprId id : fusion.live_exprs()) {
      exp = exp || fusion.expr(id).op == ir::Op::exp;
      sum = sum || fusion.expr(id).op == ir::Op::sum;
    }
    if (exp && sum) outputs[0].set(0, outputs[0].at(0) * 1.001);
    return outputs;
  };
  const NumericsReport report = examine_text(R"(fusion "m" {
  %0 = input "x" : f32[4, 8]
  %1 = neg(%0) : f32[4, 8]
  %2 = exp(%1) : f32[4, 8]
  %3 = sum(%2) {axes=[1]} : f32[4]
  %4 = log(%3) : f32[4]
  output %4
})",
                                             fused);
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].fault, NumericsFault::kError);
  EXPECT_EQ(report.findings[0].operation, "sum");
  EXPECT_THAT(report.findings[0].group, HasSubstr("of 4 operations"));
  EXPECT_THAT(ir::parse(report.findings[0].program).live_exprs(), SizeIs(3));
}

/// Groups that are right one by one, in a program that is not: as where memory is handed on early.
TEST(Numerics, AFaultOfTheWholeIsFoundByTheShortestBeginning) {
  const Subject whole = [](const ir::Fusion& fusion, std::span<const Tensor> inputs,
                           const Trial& trial) {
    std::vector<Tensor> outputs = cpu_subject("loops")(fusion, inputs, trial);
    int products = 0;
    for (const ir::ExprId id : fusion.live_exprs())
      products += fusion.expr(id).op == ir::Op::matmul;
    if (products > 1 && trial.poison) outputs[0].set(1, std::numeric_limits<double>::quiet_NaN());
    return outputs;
  };
  const NumericsReport report = examine_text(R"(fusion "m" {
  %0 = input "x" : f32[4, 4]
  %1 = matmul(%0, %0) {transpose_a=0, transpose_b=0} : f32[4, 4]
  %2 = matmul(%1, %0) {transpose_a=0, transpose_b=0} : f32[4, 4]
  %3 = matmul(%2, %0) {transpose_a=0, transpose_b=0} : f32[4, 4]
  output %3
})",
                                             whole);
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].fault, NumericsFault::kUnwritten);
  EXPECT_THAT(report.findings[0].statement, HasSubstr("%2 = matmul(%1, %0)"));
}

/// A running sum of these numbers is off by 1.4e-4 of it, as the planted one.
TEST(Numerics, OurSumsOfManyFramesDoNotDrift) {
  for (const PlantedFault& planted : segfuse::testing::faults_of_kernels()) {
    if (planted.name != "RunningSumOfManyFrames") continue;
    for (const char* const backend : {"compiled", "loops"})
      EXPECT_THAT(examine_text(planted.program, cpu_subject(backend)).findings, IsEmpty());
    return;
  }
  FAIL() << "there is no such program";
}

/// Of two faults the one that comes first in the program is the first finding.
TEST(Numerics, FindingsAreInProgramOrder) {
  const std::string program = R"(fusion "m" {
  %0 = input "x" : f32[2, 3]
  %1 = input "y" : f32[3, 2]
  %2 = permute(%0) {perm=[1, 0]} : f32[3, 2]
  %3 = sub(%2, %1) : f32[3, 2]
  %4 = log(%3) : f32[3, 2]
  output %4
}
#: x = 1 2 3 4 5 6
#: y = 0.5 3.5 1.5 9 2.5 5.5
)";
  const NumericsReport report =
      examine_text(program, segfuse::testing::with_faulty_kernel(
                                ir::Op::permute, segfuse::testing::permute_by_wrong_stride));
  ASSERT_THAT(report.findings, SizeIs(2));
  EXPECT_EQ(report.findings[0].operation, "permute");
  EXPECT_EQ(report.findings[1].operation, "log");
  EXPECT_LT(report.findings[0].position, report.findings[1].position);
}

/// NaN that the program itself puts aside is no fault; infinities that it was given are none.
TEST(Numerics, MasksAreNoFaults) {
  const NumericsReport report = examine_text(R"(fusion "m" {
  %0 = input "x" : f32[4]
  %1 = is_nan(%0) : bool[4]
  %2 = input "y" : f32[4]
  %3 = where(%1, %2, %0) : f32[4]
  %4 = logsumexp(%2) {axes=[0]} : f32[]
  output %3
  output %4
}
#: x = 1 nan 2 nan
#: y = -inf*4
)",
                                             cpu_subject("compiled"));
  EXPECT_THAT(report.findings, IsEmpty());
}

/// What where() or a slice puts aside is no fault, whoever made it; what comes through is one, at
/// the element that does.
TEST(Numerics, WhatIsPutAsideIsNoFault) {
  const auto program = [](const std::string& zero, const std::string& rest) {
    return R"(fusion "m" {
  %0 = input "x" : f32[4]
  %1 = constant {value=0, dtype=f32} : f32[]
  %2 = broadcast(%1) {axes=[], shape=[4]} : f32[4]
  %3 = )" + zero +
           R"( : bool[4]
  %4 = log(%0) : f32[4]
)" + rest + "#: x = 1 0 -1 2\n";
  };
  const std::string chosen = "  %5 = where(%3, %4, %2) : f32[4]\n  output %5\n}\n";
  const auto clean = examine_text(program("gt(%0, %2)", chosen), cpu_subject("compiled"));
  EXPECT_THAT(clean.findings, IsEmpty()) << clean.findings[0].sentence;
  // The infinity stays aside, the NaN comes through.
  const auto other = examine_text(program("ne(%0, %2)", chosen), cpu_subject("compiled"));
  ASSERT_THAT(other.findings, ::testing::Not(IsEmpty()));
  EXPECT_EQ(other.findings[0].sentence, "log gave nan at [2]");
  const auto cut = examine_text(
      program("gt(%0, %2)", "  %5 = slice(%4) {starts=[0], sizes=[1]} : f32[1]\n  output %5\n}\n"),
      cpu_subject("compiled"));
  EXPECT_THAT(cut.findings, IsEmpty()) << cut.findings[0].sentence;
  // exp makes a finite number of the infinity, but it counts.
  const auto made = examine_text(program("gt(%0, %2)", "  %5 = exp(%4) : f32[4]\n  output %5\n}\n"),
                                 cpu_subject("compiled"));
  ASSERT_THAT(made.findings, ::testing::Not(IsEmpty()));
  EXPECT_EQ(made.findings[0].sentence, "log gave -inf at [1]");
}

/// An integer shows no NaN: it would be lost.
TEST(Numerics, WhatACastLosesIsAFault) {
  const auto finding = [](const std::string& type, const std::string& values) -> std::string {
    const NumericsReport report = examine_text(
        "fusion \"m\" {\n  %0 = input \"x\" : f32[3]\n  %1 = sqrt(%0) : f32[3]\n  %2 = cast(%1) "
        "{dtype=" +
            type + "} : " + type + "[3]\n  output %2\n}\n#: x = " + values,
        cpu_subject("compiled"));
    return report.findings.empty() ? "" : report.findings[0].sentence;
  };
  EXPECT_EQ(finding("i32", "1 2.5 1e12"), "");
  EXPECT_EQ(finding("i64", "1 2.5 1e36"), "");
  EXPECT_EQ(finding("i32", "1 2.5 -1"), "sqrt gave nan at [2]") << "it comes from there";
  EXPECT_EQ(finding("i32", "1 2.5 inf"), "cast: inf becomes 2147483647 in i32, at [2] of %1");
  EXPECT_THAT(finding("i32", "1 1e20 3"), HasSubstr("becomes 2147483647 in i32, at [1] of %1"));
  EXPECT_THAT(finding("i32", "1 nan 3"), HasSubstr("input 'x' holds NaN at [1]"));
  const NumericsReport of_log = examine_text(
      "fusion \"m\" {\n  %0 = input \"x\" : f32[2]\n  %1 = cast(%0) {dtype=i32} : i32[2]\n  output "
      "%1\n}\n#: x = 7 -1e20\n",
      cpu_subject("loops"));
  ASSERT_THAT(of_log.findings, ::testing::Not(IsEmpty()));
  EXPECT_EQ(of_log.findings[0].fault, NumericsFault::kCast);
  EXPECT_EQ(numerics_fault_name(NumericsFault::kCast), "lost in a cast");
  EXPECT_THAT(of_log.findings[0].program, HasSubstr("-1e+20"));
}

TEST(Numerics, BoundsAreThoseOfTheDocumentation) {
  const auto documented = test::documented_bounds();
  std::size_t found = 0;
  for (const ir::OpInfo& info : ir::all_ops())
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const auto stated = stated_ulps(info.op, dtype);
      const auto row = documented.find(fmt::format("{}_{}", info.name, name_of(dtype)));
      ASSERT_EQ(stated.has_value(), row != documented.end()) << info.name;
      if (!stated) continue;
      EXPECT_EQ(*stated, row->second) << row->first;
      ++found;
    }
  EXPECT_EQ(found, documented.size());
}

TEST(Numerics, LabelsBeyondTheLengthAreNoFaults) {
  const auto sentence = [](const std::string& labels) -> std::string {
    const NumericsReport report = examine_text(R"(fusion "m" {
  %0 = input "emission" : f32[2, 3, 2]
  %1 = input "transition" : f32[1, 2, 2]
  %2 = input "duration" : f32[2, 2]
  %3 = input "initial" : f32[2]
  %4 = input "final" : f32[2]
  %5 = input "lengths" : i64[2]
  %6 = input "labels" : i32[2, 3]
  %7 = input "starts" : bool[2, 3]
  %8 = semicrf_loss(%0, %1, %2, %3, %4, %5, %6, %7) : f32[2]
  output %8
}
#: lengths = 3 1
#: starts = 1*6
#: labels = )" + labels,
                                               cpu_subject("loops"));
    return report.findings.empty() ? "" : report.findings[0].sentence;
  };
  EXPECT_EQ(sentence("0 1 0 1 9 -1"), "");
  EXPECT_THAT(sentence("0 1 9 1 0 0"), HasSubstr("label 9 is out of range"));
  EXPECT_THAT(sentence("0 1 0 -1 0 0"), HasSubstr("label -1 is out of range"));
}

TEST(Numerics, OfTwoRunsOneFindsMemoryThatHoldsNaN) {
  const Subject unwritten = [](const ir::Fusion& fusion, std::span<const Tensor> inputs,
                               const Trial& trial) {
    std::vector<Tensor> outputs = cpu_subject("loops")(fusion, inputs, trial);
    if (trial.poison) outputs[0].set(1, std::numeric_limits<double>::quiet_NaN());
    return outputs;
  };
  const ir::Fusion fusion =
      ir::parse("fusion \"m\" {\n  %0 = input \"x\" : f32[4]\n  %1 = exp(%0)\n  output %1\n}\n");
  const std::vector inputs{segfuse::testing::counting({4}, DType::kF32)};
  for (const int runs : {2, 3, 4}) {
    const NumericsReport report = examine(fusion, inputs, unwritten, runs);
    ASSERT_THAT(report.findings, SizeIs(1)) << runs;
    EXPECT_EQ(report.findings[0].fault, NumericsFault::kUnwritten) << runs;
  }
}

TEST(Numerics, NaNIsBeyondEveryFiniteBound) {
  using segfuse::testing::row;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const Judged judged{row({1, 2, nan, 4}), row({0.5, 0.5, 0.5, infinity})};
  EXPECT_EQ(first_beyond(row({1.25, 2, nan, 4}), judged), -1);
  EXPECT_EQ(first_beyond(row({1.25, 2, nan, nan}), judged), -1);
  EXPECT_EQ(first_beyond(row({1.25, nan, nan, 4}), judged), 1);
  EXPECT_EQ(first_beyond(row({1.25, 2, 3, 4}), judged), 2);
}

/// How far off each result may be, by what is stated: neither much less nor much more.
std::vector<double> bounds_of(const std::string& text) {
  const ir::Fusion fusion = ir::parse(text);
  ir::verify(fusion);
  std::vector<std::string> notes;
  const auto inputs = make_inputs(fusion, {}, 1, read_values(text, "<text>"), notes);
  const std::vector<Judged> all = judge_all(fusion, inputs, {});
  std::vector<double> bounds;
  for (const ir::Output& output : fusion.outputs())
    bounds.push_back(all[output.val.index].error.at(0));
  return bounds;
}

TEST(Numerics, BoundsOfSumsAreNotWiderThanStated) {
  const auto bounds = bounds_of(R"(fusion "m" {
  %0 = input "x" : f32[8]
  %1 = logsumexp(%0) {axes=[0]} : f32[]
  %2 = sum(%0) {axes=[0]} : f32[]
  %3 = prod(%0) {axes=[0]} : f32[]
  output %1
  output %2
  output %3
}
#: x = 1*8
)");
  // ln 8 + 1 in logsumexp's case, 8 and 1 in the others'; units of 2^-24.
  constexpr double kUnit = 0x1p-24;
  EXPECT_GT(bounds[0], 8 * kUnit);
  EXPECT_LT(bounds[0], 100 * kUnit);
  EXPECT_GT(bounds[1], 8 * kUnit);
  EXPECT_LT(bounds[1], 80 * kUnit);
  EXPECT_GT(bounds[2], 2 * kUnit);
  EXPECT_LT(bounds[2], 10 * kUnit);
}

TEST(Numerics, BoundsOfProductsGrowWithWhatIsAddedUp) {
  const auto bound = [](int rows, int inner, bool transpose) {
    return bounds_of(
        fmt::format("fusion \"m\" {{\n  %0 = input \"x\" : f32[{}, {}]\n  %1 = input \"y\" : "
                    "f32[{}, 1]\n  %2 = matmul(%0, %1) {{transpose_a={}, transpose_b=0}}\n  output "
                    "%2\n}}\n#: x = 1*{}\n#: y = 1*{}\n",
                    transpose ? inner : rows, transpose ? rows : inner, inner, int{transpose},
                    rows * inner, inner))[0];
  };
  constexpr double kUnit = 0x1p-24;
  for (const bool transpose : {false, true}) {
    EXPECT_GT(bound(1, 64, transpose), 64 * 64 * kUnit) << transpose;
    EXPECT_LT(bound(1, 64, transpose), 64 * 80 * kUnit) << transpose;
    EXPECT_LT(bound(64, 1, transpose), 10 * kUnit) << transpose;
  }
}

/// Errors of both factors come through a product, alike.
TEST(Numerics, ErrorsOfBothFactorsAreCarriedOn) {
  const auto bound = [](const char* a, const char* b) {
    return bounds_of(std::string(R"(fusion "m" {
  %0 = input "x" : f32[1, 1]
  %1 = input "y" : f32[1, 1]
  %2 = exp(%0) : f32[1, 1]
  %3 = exp(%1) : f32[1, 1]
  %4 = matmul()") + a +
                     ", " + b + R"() {transpose_a=0, transpose_b=0} : f32[1, 1]
  output %4
  output %2
  output %3
}
#: x = 1
#: y = 1
)")[0];
  };
  const double none = bound("%0", "%1");
  const double left = bound("%2", "%1");
  const double right = bound("%0", "%3");
  const double both = bound("%2", "%3");
  EXPECT_GT(left, 1.2 * none * 2.71);
  EXPECT_DOUBLE_EQ(left, right);
  EXPECT_GT(both, 1.2 * left);
}

TEST(Numerics, ValuesInAFileAreReadOrRefused) {
  const std::string program = "fusion \"m\" {\n  %0 = input \"x\" : f32[4]\n  output %0\n}\n";
  const auto values = read_values(program + "#: x = 1*2 -inf\n#: x = nan\n", "m.sf");
  ASSERT_THAT(values, SizeIs(1));
  EXPECT_EQ(values[0].input, "x");
  ASSERT_THAT(values[0].elements, SizeIs(4));
  EXPECT_EQ(values[0].elements[1], 1);
  EXPECT_TRUE(std::isnan(values[0].elements[3]));
  // Indented, as the lines of a program are; in no other place.
  EXPECT_THAT(read_values("  \t#: x = 5\n", "m.sf"), SizeIs(1));
  EXPECT_THAT(read_values("# see #: x = 5\n# \"a #: b\n", "m.sf"), IsEmpty());
  EXPECT_THROW((void)read_values("  output %0  #: x = 5\n", "m.sf"), DataError);
  auto message = [&](const std::string& line) -> std::string {
    try {
      (void)examine_text(program + line, cpu_subject("loops"));
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("#: x = 1 two"), "<text>:5: found 'two' among the values, expected a number");
  EXPECT_EQ(message("#: x = 1*0"), "<text>:5: found '1*0' among the values, expected VALUE*NUMBER");
  EXPECT_THAT(message("#: 1 2"), HasSubstr("values were found without a name"));
  EXPECT_EQ(message("#: x = 1 2"), "input 'x' has 2 values in the file, expected 4 for shape [4]");
  EXPECT_EQ(message("#: y = 1"),
            "the file has values of 'y', which is not an input of its program");
}

TEST(Numerics, SizesAreThoseOfTheProgram) {
  const std::string program =
      "fusion \"m\" {\n  symbols B\n  %0 = input \"x\" : f32[B]\n  output %0\n}\n";
  std::vector<std::string> notes;
  const ir::Fusion fusion = ir::parse(program);
  EXPECT_EQ(make_inputs(fusion, {{"B", 3}}, 1, {}, notes)[0].shape(), Shape{3});
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_EQ(make_inputs(fusion, {}, 1, {}, notes)[0].shape(), Shape{16});
  EXPECT_THAT(notes, ::testing::ElementsAre("B taken as 16; --size sets it"));
  EXPECT_THROW(make_inputs(fusion, {{"T", 3}}, 1, {}, notes), UsageError);
}

TEST(Numerics, TheReportSaysWhatToDo) {
  const Planted planted = planted_faults()[0];
  const std::string text = numerics_report_text(examine_text(planted.program, planted.subject));
  EXPECT_THAT(text, HasSubstr("NaN: mul gave nan at [0, 2]\n"));
  EXPECT_THAT(text, HasSubstr("  operation %3 = mul(%2, %1) : f32[2, 4]  (number 2 of 3)\n"));
  EXPECT_THAT(text, HasSubstr("  reads     %2 f32[2, 4] = inf\n"));
  EXPECT_THAT(text, HasSubstr("  reads     %1 'mask' f32[2, 4] = 0\n"));
  EXPECT_THAT(text, HasSubstr("  kernel    "));
}

}  // namespace
}  // namespace segfuse::engine::numerics
