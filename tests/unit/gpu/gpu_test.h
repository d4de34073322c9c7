#pragma once
// Tests that run on the emulator everywhere, and on a CUDA device where there is one.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "support/emulator/gpu_emulator.h"
#include "unit/gpu/device_problem.h"

namespace segfuse::semicrf::testing {

/// Its instances, "emulator" and "cuda", stand in semicrf_test.cpp.
class GpuSemiCrf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "emulator") {
      gpu = segfuse::testing::make_gpu_emulator();
      return;
    }
    std::string reason;
    if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
    gpu = runtime::access_cuda(0);
  }
  bool is_device() const { return std::string(GetParam()) == "cuda"; }
  runtime::DeviceAccess gpu;
};

inline void expect_same(const Results& a, const Results& b, double tolerance, double scale) {
  ASSERT_EQ(a.status, b.status);
  for (std::size_t i = 0; i < a.loss.size(); ++i) {
    ASSERT_LT(relative(a.log_partition[i], b.log_partition[i]), tolerance)
        << "row " << i << ": " << a.log_partition[i] << " against " << b.log_partition[i];
    ASSERT_LT(relative(a.score[i], b.score[i]), tolerance) << "row " << i;
    ASSERT_LT(relative(a.loss[i], b.loss[i]), tolerance * scale) << "row " << i;
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    ASSERT_LT(std::abs(a.gradients[i] - b.gradients[i]), tolerance * scale)
        << "gradient " << i << ": " << a.gradients[i] << " against " << b.gradients[i];
}

}  // namespace segfuse::semicrf::testing
