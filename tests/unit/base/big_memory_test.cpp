#include "base/os/big_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace segfuse {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

bool aligned(void* memory, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % to == 0;
}

TEST(BigMemory, IsAlignedAndWritableToItsEnd) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{65}, kMiB,
                                  4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 37 * kMiB + 5}) {
    void* const memory = allocate_array(bytes);
    EXPECT_TRUE(aligned(memory, bytes >= 4 * kMiB ? 2 * kMiB : 64)) << bytes;
    std::memset(memory, 0x5a, bytes);
    free_array(memory, bytes);
  }
}

TEST(BigMemory, IsKeptForArraysOfAboutTheSameSize) {
  void* const first = allocate_array(64 * kMiB);
  free_array(first, 64 * kMiB);
  void* const second = allocate_array(63 * kMiB);
  EXPECT_EQ(first == second, kKeeps);
  void* const other = allocate_array(40 * kMiB);
  EXPECT_NE(other, second);
  free_array(other, 40 * kMiB);
  free_array(second, 63 * kMiB);
}

TEST(BigMemory, OfSmallArraysIsNotKept) {
  const std::size_t before = kept_array_bytes();
  free_array(allocate_array(kMiB), kMiB);
  EXPECT_EQ(kept_array_bytes(), before);
}

TEST(BigMemory, IsKeptUpToALimit) {
  constexpr std::size_t kSize = 160 * kMiB;
  std::vector<void*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(allocate_array(kSize));
  for (void* const block : blocks) free_array(block, kSize);
  EXPECT_LE(kept_array_bytes(), kMaxKept);
  if (kKeeps) {
    EXPECT_GE(kept_array_bytes(), kMaxKept - 2 * kSize);
  }
}

TEST(BigMemory, IsRefusedBeyondTheAddressSpace) {
  EXPECT_THROW(allocate_array(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(allocate_array(SIZE_MAX / 2), std::bad_alloc);
}

TEST(BigMemory, BelongsToOneThreadAtATime) {
  constexpr std::size_t kSize = 4 * kMiB;
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&wrong, thread] {
      for (int i = 0; i < 300; ++i) {
        auto* const memory = static_cast<int*>(allocate_array(kSize));
        const int mark = thread * 1000 + i;
        memory[0] = memory[kSize / sizeof(int) - 1] = mark;
        std::this_thread::yield();
        if (memory[0] != mark || memory[kSize / sizeof(int) - 1] != mark)
          ++wrong[static_cast<std::size_t>(thread)];
        free_array(memory, kSize);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace segfuse
