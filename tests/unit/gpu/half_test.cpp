// Scores stored in 16 bits on the device: the results of the same numbers in double, stored back
// rounded.

#include <gtest/gtest.h>

#include <cmath>

#include "support/emulator/kernel_language.h"
#include "unit/gpu/gpu_test.h"
// After it:
#include "semicrf/cuda/kernels/common/half.cuh"

namespace segfuse::semicrf::testing {
namespace {

/// `found` is `wanted` as a T, but for what may round either way.
template <class T>
void expect_rounded(double found, double wanted) {
  const double stored = static_cast<double>(T(wanted));
  const double above = static_cast<double>(T(wanted + 1e-12));
  const double below = static_cast<double>(T(wanted - 1e-12));
  EXPECT_TRUE(found == stored || found == above || found == below) << found << " for " << wanted;
}

template <class T>
void expect_results_of_double(const runtime::DeviceAccess& gpu, const Draw& draw) {
  Rng rng(21);
  Problem<T> p = random_problem<T>(3, 20, 3, 2, false, draw, rng);
  p.lengths = {20, 0, 13};
  const Problem<double> exact = p.template to<double>();
  const Segmentations gold = random_gold(p, rng);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  const Results found = device_loss(gpu, engine, p, gold, {});
  const Results wanted = device_loss(gpu, engine, exact, gold, {});
  ASSERT_EQ(found.status, wanted.status);
  for (std::size_t b = 0; b < 3; ++b) EXPECT_LT(relative(found.loss[b], wanted.loss[b]), 1e-12);
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i)
    expect_rounded<T>(found.gradients[i], wanted.gradients[i]);
  EXPECT_EQ(device_best(gpu, engine, p).path, device_best(gpu, engine, exact).path);
}

TEST_P(GpuSemiCrf, HalvesGiveTheResultsOfDouble) {
  for (const Draw& draw : {Draw(gaussian), Draw(holes)}) {
    expect_results_of_double<Half>(gpu, draw);
    expect_results_of_double<BFloat16>(gpu, draw);
  }
}

template <class T>
class DeviceHalf : public ::testing::Test {};
using Types = ::testing::Types<std::pair<gpu::Half, Half>, std::pair<gpu::BFloat16, BFloat16>>;
TYPED_TEST_SUITE(DeviceHalf, Types);

/// The device's conversions, compiled for the host: every pattern, and what lies between two.
TYPED_TEST(DeviceHalf, IsTheHostsType) {
  using Host = typename TypeParam::second_type;
  using Device = typename TypeParam::first_type;
  Rng rng(20);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    Host host;
    Device device;
    host.bits = device.bits = static_cast<std::uint16_t>(bits);
    const double x = static_cast<double>(host);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(static_cast<double>(device)));
      ASSERT_TRUE(std::isnan(static_cast<double>(Device(x))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(device), x);
    Host next;
    next.bits = static_cast<std::uint16_t>(bits + 1);
    const double middle = (x + static_cast<double>(next)) / 2;
    for (const double y :
         {x, middle, std::nextafter(static_cast<float>(middle), kInf),
          std::nextafter(static_cast<float>(middle), -kInf), x * (1 + 0.001 * rng.normal())})
      if (!std::isnan(y)) {
        ASSERT_EQ(Device(y).bits, Host(y).bits) << y;
      }
  }
}

/// The emission gradient of a row of one frame and one class is the row's weight, stored.
template <class T>
void expect_stored_as_on_the_host(const runtime::DeviceAccess& gpu, std::int64_t rows) {
  Rng rng(22);
  Problem<T> p = random_problem<T>(rows, 1, 1, 1, false, zero, rng);
  std::vector<double> weights;
  for (std::int64_t b = 0; b < rows; ++b) {
    // Magnitudes over the whole range of halves and beyond, and exact ties between two of them.
    const double x = std::ldexp(rng.normal(), static_cast<int>(rng.below(48)) - 28);
    const double tie = std::ldexp(2.0 * std::floor(1024.0 * rng.uniform()) + 1.0,
                                  static_cast<int>(rng.below(30)) - 26);
    weights.push_back(b % 2 == 0 ? x : tie);
  }
  DeviceArrays device(gpu);
  T* emission = device.template space<T>(rows);
  Gradients<T> gradients;
  gradients.emission = {emission, {rows, 1, 1}};
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  engine.log_partition(on_device(p, device), {}, gradients,
                       View<const double, 1>(device.copy(weights), {rows}));
  engine.check();
  const std::vector<T> stored = device.read(emission, rows);
  for (std::size_t b = 0; b < weights.size(); ++b)
    ASSERT_EQ(stored[b].bits, T(weights[b]).bits) << weights[b];
}

TEST_P(GpuSemiCrf, HalvesAreRoundedAsOnTheHost) {
  const std::int64_t rows = is_device() ? 4096 : 64;
  expect_stored_as_on_the_host<Half>(gpu, rows);
  expect_stored_as_on_the_host<BFloat16>(gpu, rows);
}

/// Every `step`th pattern, read as an emission.
template <class T>
void expect_read_as_on_the_host(const runtime::DeviceAccess& gpu, unsigned step) {
  Rng rng(23);
  Problem<T> p = random_problem<T>(1, 1, 1, 1, false, zero, rng);
  p.emission.clear();
  for (unsigned bits = 0; bits < 65536; bits += step) {
    T x;
    x.bits = static_cast<std::uint16_t>(bits);
    if (std::isfinite(static_cast<double>(x))) p.emission.push_back(x);
  }
  p.B = static_cast<std::int64_t>(p.emission.size());
  p.with_start = p.with_end = false;
  DeviceArrays device(gpu);
  double* out = device.space<double>(p.B);
  CudaEngine engine = OverDevice::make<CudaEngine>(gpu);
  engine.log_partition(on_device(p, device), {{out, {p.B}}, {}});
  engine.check();
  const std::vector<double> found = device.read(out, p.B);
  for (std::size_t b = 0; b < found.size(); ++b)
    ASSERT_LT(relative(found[b], static_cast<double>(p.emission[b])), 1e-12) << p.emission[b].bits;
}

TEST_P(GpuSemiCrf, HalvesAreReadAsTheirNumbers) {
  const unsigned step = is_device() ? 13 : 1021;
  expect_read_as_on_the_host<Half>(gpu, step);
  expect_read_as_on_the_host<BFloat16>(gpu, step);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
