// Kernels that no group is lowered to compile for the architectures that are supported, without
// spills and floating-point atomics, and segfuse doctor kernel agrees with the assembler on them:
// where NVRTC is installed; it needs no GPU.

#include "engine/device/library_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "doctor/kernel/cubin.h"
#include "support/gpu/nvrtc.h"
#include "unit/doctor/ptxas_report.h"

namespace segfuse::engine {
namespace {

std::vector<LibraryLaunch> all_launches() {
  std::vector<LibraryLaunch> all;
  for (const std::size_t bytes : {1, 2, 4, 8})
    all.push_back(copy_view_launch(bytes, {3, 4, 5}, {1, 3, 12}));
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    all.push_back(fold_launch(dtype, {2, 20, 6, 3, 2, 1, 5}));
    for (const DType indices : {DType::kI32, DType::kI64})
      all.push_back(scatter_add_launch(dtype, indices, {1, 700, 9, 300}, 132));
    all.push_back(look_launch(dtype, 1000));
    runtime::GpuProduct product;
    product.dtype = dtype;
    all.push_back(matmul_launch(product));
  }
  for (const DType dtype : {DType::kI32, DType::kI64})
    all.push_back(scatter_add_launch(dtype, DType::kI64, {1, 700, 9, 300}, 132));
  all.push_back(convert_launch(DType::kF32, DType::kF64, 100));
  all.push_back(convert_launch(DType::kF64, DType::kF32, 100));
  return all;
}

class LibraryKernels : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Architectures, LibraryKernels,
                         ::testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(LibraryKernels, CompileIntoRegistersAndTheDoctorAgrees) {
  const std::string missing = segfuse::testing::missing_nvrtc();
  if (!missing.empty()) GTEST_SKIP() << missing;
  for (const LibraryLaunch& launch : all_launches()) {
    runtime::cuda::Compiled compiled;
    ASSERT_NO_THROW(compiled = runtime::cuda::compile_cubin(launch.program.name,
                                                            launch.program.source, {}, GetParam()))
        << launch.program.source;
    test::expect_agreement(doctor::read_cubin(compiled.cubin, launch.program.name),
                           compiled.report);
    test::expect_no_float_atomics(compiled.ptx, launch.program.name);
    for (const std::string& memory : segfuse::testing::memory_of_kernels(compiled.report))
      EXPECT_EQ(memory, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
          << launch.program.name << "\n"
          << compiled.report;
  }
}

}  // namespace
}  // namespace segfuse::engine
