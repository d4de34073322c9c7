// What a caller of a program in C meets: sizes, codes, names, compilers, the example.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/os/file.h"
#include "engine/compiled/emit.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "segfuse/program.h"
#include "segfuse/spawn.h"
#include "support/c/c_program.h"
#include "support/source_dir.h"
#include "support/tensors.h"
#include "unit/compiler/segment_models.h"

namespace segfuse {
namespace {

using compiler::Model;
using ir::Extent;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOk = 0, kBadSize = 1, kMissing = 2, kSmall = 3, kBadIndex = 4;

/// y = tanh(x W) summed over rows of a slice: it needs memory between its groups.
Model layered() {
  Model m;
  m.fusion.set_name("layered");
  const Extent b = m.size("B");
  const Extent t = m.size("T");
  const auto x = m.input("x", {b, t, 8});
  const auto tail = m.b.slice_axis(x, 1, Extent(1), t - 1);
  const auto product = m.b.matmul(m.b.exp(tail), m.input("w", {8, 5}));
  m.output(m.b.sum(m.b.tanh(product), {1}), "y");
  return m;
}

class Interface : public ::testing::Test {
 protected:
  Interface() : library_(engine::print_program(layered().fusion, {})) {}
  int run(std::int64_t b, std::int64_t t, bool with_w = true, std::ptrdiff_t less = 0) {
    const std::int64_t sizes[] = {b, t};
    std::size_t bytes = 0;
    const int code = library_.workspace(sizes, &bytes);
    if (code != kOk) {
      EXPECT_EQ(bytes, 0U);
      return code;
    }
    std::vector<unsigned char> workspace(bytes + 1);
    std::vector<float> x(static_cast<std::size_t>(b * t * 8) + 1), w(40),
        y(static_cast<std::size_t>(b * 5) + 1);
    void* const arrays[] = {x.data(), with_w ? w.data() : nullptr, y.data()};
    bytes_ = bytes;
    return library_.run(sizes, arrays, workspace.data(), bytes - static_cast<std::size_t>(less));
  }
  test::CProgramLibrary library_;
  std::size_t bytes_ = 0;
};

TEST_F(Interface, SizesAreCheckedAsAProgramsAre) {
  EXPECT_EQ(run(2, 3), kOk);
  EXPECT_EQ(run(2, 1), kOk);
  EXPECT_EQ(run(0, 3), kOk);
  EXPECT_EQ(run(2, 0), kBadSize);  // the slice would have -1 elements
  EXPECT_EQ(run(-1, 3), kBadSize);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(run(most, 2), kBadSize);
  EXPECT_EQ(run(most / 2, most / 2), kBadSize);
  EXPECT_EQ(run(1, most), kBadSize);
}

TEST_F(Interface, MissingMemoryIsSaid) {
  EXPECT_EQ(run(2, 3, false), kMissing);
  EXPECT_EQ(run(2, 3, true, 1), kSmall);
  EXPECT_EQ(run(2, 3), kOk);
  // Two values of 2 x 2 x 8 and 2 x 2 x 5 numbers are alive at once.
  EXPECT_LE(bytes_, 4 * 32 + 4 * 20 + 3 * 64U);
}

TEST(CProgramText, ABadIndexIsSaid) {
  Model m;
  const auto table = m.input("table", {3, 2});
  const auto rows = m.input("rows", {m.size("N")}, DType::kI64);
  m.output(m.b.take(table, rows, 0), "y");
  const test::CProgramLibrary library(engine::print_program(m.fusion, {}));
  float values[6] = {}, y[4] = {};
  for (const auto& [index, code] :
       {std::pair<std::int64_t, int>{2, kOk}, {3, kBadIndex}, {-1, kBadIndex}}) {
    std::int64_t indices[] = {0, index};
    void* const arrays[] = {values, indices, y};
    const std::int64_t sizes[] = {2};
    std::size_t bytes = 0;
    ASSERT_EQ(library.workspace(sizes, &bytes), kOk);
    std::vector<std::byte> memory(bytes);
    EXPECT_EQ(library.run(sizes, arrays, memory.data(), bytes), code) << index;
  }
}

TEST(CProgramText, RequirementsAreChecked) {
  const auto fusion = ir::parse(R"(fusion "required" {
    symbols B, T
    require B*T == T + 6
    %0 = input "x" : f32[B, T]
    %1 = neg(%0)
    output %1 "y"
  })",
                                "text");
  const test::CProgramLibrary library(engine::print_program(fusion, {}));
  std::size_t bytes = 0;
  const std::int64_t good[] = {3, 3}, bad[] = {3, 4};
  EXPECT_EQ(library.workspace(good, &bytes), kOk);
  EXPECT_EQ(library.workspace(bad, &bytes), kBadSize);
}

TEST(CProgramText, WhatPassesLeaveOutIsChecked) {
  const auto fusion = ir::parse(R"(fusion "empty" {
    symbols N
    %0 = input "x" : f32[N]
    %1 = slice(%0) {starts=[8], sizes=[0]}
    %2 = sum(%1) {axes=[0]}
    output %2 "y"
  })",
                                "text");
  const test::CProgramLibrary library(engine::print_program(fusion, {}));
  std::size_t bytes = 0;
  const std::int64_t good[] = {8}, bad[] = {7};
  EXPECT_EQ(library.workspace(good, &bytes), kOk);
  EXPECT_EQ(library.workspace(bad, &bytes), kBadSize);
}

TEST(CProgramText, WhatHasNoFormInCIsRefusedInOneSentence) {
  const Program crf =
      Program::from_text(read_file(SEGFUSE_SOURCE_DIR "/tests/golden/ir/semicrf.sf"));
  try {
    (void)crf.emit("c");
    FAIL() << "nothing was refused";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("semicrf_loss"), HasSubstr("--emit=kernels")));
  }
}

TEST(CProgramText, FunctionsAreCalledAsWanted) {
  const Program program = Program::from_text(ir::print(layered().fusion));
  EXPECT_THAT(program.emit("h"), HasSubstr("\nint layered("));
  EXPECT_THAT(program.emit("h", {.function = "step_1"}),
              AllOf(HasSubstr("\nint step_1("), HasSubstr("step_1_workspace("),
                    HasSubstr("STEP_1_BAD_SIZE"), Not(HasSubstr("int layered("))));
  for (const char* bad : {"int", "2fast", "a-b", "exp", "n"})
    EXPECT_THROW((void)program.emit("c", {.function = bad}), UsageError) << bad;
}

TEST(CProgramText, IsTheSameEveryTime) {
  const Program program = Program::from_text(ir::print(layered().fusion));
  EXPECT_EQ(program.emit("c"), program.emit("c"));
  EXPECT_THAT(program.emit("c"), ::testing::StartsWith(program.emit("h")));
  EXPECT_THAT(program.emit("c"), Not(HasSubstr("segfuse/")));
}

/// The path of a program, or nothing where there is none.
bool runs(const std::vector<std::string>& command) {
  spawn::Request request;
  request.arguments = command;
  try {
    return spawn::run(request).ok();
  } catch (const std::exception&) {
    return false;
  }
}

std::string say(const std::vector<std::string>& command) {
  spawn::Request request;
  request.arguments = command;
  request.err = spawn::Merge{};
  const spawn::Result result = spawn::run(request);
  EXPECT_TRUE(result.ok()) << command[0] << ": " << result.outcome() << "\n" << result.out;
  return result.out;
}

/// The compilers that this machine has.
std::vector<std::string> compilers() {
  std::vector<std::string> all;
  for (const char* name : {"cc", "gcc", "clang", "clang-19"})
    if (runs({name, "--version"})) all.emplace_back(name);
  return all;
}

TEST(CProgramText, EveryCompilerHereTakesItWithoutAWord) {
  const test::TemporaryDirectory directory;
  const auto program = engine::print_program(layered().fusion, {});
  const std::string source = directory.write("layered.c", program.source).string();
  const std::string header = directory.write("layered.h", program.header).string();
  const std::string user =
      directory
          .write("user.cpp",
                 "#include \"layered.h\"\nint main() { return layered_message(0)[0] == 0; }\n")
          .string();
  ASSERT_FALSE(compilers().empty());
  for (const std::string& compiler : compilers()) {
    for (const char* level : {"-O0", "-O3"})
      EXPECT_EQ(say({compiler, "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
                     level, "-c", source, "-o", (directory / "layered.o").string()}),
                "")
          << compiler;
    EXPECT_EQ(say({compiler, "-std=c++17", "-x", "c++", "-Wall", "-Wextra", "-Werror", "-pedantic",
                   "-fsyntax-only", user}),
              "")
        << compiler;
  }
}

/// examples/ahead_of_time.c with the program that it is written for, by every compiler here.
TEST(CProgramExample, AgreesWithSegfuse) {
  const std::string examples = SEGFUSE_SOURCE_DIR "/examples/";
  const Program program = Program::from_file(examples + "layer_norm.sf");
  const test::TemporaryDirectory directory;
  directory.write("layer_norm.h", program.emit("h"));
  const std::string source = directory.write("layer_norm.c", program.emit("c")).string();
  Rng rng(1, 2);
  std::vector<Tensor> inputs = {testing::uniform(rng, DType::kF32, {3, 5, 256}),
                                testing::uniform(rng, DType::kF32, {256}),
                                testing::uniform(rng, DType::kF32, {256})};
  std::string bytes;
  for (const Tensor& input : inputs)
    bytes.append(static_cast<const char*>(input.data()), input.bytes());
  const std::string in = directory.write("in.f32", bytes).string();
  const Tensor expected = program.run(inputs)[0];
  const Tensor exact = program.run_reference(inputs)[0];
  ASSERT_FALSE(compilers().empty());
  for (const std::string& compiler : compilers()) {
    const std::string tool = (directory / ("tool-" + compiler)).string();
    const std::string out = (directory / ("out-" + compiler)).string();
    EXPECT_EQ(say({compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
                   "-I" + directory.path().string(), examples + "ahead_of_time.c", source, "-o",
                   tool, "-lm"}),
              "");
    EXPECT_THAT(say({tool, "3", "5", in, out}), HasSubstr("3 x 5 rows"));
    const std::string written = read_file(out);
    ASSERT_EQ(written.size(), expected.bytes());
    Tensor found(DType::kF32, {3, 5, 256});
    std::memcpy(found.data(), written.data(), written.size());
    EXPECT_TRUE(testing::same_bits(found, expected)) << compiler;
    for (std::int64_t i = 0; i < found.size(); ++i)
      ASSERT_PRED3(testing::near, found.at(i), exact.at(i), 1e-5) << i;
  }
}

}  // namespace
}  // namespace segfuse
