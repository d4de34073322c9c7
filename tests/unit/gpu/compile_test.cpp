// Every device program compiles for the architectures that are supported, without spilled
// registers: where NVRTC is installed; it needs no GPU.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/cuda/nvrtc.h"
#include "segfuse/error.h"
#include "semicrf/cuda/programs.h"

namespace segfuse::semicrf::gpu {
namespace {

/// NVRTC as tools/setup installs it with the Python tests' packages, if nothing else is named.
void find_nvrtc() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path root = fs::path(SEGFUSE_SOURCE_DIR) / ".venv-python/lib";
  if (std::getenv("SEGFUSE_NVRTC") != nullptr || !fs::exists(root)) return;
  for (const auto& entry : fs::recursive_directory_iterator(root, error))
    if (entry.path().filename() == "libnvrtc.so.13")
      setenv("SEGFUSE_NVRTC", entry.path().c_str(), 1);
}

class CompileForTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the same texts are compiled in the plain build";
#endif
    find_nvrtc();
    try {
      runtime::cuda::nvrtc_version();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static void expect_no_spills(const runtime::GpuProgram& program) {
    std::string defines;
    for (const std::string& define : program.defines) defines += " " + define;
    SCOPED_TRACE(program.name + defines);
    const std::string report =
        runtime::cuda::compile_cubin(program.name, program.source, program.defines, GetParam())
            .report;
    // "... bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", a line a kernel.
    int kernels = 0;
    std::istringstream lines(report);
    std::string kernel;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("Compiling entry function") != std::string::npos) kernel = line;
      const std::size_t at = line.find("stack frame, ");
      if (at == std::string::npos) continue;
      ++kernels;
      EXPECT_EQ(line.substr(at + 13), "0 bytes spill stores, 0 bytes spill loads") << kernel;
    }
    EXPECT_GT(kernels, 0) << "the report has no line about spills:\n" << report;
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

/// Every layout that is chosen somewhere, at the sizes where its state is largest.
TEST_P(CompileForTest, PassesInRegisters) {
  for (const int classes : {1, 8, 24, 33, 64}) {
    for (const bool edges : {false, true}) {
      // The longest duration that still fits, for each layout that is chosen on the way.
      std::vector<ScanShape> largest;
      for (int duration = 1; duration <= 600; ++duration) {
        const std::optional<ScanShape> shape = choose_scan_shape(classes, duration, edges);
        if (!shape) break;
        if (!largest.empty() && largest.back().group == shape->group) largest.pop_back();
        largest.push_back(*shape);
      }
      for (const ScanShape& shape : largest) expect_no_spills(scan_program(shape));
      std::optional<ScanShape> best;
      for (int duration = 1; duration <= 600; ++duration) {
        const std::optional<ScanShape> shape = choose_best_shape(classes, duration, edges);
        if (!shape) break;
        best = shape;
      }
      if (best) expect_no_spills(best_program(*best, "float"));
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::gpu
