#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <vector>

#include "jit_test.h"
#include "segfuse/error.h"

namespace segfuse::jit {
namespace {

using Garbage = JitTest;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33U) % bound;
  }

 private:
  std::uint64_t state_;
};

/// Compiles or is refused; anything else ends the process.
int refused(CpuCompiler& compiler, const std::string& text) {
  try {
    compiler.compile({"garbage", text});
    return 0;
  } catch (const InternalError&) {
    return 1;
  }
}

TEST_F(Garbage, Bytes) {
  const auto compiler = in_memory();
  Random random(1);
  int count = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::string text(random.below(300), '\0');
    for (char& c : text) c = static_cast<char>(random.below(256));
    count += refused(*compiler, text);
  }
  EXPECT_GT(count, 150);
}

TEST_F(Garbage, WordsOfTheLanguage) {
  const auto compiler = in_memory();
  const std::vector<std::string> words = {"int",
                                          "float",
                                          "void",
                                          "f",
                                          "x",
                                          "(",
                                          ")",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ";",
                                          ",",
                                          "*",
                                          "+",
                                          "-",
                                          "=",
                                          "1",
                                          "0x",
                                          "2.5f",
                                          "return",
                                          "for",
                                          "if",
                                          "else",
                                          "while",
                                          "struct",
                                          "typedef",
                                          "static",
                                          "__attribute__((vector_size(64)))",
                                          "__builtin_expf",
                                          "#define x",
                                          "\n",
                                          "#if 1\n",
                                          "#endif\n",
                                          "\"",
                                          "'",
                                          "/*",
                                          "*/",
                                          "__asm__",
                                          "\"nop\"",
                                          "_Pragma",
                                          "sizeof",
                                          "&",
                                          "goto",
                                          "?",
                                          ":"};
  Random random(2);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    const std::size_t length = random.below(60);
    for (std::size_t i = 0; i < length; ++i) text += words[random.below(words.size())] + " ";
    refused(*compiler, text);
  }
  EXPECT_EQ(scaled(*compiler->compile(scaling("f", 2)), "f"), 6);
}

TEST_F(Garbage, AKernelWithChangedCharacters) {
  const auto compiler = in_memory();
  const std::string text = scaling("f", 2).text;
  Random random(3);
  int count = 0;
  for (int trial = 0; trial < 150; ++trial) {
    std::string changed = text;
    for (std::size_t change = 0; change < 1 + random.below(3); ++change)
      changed[random.below(changed.size())] = static_cast<char>(32 + random.below(95));
    count += refused(*compiler, changed);
  }
  EXPECT_GT(count, 75);
}

std::string repeated(const std::string& piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

TEST_F(Garbage, DeepNesting) {
  const auto compiler = in_memory();
  EXPECT_EQ(refused(*compiler, "int f(void) { return " + repeated("(", 5000) + "1" +
                                   repeated(")", 5000) + "; }"),
            1);
  EXPECT_EQ(refused(*compiler, "void f(void) " + repeated("{", 5000) + repeated("}", 5000)), 1);
  refused(*compiler, "int f(int x) { return " + repeated("-", 2000) + "x; }");
  EXPECT_EQ(refused(*compiler, "int f(int x) { return " + repeated("x + ", 2000) + "x; }"), 0);
}

TEST_F(Garbage, WhatOnlyTheAssemblerFindsWrong) {
  const auto compiler = in_memory();
  EXPECT_EQ(refused(*compiler, "void f(void) { __asm__(\"no such instruction\"); }"), 1);
  EXPECT_EQ(refused(*compiler,
                    "typedef double v __attribute__((vector_size(64)));\n"
                    "__attribute__((target(\"no-such-feature\"))) v f(v x) { return x; }"),
            0)
      << "unknown target attributes are warnings in clang";
  EXPECT_EQ(scaled(*compiler->compile(scaling("f", 2)), "f"), 6);
}

TEST_F(Garbage, ABigKernel) {
  const auto compiler = in_memory();
  std::string text =
      "void f(void *const *b, const long *s, long begin, long end, void *scratch) {\n"
      "  float *y = b[0];\n  for (long i = begin; i < end; ++i) {\n    float v = y[i];\n";
  for (int i = 0; i < 2000; ++i) text += fmt::format("    v = v * {}.5f + {}.0f;\n", i % 2, i % 3);
  text += "    y[i] = v;\n  }\n}\n";
  const auto code = compiler->compile({"big", text});
  float expected = 3;
  for (int i = 0; i < 2000; ++i)
    expected = expected * (i % 2 == 0 ? 0.5F : 1.5F) + static_cast<float>(i % 3);
  std::vector<float> y(100, 3);
  void* buffers[] = {y.data()};
  code->function("f")(buffers, nullptr, 0, 100, nullptr);
  EXPECT_EQ(y, std::vector<float>(100, expected));
}

}  // namespace
}  // namespace segfuse::jit
