// Objects and buffers in slabs: addresses, refusals, staging, and the back ends that need no pins
// of the kernel.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "comm/registered/backends/cuda_host.h"
#include "comm/registered/backends/uring.h"
#include "comm/registered/pool.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "segfuse/error.h"
#include "segfuse/registered.h"
#include "support/system/fake_cuda.h"
#include "support/system/processes.h"
#include "support/system/real_pins.h"

namespace segfuse::comm {
namespace {

using ::testing::HasSubstr;

TEST(SubAllocator, BlocksAreDisjointLinesAndJoinedWhenFree) {
  Registry registry;
  SubAllocator objects(registry.make_slab({.owner = "x", .bytes = 16 << 10}));
  std::mt19937_64 random(7);
  std::map<std::byte*, std::size_t> live;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const std::size_t bytes = 1 + random() % 700;
      const std::size_t alignment = std::size_t{1} << random() % 10;
      std::byte* const at = objects.allocate(bytes, alignment);
      if (at == nullptr) continue;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % std::max<std::size_t>(alignment, 64), 0U);
      const auto next = live.lower_bound(at);
      if (next != live.end()) {
        ASSERT_LE(at + (bytes + 63) / 64 * 64, next->first);
      }
      if (next != live.begin()) {
        const auto before = std::prev(next);
        ASSERT_LE(before->first + (before->second + 63) / 64 * 64, at);
      }
      ASSERT_EQ(objects.bytes_of(at), bytes);
      live.emplace(at, bytes);
    } else {
      auto one = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      objects.deallocate(one->first);
      live.erase(one);
    }
    std::size_t total = 0;
    for (const auto& [at, bytes] : live) total += (bytes + 63) / 64 * 64;
    ASSERT_EQ(objects.live_bytes(), total);
  }
  for (const auto& [at, bytes] : live) objects.deallocate(at);
  EXPECT_TRUE(objects.empty());
  EXPECT_EQ(objects.allocate(16 << 10), objects.slab().data()) << "the free parts were not joined";
  EXPECT_EQ(objects.allocate(1), nullptr);
}

TEST(SubAllocator, WhatIsNotLiveOrStillRegisteredIsNotFreed) {
  Registry registry;
  SubAllocator objects(registry.make_slab({.owner = "flags", .bytes = 4096}));
  std::byte* const word = objects.allocate(4);
  Registration registration = objects.register_object(word);
  // T7.
  EXPECT_THROW(objects.deallocate(word), UsageError);
  EXPECT_EQ(objects.bytes_of(word), 4U);
  registration.release();
  EXPECT_THROW(objects.deallocate(word + 1), UsageError);
  EXPECT_THROW(objects.deallocate(nullptr), UsageError);
  objects.deallocate(word);
  EXPECT_THROW(objects.deallocate(word), UsageError);
  EXPECT_THROW(objects.register_object(word), UsageError);
  EXPECT_THROW(objects.allocate(0), UsageError);
  EXPECT_THROW(objects.allocate(1, 3), UsageError);
  EXPECT_EQ(objects.allocate(SIZE_MAX), nullptr);
}

TEST(RegisteredPool, GrowsBySlabsAndGivesThemBack) {
  Registry registry;
  RegisteredPool pool(registry, {.slab_bytes = 64 << 10, .limit = 512 << 10});
  std::byte* const small = pool.allocate(100);
  EXPECT_EQ(pool.held_bytes(), std::size_t{64} << 10);
  std::byte* const large = pool.allocate(300 << 10);
  EXPECT_EQ(pool.held_bytes(), std::size_t{364} << 10);
  EXPECT_EQ(registry.counts().pinned_bytes, std::size_t{364} << 10) << "registered at once";
  EXPECT_THROW(pool.allocate(200 << 10), DeviceError);
  EXPECT_EQ(pool.try_allocate(200 << 10), nullptr);
  std::byte* const rest = pool.allocate(140 << 10);
  EXPECT_NE(rest, nullptr);
  pool.deallocate(large);
  EXPECT_EQ(pool.held_bytes(), std::size_t{204} << 10);
  pool.deallocate(pool.allocate(308 << 10));
  EXPECT_EQ(pool.bytes_of(small), 100U);
  EXPECT_EQ(pool.pin_of(small).key(), 0U);
  EXPECT_THROW(pool.deallocate(large), UsageError);
  EXPECT_THROW(pool.bytes_of(large), UsageError);
  pool.deallocate(rest);
  pool.deallocate(small);
  EXPECT_EQ(pool.live_bytes(), 0U);
  EXPECT_EQ(registry.counts().slabs, 1U) << "one stays for the next";
}

TEST(RegisteredPool, IsWhereStagingBuffersComeFrom) {
  Registry registry;
  RegisteredPool pool(registry, {.owner = "staging", .slab_bytes = 1 << 20});
  runtime::CpuDevice device;
  runtime::Timeline timeline;
  {
    runtime::PinnedPool staging(device, timeline, staging_from(pool, std::size_t{2} << 20));
    runtime::PinnedBuffer buffer = staging.allocate(5000);
    EXPECT_EQ(pool.bytes_of(buffer.address()), 8192U);
    std::memset(buffer.address(), 1, 5000);
    EXPECT_THROW(staging.allocate(std::size_t{4} << 20), DeviceError);
  }
  EXPECT_EQ(pool.live_bytes(), 0U);
}

/// Batches go up through slabs and come down, and are written to a file and read back through the
/// pins, while children are forked that use malloc and run programs. (Collectives: fabric_test.)
TEST(RegisteredPool, PrefetchAndCheckpointBuffersAreExactWhileChildrenAreForked) {
  SKIP_WITHOUT_PINS(8 << 20);
  if (test::kSanitized) GTEST_SKIP() << "children of a sanitized process with threads may hang";
  constexpr std::size_t kBytes = 100'000;
  auto backend = std::make_shared<UringBackend>();
  Registry registry(backend);
  RegisteredPool pool(registry, {.slab_bytes = 1 << 20});
  runtime::CpuDevice device;
  runtime::Timeline timeline;
  runtime::Heap heap(device, timeline);
  runtime::Executor executor(timeline);
  const runtime::StreamId stream = timeline.create(device);
  const int file = memfd_create("checkpoint", MFD_CLOEXEC);
  std::atomic<bool> stop = false;
  std::atomic<int> children = 0;
  std::atomic<int> bad = 0;
  std::thread forks([&] {
    while (!stop) {
      bad += test::forked([] {
               std::free(std::malloc(100000));
               execl("/bin/true", "/bin/true", nullptr);
               return errno;
             }) != 0;
      ++children;
    }
  });
  const auto use_buffers = [&] {
    runtime::PinnedPool staging(device, timeline, staging_from(pool, std::size_t{1} << 20));
    for (int step = 0; step < 60 || children < 30; ++step) {
      const auto mark = static_cast<std::byte>(step);
      const runtime::Buffer batch = heap.allocate(kBytes, stream, "batch");
      {
        runtime::PinnedBuffer up = staging.allocate(kBytes);
        std::memset(up.address(), step, kBytes);
        up.upload(executor, stream, batch, kBytes);
      }
      runtime::PinnedBuffer down = staging.allocate(kBytes);
      down.download(executor, stream, batch, kBytes);
      down.wait_copied(timeline);
      std::byte* const at = down.address();
      ASSERT_EQ(std::count(at, at + kBytes, mark), static_cast<std::ptrdiff_t>(kBytes));
      std::byte* const back = pool.allocate(kBytes);
      ASSERT_EQ(backend->write(file, 0, pool.pin_of(at), pool.offset_of(at), kBytes), kBytes);
      ASSERT_EQ(backend->read(file, 0, pool.pin_of(back), pool.offset_of(back), kBytes), kBytes);
      ASSERT_EQ(std::count(back, back + kBytes, mark), static_cast<std::ptrdiff_t>(kBytes));
      pool.deallocate(back);
      ASSERT_THROW(backend->read(file, 0, pool.pin_of(at), std::size_t{1} << 20, 1), UsageError);
    }
  };
  use_buffers();
  stop = true;
  forks.join();
  close(file);
  EXPECT_GE(children, 30);
  EXPECT_EQ(bad, 0);
}

TEST(CudaHost, SlabsAreRegisteredWithTheDriver) {
  const test::FakeCuda fake(std::size_t{1} << 20);
  int context = 0;
  Registry registry(make_cuda_host_backend(fake.driver(), &context));
  Slab slab = registry.make_slab({.owner = "x", .bytes = 8192});
  {
    const Registration a = slab.register_range(0, 8);
    const Registration b = slab.register_range(4, 8);
    EXPECT_EQ(fake.registered_host_bytes(), 8192U);
  }
  EXPECT_EQ(fake.registered_host_bytes(), 0U);
}

TEST(CudaHost, ARefusalOfTheDriverChangesNothing) {
  test::FakeCuda fake(std::size_t{1} << 20);
  int context = 0;
  Registry registry(make_cuda_host_backend(fake.driver(), &context));
  Slab slab = registry.make_slab({.owner = "x", .bytes = 8192});
  fake.fail_at(1, test::FakeCuda::kOutOfMemory);
  EXPECT_THROW(slab.register_range(0, 8), DeviceError);
  EXPECT_FALSE(slab.pinned());
  EXPECT_TRUE(slab.registrations().empty());
  EXPECT_TRUE(slab.register_range(0, 8));
}

TEST(Verbs, WithoutADeviceSaysSo) {
  try {
    Registry registry(make_verbs_backend());
    Slab slab = registry.make_slab({.owner = "x", .bytes = 8192});
    EXPECT_NE(slab.register_range(0, 8).pin().key(), 0U);
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AnyOf(HasSubstr("verbs: no device"), HasSubstr("cannot be opened")));
  }
  EXPECT_THROW(make_verbs_backend("no-such-adapter"), DeviceError);
}

}  // namespace
}  // namespace segfuse::comm
