#include "ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "base/os/file.h"
#include "ir/rules/verify.h"
#include "samples.h"
#include "support/source_dir.h"

namespace segfuse::ir {
namespace {

using testing::HasSubstr;

std::string refusal(std::string_view text) {
  return message_of<DataError>([&] { (void)parse(text, "f.sf"); });
}

TEST(Text, TheSampleComesBack) {
  const Fusion f = sample();
  const std::string text = print(f);
  const Fusion again = parse(text);
  verify(again);
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(again.name(), "sample");
  EXPECT_EQ(again.exprs().size(), f.exprs().size());
  EXPECT_EQ(again.live_exprs().size(), f.live_exprs().size());
}

TEST(Text, DoesNotDependOnIds) {
  Fusion f;
  Builder b(f);
  const Extent half = f.floordiv(f.symbol("A"), 2);  // its id is between those of A and Z
  const ValId x = f.add_input("x", DType::kF32, {half, f.symbol("Z"), f.symbol("K")});
  const ValId second = f.add_input("second", DType::kF32, {f.symbol("K")});
  f.add_output(b.reshape(x, {half * f.symbol("Z"), f.symbol("K")}));
  f.add_output(b.reshape(second, {f.symbol("Z") * half}));
  f.erase(f.val(b.exp(x)).definition);
  const ValId late = b.exp(x);
  const ValId user = b.log(x);
  f.replace_uses(f.expr(f.val(user).definition).operands[0], x);
  f.add_output(late);
  const std::string text = print(f);
  EXPECT_EQ(print(parse(text)), text);
  EXPECT_THAT(text, HasSubstr("reshape(%1) {shape=[Z*floordiv(A, 2)]}"));  // K is that
  ASSERT_TRUE(f.unify(Extent(f.symbol("A")) * 2, half * 4));
  EXPECT_THAT(print(f), HasSubstr("  require A == 2*floordiv(A, 2)\n"));
  EXPECT_EQ(print(parse(print(f))), print(f));
}

TEST(Text, NumbersComeBackBitForBit) {
  Fusion f;
  const double values[] = {0.0,
                           -0.0,
                           0.1,
                           -1.0 / 3,
                           5e-324,
                           std::numeric_limits<double>::max(),
                           std::numeric_limits<double>::min(),
                           std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN(),
                           1e22,
                           123456789012345678.0};
  for (const double value : values) f.add_output(f.constant(value, DType::kF64));
  const std::string text = print(f);
  Fusion again = parse(text);
  EXPECT_EQ(print(again), text);
  const std::size_t before = again.exprs().size();
  for (const double value : values) again.constant(value, DType::kF64);
  EXPECT_EQ(again.exprs().size(), before);  // every one was found, bit for bit
}

TEST(Text, NamesMayHoldAnyByte) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  Fusion f(all);
  f.add_output(f.add_input(all, DType::kI32, {}), all);
  const Fusion again = parse(print(f));
  EXPECT_EQ(again.name(), all);
  EXPECT_EQ(again.inputs()[0].name, all);
  EXPECT_EQ(again.outputs()[0].name, all);
}

TEST(Text, HandWritingIsAccepted) {
  const Fusion f = parse(R"(# no name, no types
fusion{symbols N,M require N==M # united
  %x=input"x":f32[N] %y = input "y" : f32[M]
  %sum = add(%x,
             %y)
  %eight = constant() {dtype=f32,value=8.0e0}
  output %sum
})");
  verify(f);
  EXPECT_EQ(print(f), R"(fusion "main" {
  symbols N
  %0 = input "x" : f32[N]
  %1 = input "y" : f32[N]
  %2 = add(%0, %1) : f32[N]
  %3 = constant {value=8, dtype=f32} : f32[]
  output %2
}
)");
}

TEST(Text, DuplicateConstantsStay) {
  Fusion f;
  f.add_output(f.constant(1, DType::kF32));
  f.add_output(f.result(f.add_expr(Op::constant, {}, {1.0, DType::kF32})));
  const std::string text = print(f);
  EXPECT_EQ(print(parse(text)), text);
}

struct Mistake {
  const char* text;
  const char* message;
};

TEST(Text, MistakesAreNamedWithTheirPlace) {
  const Mistake mistakes[] = {
      {"", "f.sf:1:1: found the end of the text, expected 'fusion'"},
      {"fussion {", "f.sf:1:1: found 'fussion', expected 'fusion'"},
      {"fusion \"abc\n{", "f.sf:1:8: found a string without its closing '\"', expected '{'"},
      {"fusion {\n\n", "f.sf:3:1: found the end of the text, expected 'symbols'"},
      {"fusion {} x", "f.sf:1:11: found 'x', expected the end of the text"},
      {"fusion { outputs", "f.sf:1:10: found 'outputs', expected"},
      {"fusion { outputs", "did you mean 'output'?"},
      {"fusion { \xff", "f.sf:1:10: found '\\xff', expected"},
      {"fusion { symbols T, T }", "f.sf:1:21: found 'T', expected a name that is not declared"},
      {"fusion { symbols floordiv }", "f.sf:1:18: 'floordiv' cannot name a size"},
      {"fusion { require 3 == 4 }", "f.sf:1:18: found the requirement 3 == 4, expected sizes"},
      {"fusion { require 3 = 4 }", "f.sf:1:20: found '=', expected '=='"},
      {"fusion { %0, %1 = input \"x\" : f32[] }", "expected one name for an input"},
      {"fusion { %0 = input x : f32[] }", "f.sf:1:21: found 'x', expected the name of the input"},
      {"fusion { %0 = input \"x\" : f23[] }", "found 'f23', expected an element type, one of"},
      {"fusion { %0 = input \"x\" : f32[T] }", "f.sf:1:31: found 'T', expected a symbol"},
      {"fusion { symbols Time %0 = input \"x\" : f32[Tine] }", "did you mean 'Time'?"},
      {"fusion { %0 = input \"x\" : f32[-1] }", "f.sf:1:21: input 'x' has the shape [-1]"},
      {"fusion { %0 = input \"x\" : f32[1 }", "f.sf:1:33: found '}', expected ',' or ']'"},
      {"fusion { %0 = input \"x\" : f32[1.5] }", "found '1.5', expected a whole number"},
      {"fusion { %0 = input \"x\" : f32[9223372036854775808] }", "that fits 64 bits"},
      {"fusion { %0 = input \"x\" : f32[9223372036854775807 + 1] }", "does not fit 64 bits"},
      {"fusion { symbols T %0 = input \"x\" : f32[floordiv(T, 0)] }", "divisor must be positive"},
      {"fusion { %0 = exq(%1) }", "f.sf:1:15: found 'exq', expected an operation; did you mean"},
      {"fusion { %0 = zzzzzzz(%1) }", "f.sf:1:15: found 'zzzzzzz', expected an operation"},
      {"fusion { %0 = exp(%1) }", "f.sf:1:19: found '%1', expected a value that is defined above"},
      {"fusion { %in = input \"x\" : f32[] output %on }", "did you mean '%in'?"},
      {"fusion { %0 = input \"x\" : f32[] %0 = exp(%0) }", "expected a name that is not defined"},
      {"fusion { %0 = input \"x\" : f32[] %1 = exp %0 }", "found '%0', expected '('"},
      {"fusion { %0 = input \"x\" : f32[] %1 = exp(%0 }", "found '}', expected ',' or ')'"},
      {"fusion { %0 = input \"x\" : f32[] %1, %2 = exp(%0) }", "found 2 names, expected 1"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = sum(%0) }",
       "expected '{' and the attributes 'axes'"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = sum(%0) {axis=[0]} }", "did you mean 'axes'?"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = sum(%0) {axes=[0], axes=[0]} }", "attribute once"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = sum(%0) {axes=[0.5]} }", "found '0.5', expected"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = sum(%0) {axes=[3]} }",
       "f.sf:1:39: sum: axis 3 does not exist"},
      {"fusion { %0 = constant {value=1} }", "expected the attribute 'dtype' of constant"},
      {"fusion { %0 = constant {value=1e999, dtype=f32} }", "found '1e999', expected a number"},
      {"fusion { %0 = constant {value=x, dtype=f32} }", "expected a number, inf or nan"},
      {"fusion { %0 = constant {value=1.5, dtype=i32} }",
       "constant: the value 1.5 does not fit i32"},
      {"fusion { %0 = input \"x\" : f32[3]\n%1 = exp(%0) : f32[4] }",
       "f.sf:2:16: found f32[4], expected f32[3], the type of %1"},
      {"fusion { %0 = input \"x\" : f32[3] %1 = exp(%0) : f64[3] }",
       "found f64[3], expected f32[3]"},
      {"fusion { %0 = input \"x\" : f32[] %1 = input \"x\" : f32[] }",
       "already has an input named"},
      {"fusion { %0 = input \"x\" : f32[] alias %0 -> %0 }", "must be an output"},
  };
  for (const Mistake& mistake : mistakes)
    EXPECT_THAT(refusal(mistake.text), HasSubstr(mistake.message)) << mistake.text;
}

TEST(Text, DeepNestingIsRefused) {
  std::string size;
  for (int i = 0; i < 100000; ++i) size += "floordiv(";
  EXPECT_THAT(refusal("fusion { symbols T %0 = input \"x\" : f32[" + size + "T] }"),
              HasSubstr("expected at most 64 nested divisions"));
}

// --- golden files: comments at the top, then a Fusion as it is printed

class GoldenText : public testing::TestWithParam<std::string> {};

TEST_P(GoldenText, PrintsAsItStands) {
  const std::string path = GetParam();
  const std::string text = read_file(path);
  std::string header;  // the comments at the top are kept
  std::string_view rest = text;
  while (!rest.empty() && rest.front() == '#') {
    const std::size_t end = rest.find('\n') + 1;
    header += rest.substr(0, end);
    rest.remove_prefix(end);
  }
  const Fusion f = parse(text, path);
  verify(f);
  const std::string printed = header + print(f);
  if (printed != text && std::getenv("SEGFUSE_UPDATE_GOLDEN")) {
    write_file_atomically(path, printed);
    return;
  }
  EXPECT_EQ(printed, text) << "set SEGFUSE_UPDATE_GOLDEN=1 to rewrite " << path;
  EXPECT_EQ(print(parse(print(f))), print(f));
}

std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(SEGFUSE_SOURCE_DIR "/tests/golden/ir"))
    if (entry.path().extension() == ".sf") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenText, testing::ValuesIn(golden_files()), [](const auto& param) {
  return std::filesystem::path(param.param).stem().string();
});

TEST(GoldenTexts, AreThere) { EXPECT_GE(golden_files().size(), 8U); }

}  // namespace
}  // namespace segfuse::ir
