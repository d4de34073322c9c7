// Every device program compiles for the architectures that are supported, without spilled
// registers, and segfuse doctor kernel reads from them what the assembler says of them: where NVRTC
// is installed; it needs no GPU.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "doctor/kernel/cubin.h"
#include "semicrf/cuda/programs.h"
#include "semicrf/cuda/sources.h"
#include "support/gpu/nvrtc.h"
#include "unit/doctor/ptxas_report.h"

namespace segfuse::semicrf::gpu {
namespace {

class CompileForTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_nvrtc();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  static void expect_no_spills(const runtime::GpuProgram& program) {
    std::string defines;
    for (const std::string& define : program.defines) defines += " " + define;
    SCOPED_TRACE(program.name + defines);
    const runtime::cuda::Compiled compiled =
        runtime::cuda::compile_cubin(program.name, program.source, program.defines, GetParam());
    const std::string& report = compiled.report;
    test::expect_agreement(doctor::read_cubin(compiled.cubin, program.name), report);
    test::expect_no_float_atomics(compiled.ptx, program.name);
    const std::vector<std::string> kernels = testing::memory_of_kernels(report);
    EXPECT_FALSE(kernels.empty()) << "the report has no line about spills:\n" << report;
    for (const std::string& kernel : kernels)
      EXPECT_EQ(kernel.substr(kernel.find(", ") + 2), "0 bytes spill stores, 0 bytes spill loads")
          << report;
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, CompileForTest,
                         ::testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(CompileForTest, CommonPrograms) {
  for (const char* input : {"float", "double", "Half", "BFloat16"})
    expect_no_spills(common_program(input));
  expect_no_spills(labels_program());
  expect_no_spills(scope_program());
  expect_no_spills(online_program());
  for (const char* input : {"float", "double"}) {
    expect_no_spills(scope_program(input));
    expect_no_spills(online_program(input));
  }
}

/// The longest duration that still fits, for each layout that `choose` gives on the way.
template <class Choose>
std::vector<ScanShape> largest_shapes(int classes, bool edges, Choose choose,
                                      const Room& room = {}) {
  std::vector<ScanShape> largest;
  for (int duration = 1; duration <= 600; ++duration) {
    const std::optional<ScanShape> shape = choose(classes, duration, edges, room);
    if (!shape) break;
    const auto is_same = [&](const ScanShape& last) {
      return last.group == shape->group && last.threads() == shape->threads() &&
             last.resident == shape->resident && (last.far > 0) == (shape->far > 0);
    };
    if (!largest.empty() && is_same(largest.back())) largest.pop_back();
    largest.push_back(*shape);
  }
  return largest;
}

/// Every layout that is chosen somewhere, at the sizes where its state is largest.
TEST_P(CompileForTest, PassesInRegisters) {
  for (const int classes : {1, 8, 24, 33, 64}) {
    for (const bool edges : {false, true}) {
      for (const ScanShape& shape : largest_shapes(classes, edges, choose_scan_shape))
        expect_no_spills(scan_program(shape));
      for (const ScanShape& shape : largest_shapes(classes, edges, choose_best_shape))
        expect_no_spills(best_program(shape, "float"));
    }
  }
}

/// The same of clusters, from the first size on that one block does not hold.
TEST_P(CompileForTest, PassesOfClusters) {
  if (std::string(GetParam()) == "sm_80") GTEST_SKIP() << "it has no clusters";
  constexpr Room kRoom{16, 225 << 10};
  const auto of_clusters = [](std::vector<ScanShape> shapes) {
    std::erase_if(shapes,
                  [](const ScanShape& shape) { return shape.blocks == 1 && shape.far == 0; });
    return shapes;
  };
  for (const auto& [classes, edges] :
       {std::pair(20, false), std::pair(96, true), std::pair(100, false), std::pair(512, false)}) {
    for (const ScanShape& shape :
         of_clusters(largest_shapes(classes, edges, choose_scan_shape, kRoom)))
      expect_no_spills(scan_program(shape));
    for (const ScanShape& shape :
         of_clusters(largest_shapes(classes, edges, choose_best_shape, kRoom)))
      expect_no_spills(best_program(shape, "float"));
  }
}

/// Where sums fit registers, the best segmentation is not ten times as slow as they are.
TEST(ScanShapes, TheBestSegmentationFitsWhereSumsDo) {
  for (const int classes : {1, 8, 24, 33, 64, 70, 100, 128})
    for (const bool edges : {false, true})
      for (int duration = 1; duration <= 1000; ++duration) {
        if (!choose_scan_shape(classes, duration + duration / 4, edges)) break;
        ASSERT_TRUE(choose_best_shape(classes, duration, edges))
            << classes << " labels, " << duration << " frames";
      }
  EXPECT_TRUE(choose_best_shape(70, 40, false));
  EXPECT_TRUE(choose_best_shape(11, 500, false));
}

/// A file that lacks an include would compile behind another one only.
TEST(DeviceSources, EachCompilesByItself) {
  const std::string missing = testing::missing_nvrtc();
  if (!missing.empty()) GTEST_SKIP() << missing;
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(SEGFUSE_SOURCE_DIR) / "src/semicrf/cuda/kernels";
  const std::vector<std::string> shape = scan_program({24, 8, 4, true}).defines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), folder).string();
    EXPECT_NO_THROW(runtime::cuda::compile_cubin(
        "alone", "#define INPUT float\n" + kernel_source(name), shape, "compute_80"))
        << name;
  }
}

}  // namespace
}  // namespace segfuse::semicrf::gpu
