// Kernels that no group is lowered to compile for the architectures that are supported, without
// spills and floating-point atomics, and segfuse doctor kernel agrees with the assembler on them:
// where NVRTC is installed; it needs no GPU.

#include "engine/device/library_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "doctor/kernel/cubin.h"
#include "engine/attention/gpu/launch.h"
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
      for (const std::int64_t size : {9, 6000})
        all.push_back(scatter_add_launch(dtype, indices, {1, 700, size, 300}, 132));
    all.push_back(join_chunks_launch(dtype, 8, 1000));
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

/// Of attention, by the sizes of heads that tiles are chosen for, and the memory of three devices.
std::vector<LibraryLaunch> attention_launches() {
  std::vector<LibraryLaunch> all;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    AttentionPlan plan;
    plan.rows = plan.columns = 128;
    plan.batch = 1;
    all.push_back(attention_finite_launch(dtype, plan, 128, {{&plan.q, 64}}));
    for (const std::int64_t width : {32, 64, 128, 256}) {
      plan.inner = plan.outer = width;
      for (const AttentionKernel kernel : {AttentionKernel::kResult, AttentionKernel::kLogarithms,
                                           AttentionKernel::kQueries, AttentionKernel::kKeys}) {
        std::vector<AttentionTiles> seen;
        for (const std::size_t shared : {225 << 10, 161 << 10, 97 << 10}) {
          const AttentionTiles tiles = attention_tiles(kernel, dtype, width, width, shared);
          EXPECT_LE(attention_shared_bytes(kernel, dtype, width, width, tiles), shared);
          if (std::find(seen.begin(), seen.end(), tiles) != seen.end()) continue;
          seen.push_back(tiles);
          all.push_back(attention_launch(kernel, dtype, plan, true, tiles));
        }
      }
    }
  }
  return all;
}

class LibraryKernels : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Architectures, LibraryKernels,
                         ::testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& suite) { return std::string(suite.param); });

void expect_registers(const std::vector<LibraryLaunch>& launches, const char* architecture) {
  for (const LibraryLaunch& launch : launches) {
    runtime::cuda::Compiled compiled;
    ASSERT_NO_THROW(compiled = runtime::cuda::compile_cubin(
                        launch.program.name, launch.program.source, {}, architecture))
        << launch.program.source;
    test::expect_agreement(doctor::read_cubin(compiled.cubin, launch.program.name),
                           compiled.report);
    test::expect_no_float_atomics(compiled.ptx, launch.program.name);
    for (const std::string& memory : segfuse::testing::memory_of_kernels(compiled.report))
      EXPECT_EQ(memory, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
          << launch.program.name << "\n"
          << launch.program.source.substr(launch.program.source.find("typedef"), 400) << "\n"
          << compiled.report;
  }
}

TEST_P(LibraryKernels, CompileIntoRegistersAndTheDoctorAgrees) {
  const std::string missing = segfuse::testing::missing_nvrtc();
  if (!missing.empty()) GTEST_SKIP() << missing;
  expect_registers(all_launches(), GetParam());
}

TEST_P(LibraryKernels, OfAttentionCompileIntoRegisters) {
  const std::string missing = segfuse::testing::missing_nvrtc();
  if (!missing.empty()) GTEST_SKIP() << missing;
  expect_registers(attention_launches(), GetParam());
}

}  // namespace
}  // namespace segfuse::engine
