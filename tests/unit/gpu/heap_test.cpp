// The CRF's memory on a device is the heap's.

#include <gtest/gtest.h>

#include "runtime/open_device.h"
#include "semicrf/cuda/over_device.h"
#include "support/emulator/gpu_emulator.h"
#include "support/sim/sim_device.h"
#include "unit/gpu/device_problem.h"

namespace segfuse::semicrf::testing {
namespace {

/// Kernels that run as they are launched, on memory of the host.
struct Opened {
  explicit Opened(runtime::OpenDeviceOptions options = {})
      : device(std::make_shared<runtime::OpenDevice>(
            std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()),
            segfuse::testing::make_emulated_kernels(1), options)) {
    stream = device->device().create_stream();
    access = {std::shared_ptr<runtime::Device>(device, &device->device()), device->kernels(),
              device, stream};
  }
  std::size_t live_bytes() const { return device->heap().statistics().live_bytes; }

  std::shared_ptr<runtime::OpenDevice> device;
  runtime::StreamHandle stream;
  runtime::DeviceAccess access;
};

TEST(CudaEngineMemory, WorkspacesAreTheHeaps) {
  Rng rng(5);
  const Problem<double> p = random_problem<double>(2, 9, 3, 2, false, all_draws()[0], rng);
  std::vector<double> total(2);
  Opened opened;
  {
    CudaEngine engine = OverDevice::make<CudaEngine>(opened.access);
    const std::size_t kept = opened.live_bytes();
    EXPECT_GT(kept, 0U);
    opened.device->heap().reset_peaks();
    const auto call = [&] {
      engine.log_partition<double>(p.potentials(), {{total.data(), {2}}, {}}, {}, {},
                                   opened.stream.get());
    };
    const std::size_t needs = engine.measure(call);
    EXPECT_EQ(total, std::vector<double>(2));
    EXPECT_EQ(opened.device->heap().statistics().peak_taken_bytes, kept);
    call();
    engine.check(opened.stream.get());
    EXPECT_GE(opened.device->heap().statistics().peak_taken_bytes, kept + needs);
    EXPECT_EQ(opened.live_bytes(), kept);
  }
  EXPECT_EQ(opened.live_bytes(), 0U);
  std::vector<double> expected(2);
  Engine(1).log_partition(p.potentials(), {{expected.data(), {2}}, {}});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_LT(relative(total[i], expected[i]), 1e-12);
}

TEST(CudaEngineMemory, IsUnderTheHeapsLimit) {
  Rng rng(5);
  const Problem<double> p = random_problem<double>(40, 4000, 3, 2, false, all_draws()[0], rng);
  std::vector<double> total(40);
  runtime::OpenDeviceOptions options;
  options.heap.hard_limit = std::size_t{2} << 20;
  Opened opened(options);
  CudaEngine engine = OverDevice::make<CudaEngine>(opened.access);
  EXPECT_THROW(engine.log_partition<double>(p.potentials(), {{total.data(), {40}}, {}}, {}, {},
                                            opened.stream.get()),
               runtime::OutOfDeviceMemory);
  engine.check(opened.stream.get());
}

}  // namespace
}  // namespace segfuse::semicrf::testing
