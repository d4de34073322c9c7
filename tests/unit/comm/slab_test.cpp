// Slabs: what the kernel is told of them, and what registering does and refuses.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/registered/backends/uring.h"
#include "comm/registered/copy_on_fork.h"
#include "comm/registered/foreign.h"
#include "comm/registered/mapping.h"
#include "comm/registered/registry.h"
#include "segfuse/error.h"
#include "support/message_of.h"
#include "support/system/processes.h"
#include "support/system/real_pins.h"

namespace segfuse::comm {
namespace {

using test::forked;
using test::kept_from_children;
using ::testing::HasSubstr;

const std::size_t kPage = page_bytes();
/// Mappings that a sanitizer makes for itself meanwhile.
constexpr std::size_t kOthers = test::kSanitized ? 16 : 0;

using test::message_of;

/// Threads that allocate, so that there are arenas, and a forked child that lives of malloc.
int live_of_malloc() {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 1000; ++i) {
    blocks.push_back(std::malloc(16 + i % 4000));
    std::memset(blocks.back(), 7, 16);
    if (i % 3 == 0) std::free(std::exchange(blocks[i / 2], nullptr));
  }
  for (void* block : blocks) std::free(block);
  return 0;
}

TEST(Slab, IsKeptFromChildrenAsAWholeAndNamed) {
  Registry registry;
  const std::size_t before = test::mappings();
  Slab slab = registry.make_slab({.owner = "flags", .bytes = 3 * kPage + 1});
  EXPECT_EQ(slab.bytes(), 4 * kPage);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.data()) % kPage, 0U);
  EXPECT_TRUE(kept_from_children(slab.data()));
  EXPECT_TRUE(kept_from_children(slab.data() + slab.bytes() - 1));
  EXPECT_THAT(test::smaps_of(slab.data()), HasSubstr("/memfd:reg:flags"));
  EXPECT_LE(test::mappings(), before + 3 + kOthers);
  std::memset(slab.data(), 1, slab.bytes());
  const std::byte* const data = slab.data();
  EXPECT_EQ(WTERMSIG(forked([&] { return std::to_integer<int>(data[0]); })), SIGSEGV);
  slab = {};
  EXPECT_LE(test::mappings(), before + kOthers);
  EXPECT_EQ(registry.counts().slabs, 0U);
}

TEST(Slab, PoliciesSayWhatAChildGets) {
  Registry registry;
  Slab shared = registry.make_slab({.owner = "s", .bytes = 1, .fork = ForkPolicy::kShared});
  Slab copied = registry.make_slab({.owner = "c", .bytes = 1, .fork = ForkPolicy::kCopied});
  std::byte* const a = shared.data();
  std::byte* const b = copied.data();
  EXPECT_FALSE(kept_from_children(a));
  EXPECT_EQ(WEXITSTATUS(forked([&] {
              *a = std::byte{5};
              *b = std::byte{6};
              return 3;
            })),
            3);
  EXPECT_EQ(*a, std::byte{5});
  EXPECT_EQ(*b, std::byte{0});
}

TEST(Slab, CopiesForChildrenNeedAKernelThatIsSeenToMakeThem) {
  SKIP_WITHOUT_PINS(4 << 20);
  Registry registry(std::make_shared<UringBackend>());
  const SlabOptions copied{.owner = "c", .bytes = kPage, .fork = ForkPolicy::kCopied};
  if (copy_on_fork().answer != CopyOnFork::kYes) {
    EXPECT_THROW(registry.make_slab(copied), DeviceError);
    GTEST_SKIP() << copy_on_fork().reason;
  }
  const Slab absent = registry.make_slab({.owner = "a", .bytes = 2 * kPage});
  Slab slab = registry.make_slab(copied);
  const Registration whole = slab.register_range(0, kPage);
  slab.data()[0] = std::byte{1};
  const std::byte* const data = slab.data();
  EXPECT_EQ(WEXITSTATUS(forked([&] { return std::to_integer<int>(data[0]); })), 1);
  SlabOptions many = copied;
  many.bytes = kMaxCopied;
  EXPECT_THROW(registry.make_slab(many), UsageError);
  many.bytes = kMaxCopied - kPage;
  EXPECT_EQ(registry.make_slab(many).bytes(), kMaxCopied - kPage);
}

TEST(Slab, MemoryComesFromTheNodeThatIsNamed) {
  Registry registry;
  SlabOptions near{.owner = "near", .bytes = 3 * kPage, .numa = 0};
  Slab slab;
  try {
    slab = registry.make_slab(near);
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  std::memset(slab.data(), 1, slab.bytes());
  int node = -1;
  constexpr unsigned long kNodeOfAddress = 3;  // MPOL_F_NODE | MPOL_F_ADDR
  ASSERT_EQ(syscall(SYS_get_mempolicy, &node, nullptr, 0, slab.data(), kNodeOfAddress), 0);
  EXPECT_EQ(node, 0);
  EXPECT_TRUE(kept_from_children(slab.data()));
  near.numa = 63;
  EXPECT_THROW(registry.make_slab(near), DeviceError) << "no machine here has so many";
  near.numa = 64;
  EXPECT_THROW(registry.make_slab(near), UsageError);
  EXPECT_EQ(registry.counts().slabs, 1U);
}

TEST(Slab, HugeOnesAreMadeOfLargePagesWhereThereAreSome) {
  Registry registry;
  Slab slab = registry.make_slab({.owner = "h", .bytes = (4 << 20) + 1, .huge = true});
  EXPECT_EQ(slab.bytes(), std::size_t{6} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.data()) % (2 << 20), 0U);
  EXPECT_TRUE(kept_from_children(slab.data()));
  EXPECT_NE(slab.backing(), Backing::kFile) << "neither a pool nor transparent huge pages";
}

TEST(Part, DISABLED_Overrun) {
  Registry registry;
  Slab slab = registry.make_slab({.owner = "x", .bytes = 1});
  volatile std::byte* const data = slab.data();
  signal(SIGSEGV, [](int) { _exit(77); });
  if (std::getenv("UNDERRUN") != nullptr)
    data[-1] = std::byte{1};
  else
    data[slab.bytes()] = std::byte{1};
}

// T20.
TEST(Slab, GuardsFaultAndKeepSlabsApart) {
  EXPECT_EQ(test::run_part("Overrun").exit_code, 77);
  EXPECT_EQ(test::run_part("Overrun", "UNDERRUN=1 ").exit_code, 77);
  Registry registry;
  std::vector<Slab> slabs;
  for (int i = 0; i < 20; ++i)
    slabs.push_back(registry.make_slab({.owner = "n" + std::to_string(i), .bytes = kPage}));
  const std::vector<MapLine> maps = read_maps();
  for (const Slab& slab : slabs) {
    const auto at = reinterpret_cast<std::uintptr_t>(slab.data());
    const MapLine& own = maps.at(find_mapping(maps, at));
    EXPECT_EQ(own.begin, at);
    EXPECT_EQ(own.end, at + kPage);
    EXPECT_FALSE(maps.at(find_mapping(maps, at - 1)).readable);
    EXPECT_FALSE(maps.at(find_mapping(maps, at + kPage)).readable);
  }
}

// T2.
TEST(Slab, AskingForFourBytesOfMallocIsRefusedAndHarmless) {
  Registry registry;
  std::thread([&] {
    auto* const word = static_cast<char*>(std::malloc(64)) + 20;
    const std::string message = message_of([&] { (void)registry.register_address(word, 4); });
    EXPECT_THAT(message, HasSubstr("4 bytes at "));
    if (!test::kSanitized) {
      EXPECT_THAT(message, HasSubstr("belong to a malloc arena;"));
    }
    EXPECT_THAT(message, HasSubstr("would take the 4092 other bytes of their pages"));
    EXPECT_THAT(message, HasSubstr("take memory from Registry::make_slab, or let"));
    EXPECT_FALSE(kept_from_children(word));
    EXPECT_EQ(forked(live_of_malloc), 0);
    std::free(word - 20);
  }).join();
}

// T3.
TEST(Slab, FourBytesOfASlabHurtNoChildAThousandTimes) {
  Registry registry;
  SubAllocator objects(registry.make_slab({.owner = "flags", .bytes = kPage}));
  std::byte* const word = objects.allocate(4);
  const Registration registration = objects.register_object(word);
  EXPECT_EQ(registration.bytes(), 4U);
  std::thread([] { EXPECT_EQ(live_of_malloc(), 0); }).join();  // an arena of its own
  const int times = test::kSanitized ? 50 : 1000;
  for (int i = 0; i < times; ++i) ASSERT_EQ(forked(live_of_malloc), 0);
}

TEST(Slab, RegistrationsPinTheSlabOnceAndMayOverlapAndOutliveIt) {
  SKIP_WITHOUT_PINS(4 << 20);
  auto backend = std::make_shared<UringBackend>();
  Registry registry(backend);
  const std::size_t before = test::field_of("/proc/self/status", "VmPin");
  Slab slab = registry.make_slab({.owner = "x", .bytes = 8 * kPage});
  EXPECT_FALSE(slab.pinned());
  Registration a = slab.register_range(0, 5000);
  Registration b = slab.register_range(4000, 3);
  Registration c = slab.register_range(4001, 8 * kPage - 4001);
  EXPECT_EQ(
      slab.registrations(),
      (std::vector<CountedRange>{
          {0, 4000, 1}, {4000, 4001, 2}, {4001, 4003, 3}, {4003, 5000, 2}, {5000, 8 * kPage, 1}}));
  EXPECT_EQ(test::field_of("/proc/self/status", "VmPin"), before + 8 * kPage / 1024);
  EXPECT_EQ(safely_pinned_bytes(), 8 * kPage);
  EXPECT_EQ(registry.counts().pinned_bytes, 8 * kPage);
  slab = {};
  a.release();
  EXPECT_THROW(a.release(), UsageError);
  c.address()[0] = std::byte{1};  // still there
  Registration d = std::move(c);
  EXPECT_THROW(c.address(), UsageError);
  b = std::move(d);
  EXPECT_EQ(b.bytes(), 8 * kPage - 4001);
  EXPECT_EQ(registry.counts().slabs, 1U);
  b = {};
  EXPECT_EQ(registry.counts().slabs, 0U);
  EXPECT_EQ(safely_pinned_bytes(), 0U);
  EXPECT_EQ(test::field_of("/proc/self/status", "VmPin"), before);
}

// T5 and T6: a pin that cannot be, then one that can.
TEST(Slab, AFailedRegistrationLeavesEverythingAsItWas) {
  SKIP_WITHOUT_PINS(4 << 20);
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "x", .bytes = 4 * kPage});
  std::byte* const data = slab.data();
  // Somebody unmaps half of it.
  void* const saved = mmap(nullptr, 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(mremap(data + 2 * kPage, 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, saved),
            saved);
  const std::string smaps = test::smaps_of(data);
  EXPECT_THROW(slab.register_range(0, 8), DeviceError);
  EXPECT_TRUE(slab.registrations().empty());
  EXPECT_FALSE(slab.pinned());
  EXPECT_EQ(safely_pinned_bytes(), 0U);
  EXPECT_EQ(test::smaps_of(data).substr(0, smaps.find("Rss")), smaps.substr(0, smaps.find("Rss")));
  EXPECT_TRUE(kept_from_children(data));
  // It comes back; then the registration holds.
  ASSERT_EQ(mremap(saved, 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, data + 2 * kPage),
            data + 2 * kPage);
  const Registration good = slab.register_range(0, 8);
  EXPECT_TRUE(slab.pinned());
  EXPECT_TRUE(kept_from_children(data));
  EXPECT_TRUE(kept_from_children(data + 3 * kPage));
}

// T8.
TEST(Slab, FortyThousandRegistrationsMakeNoMapping) {
  SKIP_WITHOUT_PINS(4 << 20);
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "many", .bytes = 40'000 * 64});
  std::vector<Registration> all;
  all.reserve(40'000);
  Registration first = slab.register_range(0, 1);
  const std::size_t before = test::mappings();
  for (std::size_t i = 0; i < 40'000; i += 1) all.push_back(slab.register_range(i * 64, 4));
  EXPECT_LE(test::mappings(), before + 2) << "the vector's own memory apart";
  EXPECT_EQ(slab.registrations().size(), 40'001U);  // the first byte twice
  for (std::size_t i = 0; i < all.size(); i += 2) all[i].release();
  EXPECT_EQ(slab.registrations().size(), 20'001U);  // and `first`
}

// --- what cannot be registered -----------------------------------------------------------------

TEST(Slab, RangesOutsideAreRefused) {
  Registry registry;
  Slab slab = registry.make_slab({.owner = "x", .bytes = kPage});
  EXPECT_THAT(message_of([&] { (void)slab.register_range(3, 0); }),
              HasSubstr("0 bytes at offset 3"));
  EXPECT_THAT(message_of([&] { (void)slab.register_range(kPage, 1); }),
              HasSubstr("the slab has 4096"));
  EXPECT_THROW(slab.register_range(1, kPage), UsageError);
  EXPECT_THROW(slab.register_range(SIZE_MAX, 2), UsageError);
  EXPECT_THROW(slab.register_range(2, SIZE_MAX), UsageError);
  EXPECT_TRUE(slab.registrations().empty());
  EXPECT_THROW(registry.make_slab({.owner = "x"}), UsageError);
  EXPECT_THROW(registry.make_slab({.owner = "x", .bytes = SIZE_MAX}), UsageError);
  EXPECT_THROW(registry.make_slab({.owner = "", .bytes = 1}), UsageError);
  EXPECT_THROW(registry.make_slab({.owner = std::string(300, 'x'), .bytes = 1}), UsageError);
  EXPECT_THROW(registry.make_slab({.owner = "a\nb", .bytes = 1}), UsageError);
  EXPECT_THAT(message_of([&] { Slab().data(); }), HasSubstr("this handle is empty"));
  EXPECT_THROW(Slab().register_range(0, 1), UsageError);
  EXPECT_THROW(Registration().release(), UsageError);
}

int static_word = 1;
char zeros[3 * 65536];  // more than what ends the last page of data

/// Ends of pages, of all that is loaded.
std::vector<char*> ends_of_variables() {
  std::vector<char*> ends;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* found) {
        std::uintptr_t end = 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type == PT_LOAD && (part.p_flags & PF_W) != 0)
            end = object->dlpi_addr + part.p_vaddr + part.p_memsz;
        }
        end = (end + kPage - 1) / kPage * kPage;
        if (end != 0)
          static_cast<std::vector<char*>*>(found)->push_back(reinterpret_cast<char*>(end));
        return 0;
      },
      &ends);
  return ends;
}

TEST(Slab, ForeignMemoryIsRefusedByOwner) {
  Registry registry;
  const auto refused = [&](void* address, std::size_t bytes) {
    return message_of([&] { (void)registry.register_address(address, bytes); });
  };
  EXPECT_THAT(refused(nullptr, 4), HasSubstr("the address is null"));
  int local = 0;
  EXPECT_THAT(refused(&local, 0), HasSubstr("0 bytes at"));
  EXPECT_THAT(refused(reinterpret_cast<void*>(16), 4), HasSubstr("nothing is mapped at 0x10"));
  EXPECT_THAT(refused(&local, SIZE_MAX - 10), HasSubstr("beyond the last address"));
  EXPECT_THAT(refused(&local, sizeof local), HasSubstr("belong to the stack of this thread"));
  EXPECT_THAT(refused(&static_word, sizeof static_word), HasSubstr("static data of /"));
  EXPECT_THAT(refused(zeros + 65536, 4), HasSubstr("static data of /"));
  if (!test::kSanitized) {
    std::vector<char> block(100);
    EXPECT_THAT(refused(block.data(), 4), HasSubstr("belong to the malloc heap"));
  }
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* const mapped = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file, 0);
  EXPECT_THAT(refused(mapped, 4), HasSubstr("the file /"));
  EXPECT_THAT(message_of([&] { registry.bounce(mapped, 4, Direction::kDeviceWrites); }),
              HasSubstr("may not be written"));
  munmap(mapped, kPage);
  close(file);
  char* const pages = static_cast<char*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(munmap(pages + kPage, kPage), 0);
  EXPECT_THAT(refused(pages + 8, kPage), HasSubstr("nothing is mapped at "));
  EXPECT_THAT(refused(pages, kPage), HasSubstr("anonymous mapping"));
  munmap(pages, 3 * kPage);
  // Right behind the variables of whatever is loaded: neighbours, and no part of them.
  int neighbours = 0;
  for (char* const end : ends_of_variables()) {
    void* const behind = mmap(end, kPage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (behind == MAP_FAILED) continue;
    ++neighbours;
    EXPECT_THAT(refused(behind, 4), HasSubstr("anonymous mapping"));
    EXPECT_THAT(refused(static_cast<char*>(behind) - 4, 4), HasSubstr("static data of /"));
    munmap(behind, kPage);
  }
  EXPECT_GT(neighbours, 0);
  Slab slab = registry.make_slab({.owner = "x", .bytes = kPage});
  EXPECT_THROW(registry.register_address(slab.data() + 1, kPage), UsageError);
  EXPECT_THROW(registry.register_address(slab.data() - 1, 2), UsageError);
  const Registration fine = registry.register_address(slab.data() + 8, 8);
  EXPECT_EQ(fine.address(), slab.data() + 8);
}

TEST(Slab, ForeignMemoryGoesThroughABounceBuffer) {
  SKIP_WITHOUT_PINS(4 << 20);
  Registry registry(std::make_shared<UringBackend>());
  std::vector<char> foreign(10'000, 'a');
  Bounce bounce = registry.bounce(foreign.data(), foreign.size());
  EXPECT_FALSE(kept_from_children(foreign.data()));
  bounce.to_device();
  EXPECT_EQ(bounce.registration().address()[9'999], std::byte{'a'});
  std::memset(bounce.registration().address(), 'b', foreign.size());
  bounce.from_device();
  EXPECT_EQ(foreign, std::vector<char>(10'000, 'b'));
  Bounce one_way = registry.bounce(foreign.data(), 10, Direction::kDeviceReads);
  EXPECT_THROW(one_way.from_device(), UsageError);
  EXPECT_THROW(registry.bounce(foreign.data(), 10, Direction::kDeviceWrites).to_device(),
               UsageError);
  // Memory that can only be read, and none at all.
  void* const read_only = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NO_THROW(registry.bounce(read_only, kPage, Direction::kDeviceReads).to_device());
  EXPECT_THAT(message_of([&] { registry.bounce(read_only, kPage); }),
              HasSubstr("may not be written"));
  ASSERT_EQ(mprotect(read_only, kPage, PROT_NONE), 0);
  EXPECT_THAT(message_of([&] { registry.bounce(read_only, 1, Direction::kDeviceReads); }),
              HasSubstr("may not be read"));
  munmap(read_only, kPage);
  EXPECT_THROW(registry.bounce(nullptr, 1), UsageError);
}

// T7, and the same by address in sub_allocator_test.
TEST(Slab, MemoryOutlivesItsHandleWhileItIsRegistered) {
  SKIP_WITHOUT_PINS(4 << 20);
  Registry registry(std::make_shared<UringBackend>());
  Registration registration;
  {
    Slab slab = registry.make_slab({.owner = "x", .bytes = kPage});
    registration = slab.register_range(16, 16);
  }
  std::memset(registration.address(), 1, 16);
  EXPECT_TRUE(kept_from_children(registration.address()));
}

// --- limits of the system ----------------------------------------------------------------------

TEST(Part, DISABLED_LockedMemoryLimit) {
  const rlimit small{64 * kPage, 64 * kPage};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ASSERT_EQ(setgid(65534), 0);
  ASSERT_EQ(setuid(65534), 0);  // root has no limit
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "x", .bytes = 1024 * kPage});
  EXPECT_THAT(
      message_of([&] { (void)slab.register_range(0, 1); }),
      HasSubstr("cannot be pinned: Cannot allocate memory; see the limit on locked memory"));
  EXPECT_FALSE(slab.pinned());
  Slab little = registry.make_slab({.owner = "y", .bytes = 4 * kPage});
  EXPECT_TRUE(little.register_range(0, 1));
}

TEST(Slab, TheLimitOnLockedMemoryIsACleanError) {
  SKIP_WITHOUT_PINS(4 << 20);
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody without privileges";
  const spawn::Result result = test::run_part("LockedMemoryLimit");
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
}

TEST(Part, DISABLED_NoMappingsLeft) {
  // Two mappings for each page that may be read between two that may not.
  const auto limit =
      static_cast<std::size_t>(std::atoll(test::text_of("/proc/sys/vm/max_map_count").c_str()));
  Registry registry(std::make_shared<UringBackend>());
  Slab slab = registry.make_slab({.owner = "before", .bytes = 16 * kPage});
  char* const area = static_cast<char*>(mmap(nullptr, (limit + 16) * kPage, PROT_NONE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(area, MAP_FAILED);
  for (std::size_t i = 1; i < limit + 16; i += 2)
    if (mprotect(area + i * kPage, kPage, PROT_READ) != 0) break;
  std::string failed;
  for (int i = 0; i < 4 && failed.empty(); ++i) {
    try {
      Slab more = registry.make_slab({.owner = "more", .bytes = kPage});
    } catch (const DeviceError& error) {
      failed = error.what();
    }
  }
  EXPECT_THAT(failed, HasSubstr("slab"));
  EXPECT_EQ(registry.counts().slabs, 1U);
  std::vector<Registration> all;
  for (std::size_t i = 0; i < 1000; ++i) all.push_back(slab.register_range(i * 64, 4));
  munmap(area, (limit + 16) * kPage);
  EXPECT_NO_THROW(registry.make_slab({.owner = "after", .bytes = kPage}));
}

TEST(Slab, TheLimitOnMappingsIsACleanErrorAndNoneForRegistrations) {
  SKIP_WITHOUT_PINS(4 << 20);
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's allocator cannot do without mappings";
  const spawn::Result result = test::run_part("NoMappingsLeft");
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
}

}  // namespace
}  // namespace segfuse::comm
