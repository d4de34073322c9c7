#include <gmock/gmock.h>

#include <cstdint>
#include <string>

#include "jit_test.h"
#include "segfuse/error.h"

namespace segfuse::jit {
namespace {

using testing::HasSubstr;

using Object = JitTest;

std::string refusal(const std::string& bytes) {
  try {
    const CpuCode code("some", bytes);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "loaded";
}

TEST(ObjectFile, WhatIsNoObjectIsRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("cut short"));
  EXPECT_THAT(refusal("short"), HasSubstr("cut short"));
  EXPECT_THAT(refusal(std::string(4096, 'x')), HasSubstr("not a relocatable ELF file"));
}

TEST_F(Object, EveryPieceOfAnObjectIsRefusedOrLoaded) {
  const std::string whole = in_memory()->compile_object(scaling("f", 2), {"x86-64", "", 0});
  ASSERT_EQ(refusal(whole), "loaded");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(refusal(whole.substr(0, size)), "loaded") << size << " of " << whole.size();
}

TEST_F(Object, ChangedBytesNeverReachOutside) {
  const std::string whole = in_memory()->compile_object(
      {"f", "double cos(double); static int n; int f(int i) { n += i; return (int)cos(n); }"},
      {"x86-64", "", 0});
  std::uint64_t state = 1;
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      bytes[(state >> 33U) % bytes.size()] = static_cast<char>(state >> 24U);
    }
    refused += refusal(bytes) != "loaded" ? 1 : 0;
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(Object, WhatNeedsTheLoaderOfTheSystemIsRefused) {
  const auto compiler = in_memory();
  const CpuTarget plain{"x86-64", "", 0};
  EXPECT_THAT(refusal(compiler->compile_object(
                  {"f", "_Thread_local int t; int f(void) { return t; }"}, plain)),
              HasSubstr("thread-local"));
  EXPECT_THAT(refusal(compiler->compile_object(
                  {"f", "void abort(void); __attribute__((constructor)) void f(void) { abort(); }"},
                  plain)),
              HasSubstr("run on loading"));
}

TEST_F(Object, ATextWithoutFunctionsIsEmpty) {
  EXPECT_THAT(
      refusal(in_memory()->compile_object({"none", "typedef int word;"}, {"x86-64", "", 0})),
      HasSubstr("empty"));
}

}  // namespace
}  // namespace segfuse::jit
