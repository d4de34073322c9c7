#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "jit_test.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::jit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Compile = JitTest;

TEST_F(Compile, AFunctionRunsOnItsPartOfTheRange) {
  const auto compiler = in_memory();
  const auto code = compiler->compile(scaling("triple", 3));
  std::vector<float> x(1000), y(1000, -1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  void* buffers[] = {x.data(), y.data()};
  code->function("triple")(buffers, nullptr, 7, 993, nullptr);
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(y[i], i < 7 || i >= 993 ? -1.0F : 3.0F * x[i]) << i;
}

TEST_F(Compile, FunctionsOfTheProcessOfLibmAndOfLibgccAreFound) {
  const auto code = in_memory()->compile(
      {"calls",
       "typedef unsigned long size_t;\n"
       "void *memcpy(void *, const void *, size_t); void *memset(void *, int, size_t);\n"
       "void all(void *const *b, const long *s, long begin, long end, void *scratch) {\n"
       "  float *y = b[0]; double *d = b[1]; char *c = b[2];\n"
       "  y[0] = __builtin_fmaf(y[0], y[1], y[2]); y[1] = __builtin_expf(y[1]);\n"
       "  y[2] = __builtin_tanhf(y[2]); d[0] = __builtin_lgamma(d[0]);\n"
       "  memset(c, 7, (size_t)s[0]); memcpy(c + s[0], c, (size_t)s[0]);\n"
       "  d[1] = (double)(__fp16)d[1];\n}\n"});
  float y[3] = {2, 3, 0.5F};
  double d[2] = {4.5, 1.0 / 3};
  std::vector<char> c(2000);
  void* buffers[] = {y, d, c.data()};
  const std::int64_t sizes[] = {1000};
  code->function("all")(buffers, sizes, 0, 0, nullptr);
  EXPECT_EQ(y[0], 6.5F);
  EXPECT_EQ(y[1], std::exp(3.0F));
  EXPECT_EQ(y[2], std::tanh(0.5F));
  EXPECT_EQ(d[0], std::lgamma(4.5));
  EXPECT_EQ(d[1], 0.333251953125);
  EXPECT_EQ(c, std::vector<char>(2000, 7));
}

TEST_F(Compile, DataOfAllKindsHasItsPlace) {
  const auto code = in_memory()->compile(
      {"data",
       "static const float table[5] __attribute__((aligned(64))) = {1, 2, 4, 8, 16};\n"
       "static int calls; int visible = 5; static double zeros[300];\n"
       "static float one(float x) { return x + 1; } static float two(float x) { return x + 2; }\n"
       "float (*const ways[2])(float) = {one, two}; double (*far)(double) = 0;\n"
       "double cos(double);\n"
       "const char *text(int i) { switch (i) { case 1: return \"a\"; case 2: return \"bc\";\n"
       "  case 3: return \"d\"; case 4: return \"e\"; case 5: return \"f\"; } return \"none\"; }\n"
       "void *where(void) { return (void *)cos; }\n"
       "void use(void *const *b, const long *s, long begin, long end, void *scratch) {\n"
       "  float *y = b[0]; far = cos; zeros[begin] += 0.5; visible += 2;\n"
       "  y[0] = table[begin]; y[1] = (float)++calls; y[2] = ways[begin & 1](10);\n"
       "  y[3] = (float)zeros[begin]; y[4] = (float)far(0);\n}\n"});
  float y[5] = {};
  void* buffers[] = {y};
  code->function("use")(buffers, nullptr, 3, 4, nullptr);
  EXPECT_THAT(y, ElementsAre(8, 1, 12, 0.5, 1));
  code->function("use")(buffers, nullptr, 2, 3, nullptr);
  EXPECT_THAT(y, ElementsAre(4, 2, 11, 0.5, 1));
  EXPECT_EQ(*static_cast<int*>(code->symbol("visible")), 9);
  const auto text = reinterpret_cast<const char* (*)(int)>(code->symbol("text"));
  EXPECT_STREQ(text(2), "bc");
  EXPECT_STREQ(text(9), "none");
  const auto where = reinterpret_cast<void* (*)()>(code->symbol("where"));
  EXPECT_EQ(reinterpret_cast<double (*)(double)>(where())(0), 1.0);
  EXPECT_THAT(code->symbols(), ElementsAre("far", "text", "use", "visible", "ways", "where"));
}

TEST_F(Compile, TheDialectIsClangsWithGnuExtensions) {
  const auto code = in_memory()->compile(
      {"dialect",
       "#if !defined(__clang__) || !defined(__GNUC__) || defined(__FAST_MATH__)\n#error "
       "no\n#endif\n"
       "typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));\n"
       "typedef __INT32_TYPE__ i16 __attribute__((vector_size(64)));\n"
       "void f(void *const *b, const __INT64_TYPE__ *s, __INT64_TYPE__ begin, __INT64_TYPE__ end,\n"
       "       void *scratch) {\n"
       "  float *y = b[0]; v16 v = *(v16 *)y; i16 big = v > 7; v = (v16)((i16)v & big);\n"
       "  _Pragma(\"clang loop unroll(full)\") for (int i = 0; i < 16; ++i) y[i] = v[15 - "
       "i];\n}\n"});
  std::vector<float> y(16);
  for (std::size_t i = 0; i < 16; ++i) y[i] = static_cast<float>(i);
  void* buffers[] = {y.data()};
  code->function("f")(buffers, nullptr, 0, 0, nullptr);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], i < 8 ? 15.0F - static_cast<float>(i) : 0);
}

TEST_F(Compile, AMissingSymbolIsNamed) {
  const auto code = in_memory()->compile(scaling("present", 2));
  try {
    code->symbol("absent");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'absent'"));
    EXPECT_THAT(error.what(), HasSubstr("'present'"));
  }
}

TEST_F(Compile, AFunctionThatNobodyHasIsNamed) {
  const auto compiler = in_memory();
  try {
    compiler->compile({"caller",
                       "int no_such_function(int); int f(void) { return "
                       "no_such_function(1); }\n"});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no_such_function"));
  }
  EXPECT_EQ(compiler->counters().failed, 1);
}

TEST_F(Compile, AWrongTextIsATypedErrorAndTheCacheGoesOn) {
  const auto compiler = in_memory();
  const CSource wrong{"broken", "int f(void) {\n  return 1 +;\n}\nint g(void) { return h; }\n"};
  for (int time = 1; time <= 2; ++time) {
    try {
      compiler->compile(wrong);
      FAIL();
    } catch (const CompileError& error) {
      EXPECT_EQ(error.line(), 2U);
      EXPECT_EQ(error.message(), "expected expression");
      EXPECT_EQ(error.text(), wrong.text);
      EXPECT_STREQ(error.what(),
                   "the generated text 'broken' does not compile: line 2: expected expression");
    }
    EXPECT_EQ(compiler->counters().failed, time);
  }
  EXPECT_EQ(scaled(*compiler->compile(scaling("after", 5)), "after"), 15);
  EXPECT_EQ(compiler->counters().compiled, 1);
}

TEST_F(Compile, NothingOfTheMachineIsRead) {
  EXPECT_THROW(in_memory()->compile({"file", "#include \"/etc/hostname\"\n"}), CompileError);
  EXPECT_THROW(in_memory()->compile({"header", "#include <math.h>\n"}), CompileError);
}

TEST_F(Compile, ProductsAndSumsAreNotContracted) {
  const auto code = in_memory()->compile(
      {"separate",
       "void f(void *const *b, const long *s, long begin, long end, void *scratch) {\n"
       "  float *y = b[0]; y[0] = y[1] * y[2] + y[3]; }\n"});
  const float a = 1.0F + 0x1p-12F;
  float y[4] = {0, a, a, -1.0F - 0x1p-11F};
  void* buffers[] = {y};
  code->function("f")(buffers, nullptr, 0, 0, nullptr);
  EXPECT_EQ(y[0], 0.0F) << "fused, it would be 2^-24";
}

TEST_F(Compile, ObjectsForOtherTargetsAreMade) {
  const auto compiler = in_memory();
  const CSource source = scaling("plain", 4);
  const std::string old = compiler->compile_object(source, {"x86-64", "", 0});
  const std::string wide = compiler->compile_object(source, {"x86-64-v4", "", 512});
  EXPECT_NE(old, wide);
  EXPECT_EQ(old, compiler->compile_object(source, {"x86-64", "", 0})) << "the same bytes again";
  const CpuCode code("plain", old);
  EXPECT_EQ(scaled(code, "plain"), 12);
}

TEST_F(Compile, AProcessorThatClangDoesNotKnowIsAnError) {
  EXPECT_THROW(in_memory()->compile_object(scaling("f", 1), {"pentium9", "", 0}), CompileError);
}

TEST_F(Compile, WhereLlvmWouldEndTheProcessThereIsAnError) {
  const auto compiler = in_memory();
  for (int factor = 1; factor <= 3; ++factor) {
    try {
      compiler->compile_object(scaling("f", factor), {"x86-64", "-64bit", 0});
      ADD_FAILURE();
    } catch (const CompileError& error) {
      EXPECT_THAT(error.message(), HasSubstr("64-bit code requested"));
    }
    EXPECT_EQ(scaled(*compiler->compile(scaling("f", factor)), "f"), 3 * factor);
  }
}

TEST_F(Compile, RemarksSayWhyALoopIsNotVectorized) {
  const auto compiler = in_memory();
  const std::string report =
      compiler->vector_report({"chain",
                               "void f(float *x, long n) {\n  for (long i = 1; i < n; ++i)\n"
                               "    x[i] = x[i - 1] * 0.5f + 1;\n}\n"});
  EXPECT_THAT(report, HasSubstr("2: loop not vectorized"));
  EXPECT_THAT(compiler->vector_report(scaling("simple", 2)), HasSubstr("vectorized loop"));
}

TEST_F(Compile, TheHostIsNamed) {
  const auto compiler = in_memory();
  EXPECT_THAT(compiler->version(), HasSubstr("clang 19"));
  EXPECT_EQ(compiler->target(), compiler->host_target());
  EXPECT_THAT(compiler->target().features, HasSubstr("+sse2"));
  EXPECT_THAT(compiler->target().text(), HasSubstr(compiler->target().cpu));
}

/// What a process says that looks for the module in `file`.
std::string said_with_module(const std::string& file) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return spawn::run({.arguments = {self, "--gtest_filter=Compile.TheHostIsNamed"},
                     .environment = spawn::Environment::patch({{"SEGFUSE_CLANG", file}})})
      .out;
}

TEST(Opening, TheReasonSaysWhatWasLookedFor) {
  EXPECT_THAT(said_with_module("/no/such/file.so"),
              AllOf(HasSubstr("/no/such/file.so"), HasSubstr("libclang-19-dev")));
  EXPECT_THAT(said_with_module("libm.so.6"), HasSubstr("libm.so.6 has no function segfuse_clang"));
}

}  // namespace
}  // namespace segfuse::jit
