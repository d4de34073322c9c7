// Printed kernels on a device against the interpreter, under the schedules that are chosen for it.

#include <gtest/gtest.h>

#include "runtime/open_device.h"
#include "support/gpu/device_jobs.h"
#include "support/gpu/kernel_jobs.h"
#include "unit/codegen_gpu/models.h"

namespace segfuse::compiler {
namespace {

class OnDevice : public ::testing::TestWithParam<testing::NamedModel> {
 protected:
  void SetUp() override {
    std::string reason;
    if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
  }
};

TEST_P(OnDevice, DoesWhatTheInterpreterSays) {
  const auto gpu = runtime::access_cuda(0);
  Model model;
  GetParam().build(model);
  for (const std::int64_t n : {1, 7, 64}) {
    for (const std::int64_t c : {1, 33, 128, 1000, 4096}) {
      const std::map<std::string, std::int64_t> sizes{{"N", n}, {"B", 3}, {"T", 4},
                                                      {"C", c}, {"H", 3}, {"W", n}};
      const auto inputs = testing::normal_inputs(model.fusion, sizes);
      const auto jobs = testing::jobs_of(
          model.fusion, inputs, testing::chosen_for_cuda, GetParam().name,
          [](loop::Kernel& kernel, const cuda::SizeOf& size) {
            cuda::fit_to_sizes(kernel, size);
            for (const loop::KernelBuffer& buffer : kernel.buffers)
              if (buffer.capacity > 0 && size(buffer.elements) > buffer.capacity) return false;
            return true;
          },
          sizes);
      // A row of one element has no variance: norms multiply what is rounded by 1/sqrt(1e-5).
      const double tolerance = c == 1 ? 2e-5 * 316 : 2e-5;
      for (const testing::KernelJob& job : jobs) {
        testing::DeviceJob on_device(gpu, job);
        on_device.launch();
        EXPECT_EQ(testing::difference(job, on_device.globals(), on_device.status(), tolerance), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OnDevice, ::testing::ValuesIn(testing::named_models()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace segfuse::compiler
