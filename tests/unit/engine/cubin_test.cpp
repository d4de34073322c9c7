// Machine code for a GPU from programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/compiled/emit.h"
#include "segfuse/error.h"
#include "segfuse/program.h"
#include "support/gpu/nvrtc.h"

namespace segfuse {
namespace {

using ::testing::HasSubstr;

/// Two kinds of kernels, and one kernel twice.
constexpr const char* kProgram = R"(fusion "several" {
  symbols B
  %0 = input "x" : f32[B, 128]
  %1 = input "w" : f32[128, 128]
  %2 = logsumexp(%0) {axes=[1]}
  %3 = matmul(%0, %1) {transpose_a=0, transpose_b=0}
  %4 = exp(%3)
  %5 = matmul(%4, %1) {transpose_a=0, transpose_b=0}
  %6 = exp(%5)
  %7 = matmul(%6, %1) {transpose_a=0, transpose_b=0}
  %8 = tanh(%7)
  output %2 "lse"
  output %8 "y"
})";

TEST(Cubin, OneTextHasAllKernelsOnce) {
  const Program program = Program::from_text(kProgram);
  if (const std::string missing = testing::missing_nvrtc(); !missing.empty()) {
    EXPECT_THROW((void)program.emit("cubin"), DeviceError);
    GTEST_SKIP() << missing;
  }
  for (const char* architecture : {"sm_80", "sm_90"}) {
    const std::string cubin = program.emit("cubin", {.architecture = architecture});
    EXPECT_THAT(cubin, ::testing::StartsWith("\x7f"
                                             "ELF"));
    for (const char* name : {".text.pointwise\0", ".text.pointwise_of_2\0", ".text.reduce\0"})
      EXPECT_THAT(cubin, HasSubstr(name));
    EXPECT_THAT(cubin, ::testing::Not(HasSubstr("pointwise_of_3")));
  }
  EXPECT_THROW((void)program.emit("cubin", {.architecture = "sm_1"}), DeviceError);
}

TEST(Cubin, IsRefusedWithoutKernels) {
  const Program program = Program::from_text(R"(fusion "product" {
    symbols B
    %0 = input "x" : f32[B, 8]
    %1 = input "w" : f32[8, 8]
    %2 = matmul(%0, %1) {transpose_a=0, transpose_b=0}
    output %2 "y"
  })");
  EXPECT_THROW((void)program.emit("cubin"), UsageError);
}

}  // namespace
}  // namespace segfuse
