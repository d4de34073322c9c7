// Printed kernels compile for the architectures that are supported, nothing of theirs is in local
// memory, and segfuse doctor kernel reads from them what the assembler says of them: where NVRTC is
// installed; it needs no GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/codegen/cuda/print_cuda.h"
#include "doctor/kernel/cubin.h"
#include "support/gpu/kernel_jobs.h"
#include "support/gpu/nvrtc.h"
#include "unit/codegen_gpu/models.h"
#include "unit/doctor/ptxas_report.h"

namespace segfuse::compiler {
namespace {

class PrintedFor : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_nvrtc();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, PrintedFor, ::testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& suite) { return std::string(suite.param); });

Schedule large_rows(Hold hold) {
  Schedule s;
  s.target = Target::kCuda;
  s.threads = 256;
  s.hold = hold;
  s.row = 4096;
  s.narrow = true;
  return s;
}

void expect_in_registers(const testing::NamedModel& named, const testing::ScheduleFor& schedule,
                         const char* architecture,
                         const std::map<std::string, std::int64_t>& hints = {},
                         std::int64_t columns = 32) {
  Model model;
  named.build(model);
  const auto inputs = testing::normal_inputs(
      model.fusion, {{"N", 2}, {"B", 3}, {"T", 8}, {"C", columns}, {"H", 4}, {"W", 8}});
  for (const testing::KernelJob& job : testing::jobs_of(
           model.fusion, inputs, schedule, named.name,
           [](loop::Kernel& kernel, const cuda::SizeOf& size) {
             cuda::fit_to_sizes(kernel, size);
             return true;
           },
           hints)) {
    const std::string text = cuda::print_cuda(job.kernel);
    runtime::cuda::Compiled compiled;
    ASSERT_NO_THROW(compiled = runtime::cuda::compile_cubin(named.name, text, {}, architecture))
        << text;
    test::expect_agreement(doctor::read_cubin(compiled.cubin, named.name), compiled.report);
    test::expect_no_float_atomics(compiled.ptx, named.name);
    const std::vector<std::string> memories = testing::memory_of_kernels(compiled.report);
    EXPECT_EQ(memories.size(), 1U) << compiled.report;
    for (const std::string& memory : memories)
      EXPECT_EQ(memory, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
          << job.what << "\n"
          << compiled.report;
  }
}

TEST_P(PrintedFor, ModelsWithRowsReadAgain) {
  for (const testing::NamedModel& named : testing::named_models())
    expect_in_registers(named, [](const Space&) { return large_rows(Hold::kReread); }, GetParam());
}

TEST_P(PrintedFor, RowsInRegisters) {
  for (const testing::NamedModel& named : testing::named_models())
    if (named.name.find("norm") != named.name.npos || named.name.find("softmax") == 0)
      expect_in_registers(
          named, [](const Space&) { return large_rows(Hold::kRegister); }, GetParam());
}

/// Several rows of less than a vector in the registers of one lane.
TEST_P(PrintedFor, ShortRows) {
  for (const testing::NamedModel& named : testing::named_models())
    if (named.name.find("instance") != 0 &&
        (named.name.find("norm") != named.name.npos || named.name.find("softmax") == 0))
      for (const std::int64_t columns : {1, 3, 7})
        expect_in_registers(named, testing::chosen_for_cuda, GetParam(),
                            {{"N", 32768}, {"C", columns}}, columns);
}

/// What choose_cuda() makes of large arrays.
TEST_P(PrintedFor, ChosenSchedules) {
  for (const testing::NamedModel& named : testing::named_models())
    expect_in_registers(named, testing::chosen_for_cuda, GetParam(),
                        {{"N", 32768}, {"B", 64}, {"T", 16}, {"C", 4096}, {"H", 56}, {"W", 56}});
}

/// Rows that are too long for shared memory, by the largest blocks.
TEST_P(PrintedFor, LongRows) {
  for (const testing::NamedModel& named : testing::named_models())
    for (const char* name : {"softmax_f32", "softmax_bf16", "add_norm_f16", "rms_norm_bf16"})
      if (named.name == name)
        expect_in_registers(named, testing::chosen_for_cuda, GetParam(),
                            {{"N", 4096}, {"C", 60000}});
}

}  // namespace
}  // namespace segfuse::compiler
