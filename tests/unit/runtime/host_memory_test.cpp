#include "runtime/cpu/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace segfuse::runtime {
namespace {

/// Pages of the range that hold memory of the system.
std::size_t resident_pages(std::byte* address, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(mincore(address, bytes, pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(
      pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(HostMemory, WhatIsUnmappedGoesBackToTheSystem) {
  for (const std::size_t space : {std::size_t{0}, std::size_t{8} << 20}) {
    HostMemory memory({.address_space = space});
    const std::size_t bytes = std::size_t{1} << 20;
    std::byte* const address = memory.reserve(bytes);
    memory.map(address, bytes);
    std::memset(address, 1, bytes);
    EXPECT_GT(resident_pages(address, bytes), 0);
    memory.unmap(address, bytes);
    EXPECT_EQ(resident_pages(address, bytes), 0);
    memory.map(address, bytes);
    EXPECT_TRUE(std::all_of(address, address + bytes, [](std::byte b) {
      return b == std::byte{0};
    })) << "fresh memory holds what was there before";
    memory.unmap(address, bytes);
    memory.unreserve(address, bytes);
    EXPECT_EQ(memory.mapped(), 0);
  }
}

TEST(HostMemoryDeathTest, WhatIsUnmappedMayNotBeTouched) {
  HostMemory memory({});
  const std::size_t bytes = memory.granule();
  std::byte* const address = memory.reserve(bytes);
  memory.map(address, bytes);
  memory.unmap(address, bytes);
  EXPECT_DEATH(*address = std::byte{1}, "");  // by the signal, or by a sanitizer that names it
}

}  // namespace
}  // namespace segfuse::runtime
