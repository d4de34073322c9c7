// The parts of the fork doctor on inputs made by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "doctor/fork/judge/forecast.h"
#include "doctor/fork/read/glibc_heap.h"
#include "doctor/fork/read/pins.h"
#include "doctor/fork/read/python_heap.h"
#include "doctor/fork/read/smaps.h"
#include "doctor/fork/read/software.h"
#include "segfuse/error.h"
#include "support/system/real_pins.h"

namespace segfuse::doctor {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

TEST(SmapsTest, FieldsAndFlagsAreRead) {
  const auto vmas = parse_smaps(
      "1000-3000 rw-p 00002000 fe:01 42                         /a b (deleted)\n"
      "Size:                  8 kB\nKernelPageSize:        4 kB\nRss:                   4 kB\n"
      "Anonymous:             4 kB\nSomethingNew:  7\n"
      "VmFlags: rd wr mr mw me dc ac nr wf zz\n"
      "3000-5000 ---s 00000000 00:00 0 \nVmFlags: sh io\n"
      "200000-600000 rw-p 00000000 00:0f 9 /anon_hugepage (deleted)\n"
      "KernelPageSize:     2048 kB\nPrivate_Hugetlb:    4096 kB\nVmFlags: ht\n");
  ASSERT_EQ(vmas.size(), 3u);
  EXPECT_EQ(vmas[0].begin, 0x1000u);
  EXPECT_EQ(vmas[0].end, 0x3000u);
  EXPECT_EQ(vmas[0].offset, 0x2000u);
  EXPECT_EQ(vmas[0].inode, 42u);
  EXPECT_EQ(vmas[0].name, "/a b (deleted)");
  EXPECT_EQ(vmas[0].anonymous, 4096u);
  EXPECT_TRUE(vmas[0].writable && vmas[0].kept && vmas[0].wiped && vmas[0].no_reserve);
  EXPECT_FALSE(vmas[0].shared || vmas[0].device || vmas[0].huge || vmas[0].droppable);
  EXPECT_TRUE(vmas[1].shared && vmas[1].device);
  EXPECT_FALSE(vmas[1].readable);
  EXPECT_EQ(vmas[2].page, 2 * kMib);
  EXPECT_EQ(vmas[2].private_huge, 4 * kMib);
}

TEST(SmapsTest, WhatIsNoMappingIsRefusedAndWhatIsCutShortIsKept) {
  for (const char* text :
       {"12", "1000-", "2000-1000 rw-p 0 0:0 0", "a000-b000 rw", "0-1000 rw-p 0"})
    EXPECT_THROW(parse_smaps(text), DataError) << text;
  EXPECT_TRUE(parse_smaps("").empty());
  EXPECT_TRUE(parse_smaps("Rss: 4 kB\n").empty());
  EXPECT_EQ(parse_smaps("1000-2000 rw-p 00000000 00:00 0 \nRss:   4").size(), 1u);
}

TEST(SmapsTest, NeighboursAreJoinedByWhatMadviseDoesNotChange) {
  const auto vmas = parse_smaps(
      "1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr\n"
      "2000-3000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n"
      "3000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr nr\n"
      "4000-5000 ---p 00000000 00:00 0 \n"
      "6000-7000 rw-p 00001000 fe:00 3 /x\n7000-8000 rw-p 00002000 fe:00 3 /x\n"
      "8000-9000 rw-p 00009000 fe:00 3 /x\n");
  const auto mappings = join_mappings(vmas);
  ASSERT_EQ(mappings.size(), 5u);
  EXPECT_EQ(mappings[0].end, 0x3000u);
  EXPECT_EQ(mappings[1].begin, 0x3000u);
  EXPECT_EQ(mappings[3].first, 4u);
  EXPECT_EQ(mappings[3].last, 5u);
}

TEST(SmapsTest, PartsOfACutMappingHoldWhatLiesInThem) {
  const auto vmas = parse_smaps(
      "1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr\n"
      "2000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n");
  const auto parts = cut_mappings(join_mappings(vmas), vmas, {0x3000, 0x2000, 0x2000});
  ASSERT_EQ(parts.size(), 3u);
  const auto expect = [&](std::size_t i, std::size_t first, std::size_t last, std::uint64_t end) {
    EXPECT_EQ(parts[i].first, first) << i;
    EXPECT_EQ(parts[i].last, last) << i;
    EXPECT_EQ(parts[i].end, end) << i;
  };
  expect(0, 0, 0, 0x2000);
  expect(1, 1, 1, 0x3000);
  expect(2, 1, 1, 0x4000);
}

/// Words at addresses; what is not there cannot be read.
class FakeMemory final : public MemoryReader {
 public:
  FakeMemory(std::uint64_t begin, std::size_t bytes) : begin_(begin), bytes_(bytes) {}
  void word(std::uint64_t address, std::uint64_t value) {
    std::memcpy(bytes_.data() + (address - begin_), &value, sizeof value);
  }
  std::size_t read(std::uint64_t address, std::span<std::byte> into) const override {
    if (address < begin_ || address >= begin_ + bytes_.size()) return 0;
    const std::size_t count = std::min<std::size_t>(into.size(), begin_ + bytes_.size() - address);
    std::memcpy(into.data(), bytes_.data() + (address - begin_), count);
    return count;
  }

 private:
  std::uint64_t begin_;
  std::vector<std::byte> bytes_;
};

TEST(GlibcHeapTest, ChunksAreWalkedToTheEnd) {
  FakeMemory memory(0x10000, 0x21000);
  memory.word(0x10008, 0x291);
  memory.word(0x10298, 0x51);
  memory.word(0x102e8, 0x21);
  memory.word(0x10308, 0x20cf8 | 1);
  EXPECT_FALSE(walk_chunks(memory, 0x10000, 0x31000).complete)
      << "a size that is no multiple of 16";
  memory.word(0x10308, 0x20d00);
  const ChunkWalk walk = walk_chunks(memory, 0x10000, 0x31000);
  EXPECT_TRUE(walk.complete);
  ASSERT_EQ(walk.chunks.size(), 4u);
  EXPECT_TRUE(walk.chunks[0].live && walk.chunks[1].live);
  EXPECT_FALSE(walk.chunks[2].live) << "the next one says that it is free";
  EXPECT_FALSE(walk.chunks[3].live) << "the top";
  for (const std::uint64_t broken : {0u, 8u, 0x53u, 0x40000u}) {
    memory.word(0x10298, broken);
    EXPECT_FALSE(walk_chunks(memory, 0x10000, 0x31000).complete) << broken;
  }
}

TEST(GlibcHeapTest, HeapsOfArenasAreToldByTheirFirstWords) {
  constexpr std::uint64_t kBase = std::uint64_t{5} << 26;
  for (const std::uint64_t header : {0x20u, 0x30u}) {
    FakeMemory memory(kBase, 0x3000);
    memory.word(kBase, kBase + header);
    memory.word(kBase + 16, 0x21000);
    const auto heap = arena_heap_of(memory, kBase + 0x1234);
    ASSERT_TRUE(heap);
    EXPECT_TRUE(heap->holds_arena);
    EXPECT_EQ(heap->first_chunk, header == 0x30 ? kBase + 0x8d0 : kBase + 0x8c0);
    EXPECT_EQ(heap->end, kBase + 0x21000);
    EXPECT_FALSE(arena_heap_of(memory, kBase + 0x22000)) << "behind what may be used";
    memory.word(kBase, kBase + header + 8);
    EXPECT_FALSE(arena_heap_of(memory, kBase)) << header;
    // A further heap of an arena elsewhere.
    memory.word(kBase, 2 * kBase + header);
    EXPECT_FALSE(arena_heap_of(memory, kBase)) << "a first heap holds its arena";
    memory.word(kBase + 8, 2 * kBase);
    ASSERT_TRUE(arena_heap_of(memory, kBase));
    EXPECT_FALSE(arena_heap_of(memory, kBase)->holds_arena);
  }
  EXPECT_FALSE(arena_heap_of(FakeMemory(kBase, 0x3000), 0x1000));
}

TEST(GlibcHeapTest, MmappedBlocksAreFoundFromTheFrontAndFromTheAddress) {
  constexpr std::uint64_t kBegin = 0x100000;
  FakeMemory memory(kBegin, 0x40000);
  memory.word(kBegin + 8, 0x21002);
  memory.word(kBegin + 0x21008, 0x10002);
  MmappedChunks both(memory);
  EXPECT_EQ(both.covering(kBegin + 0x5000, kBegin, kBegin + 0x40000)->bytes, 0x21000u);
  EXPECT_EQ(both.covering(kBegin + 0x25000, kBegin, kBegin + 0x40000)->begin, kBegin + 0x21000);
  EXPECT_FALSE(both.covering(kBegin + 0x38000, kBegin, kBegin + 0x40000));
  EXPECT_FALSE(both.covering(kBegin + 0x39000, kBegin, kBegin + 0x40000));
  memory.word(kBegin + 8, 77);  // something else comes first
  MmappedChunks second(memory);
  EXPECT_FALSE(second.covering(kBegin + 0x5000, kBegin, kBegin + 0x40000));
  EXPECT_EQ(second.covering(kBegin + 0x25000, kBegin, kBegin + 0x40000)->begin, kBegin + 0x21000);
}

/// A pool of blocks of 32 bytes, of which `handed_out` were handed out and the `free` ones came
/// back.
FakeMemory python_pool(std::uint64_t begin, std::uint64_t bytes, std::uint32_t handed_out,
                       const std::vector<std::uint64_t>& free) {
  constexpr std::uint64_t kBlock = 32;
  FakeMemory memory(begin, bytes);
  const auto block = [&](std::uint64_t index) { return begin + 48 + index * kBlock; };
  memory.word(begin, handed_out - free.size());
  memory.word(begin + 8, free.empty() ? 0 : block(free[0]));
  memory.word(begin + 32, std::uint64_t{1} << 32);  // the second size
  memory.word(begin + 40, (48 + handed_out * kBlock) | (bytes - kBlock) << 32);
  for (std::size_t i = 0; i < free.size(); ++i)
    memory.word(block(free[i]), i + 1 < free.size() ? block(free[i + 1]) : 0);
  return memory;
}

TEST(PythonHeapTest, PoolsThatAddUpAreRead) {
  constexpr std::uint64_t kBegin = 0x7f0000104000;
  for (const std::uint64_t bytes : {16384U, 4096U}) {
    const FakeMemory memory = python_pool(kBegin, bytes, 9, {4, 0, 7});
    const auto pool = python_pool_of(memory, kBegin + bytes - 1);
    ASSERT_TRUE(pool);
    EXPECT_EQ(pool->begin, kBegin);
    EXPECT_EQ(pool->end(), kBegin + bytes);
    EXPECT_EQ(pool->block_bytes, 32U);
    ASSERT_EQ(pool->live.size(), 6U);
    EXPECT_EQ(pool->live[0], kBegin + 48 + 32);
    EXPECT_EQ(pool->live[5], kBegin + 48 + 8 * 32);
    EXPECT_FALSE(python_pool_of(memory, kBegin - 1));
  }
  // Full to the end.
  const auto full = python_pool_of(python_pool(kBegin, 4096, 126, {}), kBegin);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->live.size(), 126U);
}

TEST(PythonHeapTest, WhatDoesNotAddUpIsNone) {
  constexpr std::uint64_t kBegin = 0x7f0000104000;
  const auto changed = [&](std::uint64_t offset, std::uint64_t value) {
    FakeMemory memory = python_pool(kBegin, 16384, 9, {4, 0, 7});
    memory.word(kBegin + offset, value);
    return python_pool_of(memory, kBegin).has_value();
  };
  EXPECT_TRUE(changed(16, 12345)) << "nothing depends on its neighbours";
  EXPECT_FALSE(changed(0, 7)) << "count";
  EXPECT_FALSE(changed(0, 1U << 30)) << "count";
  EXPECT_FALSE(changed(8, 0)) << "free list";
  EXPECT_FALSE(changed(8, kBegin + 49)) << "free list";
  EXPECT_FALSE(changed(8, 0x1000)) << "free list";
  EXPECT_FALSE(changed(8, kBegin + 48 + 9 * 32)) << "free list";
  EXPECT_FALSE(changed(48 + 7 * 32, kBegin + 48 + 4 * 32)) << "a circle";
  EXPECT_FALSE(changed(32, std::uint64_t{2} << 32)) << "size";
  EXPECT_FALSE(changed(32, std::uint64_t{32} << 32)) << "size";
  EXPECT_FALSE(changed(40, (48 + 9 * 32 + 1) | std::uint64_t{16352} << 32)) << "next";
  EXPECT_FALSE(changed(40, 0)) << "next";
  EXPECT_FALSE(python_pool_of(FakeMemory(kBegin, 16384), kBegin));
  EXPECT_FALSE(python_pool_of(FakeMemory(kBegin, 100), kBegin));
}

TEST(PinsTest, RegisteredBuffersAreRead) {
  const auto pins = parse_registered_buffers(
      "pos:\t0\nSqMask:\t0x3\nUserFiles:\t1\n    0: x\nUserBufs:\t4\n    0: 0x7f00/4096\n"
      "    1: <none>\n    2: 0x9000/12\n    3: 0xffffffffffffffff/12\nPollList:\n    0: 0x1/1\n",
      "test");
  ASSERT_EQ(pins.size(), 2u);
  EXPECT_EQ(pins[0].begin, 0x7f00u);
  EXPECT_EQ(pins[0].end, 0x8f00u);
  EXPECT_EQ(pins[1].end, 0x900cu);
}

TEST(PinsTest, APinWithinAnotherOneLeavesItWhole) {
  SKIP_WITHOUT_PINS(4 << 20);
  alignas(4096) static std::array<std::byte, 3 * 4096> memory;
  comm::UringBackend backend;
  const auto outer = backend.pin(memory);
  const auto inner = backend.pin(std::span(memory).subspan(4096, 4096));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  std::size_t found = 0;
  for (const Pin& pin : find_pins(Process(getpid()))) {
    if (pin.end <= begin || pin.begin >= begin + memory.size()) continue;
    ++found;
    EXPECT_EQ(pin.begin, begin);
    EXPECT_EQ(pin.end, begin + memory.size());
  }
  EXPECT_EQ(found, 1u);
}

TEST(SoftwareTest, NamesTellVersions) {
  EXPECT_EQ(rdma_core_release("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0"), 44);
  EXPECT_EQ(rdma_core_release("/opt/libibverbs.so.1.15.56.1 (deleted)"), 56);
  EXPECT_EQ(rdma_core_release("/usr/lib/libibverbs.so.1"), 0);
  EXPECT_EQ(rdma_core_release("libfoo.so.1.14.44.0"), 0);
  EXPECT_TRUE(parse_kernel("5.12.0-rc1").copies_pinned());
  EXPECT_TRUE(parse_kernel("6.1.0-18-amd64").copies_pinned());
  EXPECT_FALSE(parse_kernel("5.4.0").copies_pinned());
  EXPECT_FALSE(parse_kernel("x").copies_pinned());
}

/// A tree of files that looks like /proc and /sys.
class HeadroomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::temp_directory_path() / ("segfuse_headroom_" + std::to_string(getpid()));
    put("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1048576 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::filesystem::path root_;
};

TEST_F(HeadroomTest, TheTightestGroupCounts) {
  put("sys/fs/cgroup/a/memory.max", "629145600\n");
  put("sys/fs/cgroup/a/memory.current", "524288000\n");
  put("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 52428800\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.current", "1\n");
  const auto room = memory_headroom("0::/a/b\n", root_.string());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 250 * kMib) << "pages of files are given back";
  EXPECT_EQ(room->of, "memory cgroup /a");
  EXPECT_EQ(memory_headroom("0::/c\n", root_.string())->of, "the machine");
  EXPECT_EQ(memory_headroom("0::/c\n", root_.string())->bytes, 1024 * kMib);
}

TEST_F(HeadroomTest, TheFirstVersionIsReadToo) {
  put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "104857600\n");
  put("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "52428800\n");
  put("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n");
  const auto room = memory_headroom("5:cpu:/y\n4:memory:/x\n0::/\n", root_.string());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 51 * kMib);
}

}  // namespace
}  // namespace segfuse::doctor
