// A fault at each call in turn: the error has its type, nothing was done, and the device goes on.

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/cuda/cuda_device.h"
#include "segfuse/error.h"
#include "support/sim/sim_device.h"
#include "support/system/fake_cuda.h"

namespace segfuse::runtime {
namespace {

/// Makes one call of each kind and gives back what it took, also when a call throws.
class Scenario {
 public:
  explicit Scenario(Device& device) : device_(device) {}
  ~Scenario() {
    for (StreamHandle stream : streams_) {
      try {
        device_.synchronize(stream);
      } catch (const Error&) {
        // That it has waited is all that matters here.
      }
      device_.destroy_stream(stream);
    }
    if (event_) device_.destroy_event(event_);
    if (pinned_ != nullptr) device_.release_pinned(pinned_, 64);
    if (mapped_ != 0) device_.unmap(memory_, mapped_);
    if (memory_ != nullptr) device_.unreserve(memory_, 4 * device_.granule());
  }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  void run() {
    for (int i = 0; i < 2; ++i) streams_.push_back(device_.create_stream());
    event_ = device_.create_event();
    memory_ = device_.reserve(4 * device_.granule());
    device_.map(memory_, 3 * device_.granule());
    mapped_ = 3 * device_.granule();
    pinned_ = device_.allocate_pinned(64);
    std::memset(pinned_, 0, 64);
    EXPECT_LE(device_.memory().free, device_.memory().total);
    device_.fill(streams_[0], memory_, 5, 64);
    device_.record(streams_[0], event_);
    device_.wait(streams_[1], event_);
    device_.launch(streams_[1], {"launch", [this](StreamHandle) { ++launched_; }}, {});
    device_.copy(streams_[1], pinned_, memory_, 64);
    device_.query(event_);
    device_.synchronize_event(event_);
    device_.synchronize(streams_[1]);
    EXPECT_EQ(launched_, 1);
    EXPECT_EQ(std::to_integer<int>(pinned_[63]), 5);
    device_.unmap(memory_ + device_.granule(), 2 * device_.granule());
    mapped_ = device_.granule();
  }

 private:
  Device& device_;
  std::vector<StreamHandle> streams_;
  EventHandle event_;
  std::byte* memory_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* pinned_ = nullptr;
  int launched_ = 0;
};

enum class Outcome { kDone, kDeviceError, kNoMemory };

Outcome run(Device& device) {
  Scenario scenario(device);
  try {
    scenario.run();
  } catch (const DeviceError&) {
    return Outcome::kDeviceError;
  } catch (const NoMemory&) {
    return Outcome::kNoMemory;
  }
  return Outcome::kDone;
}

TEST(Faults, AtEveryCallOfASimulatedDevice) {
  for (const bool threads : {false, true}) {
    sim::SimDevice device({.schedule = threads ? nullptr : sim::seeded(3), .granule = 4096});
    ASSERT_EQ(run(device), Outcome::kDone);
    const std::uint64_t before = device.fallible_calls();
    ASSERT_EQ(run(device), Outcome::kDone);
    const std::uint64_t calls = device.fallible_calls() - before;
    // The last three are made when things are given back, where the scenario expects no fault.
    for (std::uint64_t k = 1; k + 3 <= calls; ++k) {
      device.fail_at(k);
      ASSERT_EQ(run(device), Outcome::kDeviceError) << k;
      ASSERT_EQ(device.mapped() + device.pinned(), 0U) << k;
      ASSERT_EQ(run(device), Outcome::kDone) << "after a fault at call " << k;
    }
    EXPECT_GE(calls, 20U);
  }
}

TEST(Faults, OfOneKind) {
  sim::SimDevice device(sim::lazy());
  device.fail_at(2, sim::Call::kCreateEvent);
  device.create_event();
  device.create_stream();
  EXPECT_THROW(device.create_event(), DeviceError);
  device.create_event();
}

TEST(Faults, OfWorkRideOnTheStream) {
  for (const bool threads : {false, true}) {
    sim::SimDevice device({.schedule = threads ? nullptr : sim::lazy()});
    const StreamHandle stream = device.create_stream();
    int done = 0;
    device.fail_work_at(2);
    for (int i = 0; i < 3; ++i) device.launch(stream, {"step", [&](StreamHandle) { ++done; }}, {});
    EXPECT_THROW(device.synchronize(stream), DeviceError);
    EXPECT_EQ(done, 1);
    device.launch(stream, {"step", [&](StreamHandle) { ++done; }}, {});
    device.synchronize(stream);
    EXPECT_EQ(done, 2);
  }
}

TEST(Faults, TheLimitCanChange) {
  sim::SimDevice device({.schedule = sim::lazy(), .granule = 4096, .limit = 2 * 4096});
  std::byte* const at = device.reserve(4 * 4096);
  device.map(at, 2 * 4096);
  device.set_limit(4096);
  EXPECT_EQ(device.memory().free, 0U);
  EXPECT_THROW(device.map(at + 2 * 4096, 4096), NoMemory);
  device.set_limit(3 * 4096);
  device.map(at + 2 * 4096, 4096);
  EXPECT_THROW(device.map(at + 3 * 4096, 4096), NoMemory);
}

TEST(Faults, AtEveryCallOfTheCudaDriver) {
  for (const cuda::Result failure :
       {test::FakeCuda::kOutOfMemory, test::FakeCuda::kIllegalAddress}) {
    test::FakeCuda fake(8 * test::FakeCuda::kUnit);
    const auto device = open_cuda_device(fake.driver(), 0, {});
    ASSERT_EQ(device->granule(), CudaDeviceOptions().granule);
    const auto small = open_cuda_device(fake.driver(), 0, {.granule = 1});
    ASSERT_EQ(small->granule(), test::FakeCuda::kUnit);
    ASSERT_EQ(run(*small), Outcome::kDone);
    const std::uint64_t before = fake.calls();
    ASSERT_EQ(run(*small), Outcome::kDone);
    const std::uint64_t calls = fake.calls() - before;
    std::size_t out_of_memory = 0;
    for (std::uint64_t k = 1; k + 2 <= calls; ++k) {
      fake.fail_at(k, failure);
      const Outcome outcome = run(*small);
      ASSERT_NE(outcome, Outcome::kDone) << k;
      if (outcome == Outcome::kNoMemory) ++out_of_memory;
      ASSERT_EQ(fake.used(), 0U) << "call " << k << " leaves memory behind";
      ASSERT_EQ(fake.reservations(), 0U) << k;
      ASSERT_EQ(run(*small), Outcome::kDone) << "after a fault at call " << k;
    }
    EXPECT_GE(calls, 20U);
    // Three granules are created and mapped, then made accessible; and pinned memory.
    EXPECT_EQ(out_of_memory, failure == test::FakeCuda::kOutOfMemory ? 8U : 0U);
  }
}

TEST(Faults, ALimitBelowTheDevices) {
  test::FakeCuda fake(8 * test::FakeCuda::kUnit);
  const std::size_t unit = test::FakeCuda::kUnit;
  const auto device = open_cuda_device(fake.driver(), 0, {.granule = 1, .limit = 2 * unit});
  std::byte* const at = device->reserve(8 * unit);
  EXPECT_THROW(device->map(at, 3 * unit), NoMemory);
  device->map(at, 2 * unit);
  EXPECT_EQ(device->memory().free, 0U);
  EXPECT_EQ(device->memory().total, 2 * unit);
  EXPECT_EQ(fake.used(), 2 * unit);
  device->unmap(at, unit);
  EXPECT_EQ(fake.used(), unit);
}

TEST(Faults, ACudaDeviceLeavesNothingBehind) {
  test::FakeCuda fake(8 * test::FakeCuda::kUnit);
  {
    const auto device = open_cuda_device(fake.driver(), 0, {.granule = 1});
    std::byte* const at = device->reserve(8 * device->granule());
    device->map(at + device->granule(), 3 * device->granule());
    device->map(at + 4 * device->granule(), device->granule());
    device->map(at + 6 * device->granule(), device->granule());
    device->fill(device->create_stream(), at + device->granule(), 1, device->granule());
    EXPECT_EQ(fake.used(), 5 * device->granule());
  }
  EXPECT_EQ(fake.used(), 0U);
  EXPECT_EQ(fake.reservations(), 0U);
}

TEST(Faults, ThereIsNoSuchCudaDevice) {
  test::FakeCuda fake(test::FakeCuda::kUnit);
  EXPECT_THROW(open_cuda_device(fake.driver(), 1, {}), UsageError);
  EXPECT_THROW(open_cuda_device(fake.driver(), -1, {}), UsageError);
  EXPECT_EQ(open_cuda_device(fake.driver(), 0, {})->name(), "fake");
}

}  // namespace
}  // namespace segfuse::runtime
