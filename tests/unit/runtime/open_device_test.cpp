// A device that is open: memory for streams that others made, from its heap or from its pool.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/check/race_checker.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/open_device.h"
#include "support/sim/sim_device.h"
#include "support/system/wait_dropper.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kStep = 2 * kBlock;  // of a heap's growth

struct Simulated {
  sim::SimDevice device{sim::lazy()};
};

/// A simulated device with a memory pool.
class PooledDevice final : private Simulated, public WaitDropper {
 public:
  PooledDevice() : WaitDropper(Simulated::device) {}
  std::set<StreamHandle>& captured = Simulated::device.captured;
  std::map<std::byte*, std::vector<std::byte>> pool;
  std::byte* allocate_pooled(StreamHandle, std::size_t bytes) override {
    std::vector<std::byte> memory(bytes);
    std::byte* const address = memory.data();
    pool.emplace(address, std::move(memory));
    return address;
  }
  void release_pooled(StreamHandle, std::byte* memory) noexcept override { pool.erase(memory); }
};

void use(OpenDevice& open, StreamHandle stream, std::byte* memory) {
  const MemoryAccess access{memory, kBlock, true, "block"};
  open.device().launch(stream, {"use", {}}, {&access, 1});
}

TEST(OpenDevice, MemoryForStreamsOfOthersIsTheHeaps) {
  OpenDeviceOptions options;
  options.heap.hard_limit = kStep;
  OpenDevice open(std::make_unique<sim::SimDevice>(sim::lazy()), nullptr, options);
  const StreamHandle stream = open.device().create_stream();
  std::byte* const memory = open.allocate(stream, kBlock);
  EXPECT_EQ(open.heap().statistics().live_bytes, kBlock);
  ASSERT_EQ(open.heap().snapshot().entries.at(0).label, "workspace");
  EXPECT_THROW(open.allocate(stream, 2 * kStep), OutOfDeviceMemory);
  open.release(stream, memory);
  EXPECT_EQ(open.heap().statistics().live_bytes, 0U);
  open.heap().verify();
}

/// The checker throws at a use of memory that is not ordered after its former ones.
TEST(OpenDevice, MemoryIsHandedOnInTheOrderOfTheStreamThatUsedIt) {
  OpenDeviceOptions options;
  options.heap.hard_limit = kStep;
  options.check_streams = CheckMode::kThrow;
  OpenDevice open(std::make_unique<sim::SimDevice>(sim::lazy()), nullptr, options);
  const StreamHandle first = open.device().create_stream();
  const StreamHandle second = open.device().create_stream();
  const StreamHandle third = open.device().create_stream();
  std::byte* const whole = open.allocate(first, kStep);
  use(open, first, whole);
  open.release(first, whole);
  const std::uint64_t waits = open.timeline().counts().waits;
  std::byte* const again = open.allocate(second, kStep);
  EXPECT_EQ(again, whole);
  EXPECT_EQ(open.timeline().counts().waits, waits + 1);
  use(open, second, again);
  EXPECT_THROW(use(open, third, again), InternalError);
  open.release(second, again);
}

TEST(OpenDevice, WhatAGraphUsesIsFromThePool) {
  auto owned = std::make_unique<PooledDevice>();
  PooledDevice& device = *owned;
  OpenDevice open(std::move(owned), nullptr);
  const StreamHandle stream = device.create_stream();
  std::byte* const before = open.allocate(stream, kBlock);
  device.captured.insert(stream);
  std::byte* const in_graph = open.allocate(stream, kBlock);
  EXPECT_TRUE(device.pool.contains(in_graph));
  EXPECT_FALSE(device.pool.contains(before));
  open.release(stream, in_graph);
  EXPECT_TRUE(device.pool.empty());
  device.captured.clear();
  open.release(stream, before);
  EXPECT_EQ(open.heap().statistics().live_bytes, 0U);
}

TEST(OpenDevice, StreamsThatAreTooManyGetMemoryFromThePool) {
  auto owned = std::make_unique<PooledDevice>();
  PooledDevice& device = *owned;
  OpenDevice open(std::move(owned), nullptr);
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 80; ++i) streams.push_back(device.create_stream());
  std::byte* const first = open.allocate(streams[0], kBlock);
  std::size_t pooled = 0;
  for (const StreamHandle stream : streams) {
    std::byte* const memory = open.allocate(stream, kBlock);
    pooled += device.pool.size();
    open.release(stream, memory);
  }
  EXPECT_EQ(pooled, 40U);
  open.release(streams.back(), first);  // by a stream that the timeline does not know
  EXPECT_TRUE(device.pool.empty());
  EXPECT_EQ(open.heap().statistics().live_bytes, 0U);
  (void)open.timeline().create(open.device());  // its own streams have room
}

TEST(OpenDevice, ServesMoreStreamsThanATimelineHasOnAGpu) {
  const char* const wanted = std::getenv("SEGFUSE_TEST_DEVICE");
  if (wanted == nullptr || std::string(wanted) != "cuda")
    GTEST_SKIP() << "SEGFUSE_TEST_DEVICE is not cuda";
  const DeviceAccess gpu = access_cuda(0);
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 80; ++i) streams.push_back(gpu.device->create_stream());
  std::byte* const first = gpu.memory->allocate(streams[0], kBlock);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    std::byte* const memory = gpu.memory->allocate(streams[i], kBlock);
    gpu.device->fill(streams[i], memory, static_cast<std::uint8_t>(i), kBlock);
    std::vector<std::uint8_t> content(kBlock);
    gpu.device->read(streams[i], content.data(), memory, kBlock);
    EXPECT_EQ(content, std::vector<std::uint8_t>(kBlock, static_cast<std::uint8_t>(i)));
    gpu.memory->release(streams[i], memory);
  }
  gpu.memory->release(streams.back(), first);  // by a stream that the timeline does not know
  for (const StreamHandle stream : streams) {
    gpu.device->synchronize(stream);
    gpu.device->destroy_stream(stream);
  }
}

/// Where k is divided, partial sums of halves are of the type that is computed in: f32.
TEST(CublasLt, PartialSumsOfHalvesAreNeverHalves) {
  ASSERT_EQ(setenv("SEGFUSE_CUBLASLT", SEGFUSE_FAKE_CUBLASLT, 1), 0);
  const cuda::CublasLt library;
  unsetenv("SEGFUSE_CUBLASLT");
  if (cuda::cublas_lt_version() != "99.99.99") GTEST_SKIP() << "the real library is in use";
  for (const auto& [dtype, ways] : std::map<DType, std::uint64_t>{
           {DType::kBF16, 2}, {DType::kF16, 2}, {DType::kF32, 7}, {DType::kF64, 7}}) {
    GpuProduct product;
    product.dtype = dtype;
    std::uint64_t allowed = 0;
    library.prepare(product)->run({}, nullptr, nullptr, &allowed, nullptr);
    EXPECT_EQ(allowed, ways) << name_of(dtype);
  }
}

}  // namespace
}  // namespace segfuse::runtime
