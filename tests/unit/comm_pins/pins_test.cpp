// A gigabyte that is really pinned: what fork() costs with it, in slabs and as others have it. Each
// measurement runs in a process of its own; these tests run beside no others.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include "comm/registered/backends/uring.h"
#include "segfuse/error.h"
#include "segfuse/registered.h"
#include "support/system/processes.h"
#include "support/system/real_pins.h"

namespace segfuse::comm {
namespace {

using test::forked;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
/// Processor time, which does not depend on what else runs. With a sanitizer the shadow memory is
/// copied, too.
constexpr double kQuick = test::kSanitized ? 0.05 : 0.005;

/// Memory as a library without slabs pins it: private pages that forked children get.
struct RawPin {
  explicit RawPin(std::size_t bytes, int flags = 0, bool huge = false) {
    // At a multiple of 2 MiB.
    std::byte* const whole =
        static_cast<std::byte*>(mmap(nullptr, bytes + 2 * kMiB, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0));
    EXPECT_NE(whole, MAP_FAILED) << std::strerror(errno);
    const auto at = reinterpret_cast<std::uintptr_t>(whole);
    memory = {whole + ((at + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB) - at), bytes};
    if (huge)
      madvise(memory.data(), bytes, MADV_HUGEPAGE);
    else if (flags == 0)
      madvise(memory.data(), bytes, MADV_NOHUGEPAGE);
    pin = backend.pin(memory);
  }
  UringBackend backend;
  std::span<std::byte> memory;
  std::unique_ptr<Pin> pin;
};

struct SlabPin {
  explicit SlabPin(std::size_t bytes, bool huge = false)
      : backend(std::make_shared<UringBackend>()),
        registry(backend),
        slab(registry.make_slab({.owner = "pins", .bytes = bytes, .huge = huge})),
        registration(slab.register_range(0, bytes)) {}
  std::shared_ptr<UringBackend> backend;
  Registry registry;
  Slab slab;
  Registration registration;
};

/// Processor time of this thread.
double busy_seconds(auto&& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// What fork() costs the thread that calls it, which other threads wait for when they map memory;
/// the least of several.
double fork_seconds(int times) {
  double least = 1e9;
  for (int i = 0; i < times; ++i) {
    pid_t child = 0;
    const double took = busy_seconds([&] {
      child = fork();
      if (child == 0) _exit(0);
    });
    EXPECT_GT(child, 0) << std::strerror(errno);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    least = std::min(least, took);
  }
  return least;
}

double spawn_seconds(int times) {
  double least = 1e9;
  for (int i = 0; i < times; ++i)
    least = std::min(
        least, busy_seconds([] { EXPECT_TRUE(spawn::run({.arguments = {"/bin/true"}}).ok()); }));
  return least;
}

void print(const char* what, double seconds) {
  std::printf("%s: %.3f ms\n", what, 1e3 * seconds);
  std::fflush(stdout);
}

/// Runs a part and shows what it printed of figures.
void expect_part(const std::string& name, const std::string& prefix = "") {
  const spawn::Result result = test::run_part(name, prefix);
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = result.out.find('\n', begin)) != std::string::npos;
       begin = end + 1)
    if (const std::string line = result.out.substr(begin, end - begin); line.ends_with(" ms"))
      std::printf("  %s\n", line.c_str());
}

// --- T9, T13, and T21's last ---------------------------------------------------------------------

TEST(Part, DISABLED_SlabLatency) {
  const SlabPin pin(kGiB);
  EXPECT_GE(test::field_of("/proc/self/status", "VmPin"), kGiB >> 10);
  const double took = fork_seconds(9);
  print("fork with 1 GiB pinned in a slab", took);
  EXPECT_LT(took, kQuick);
}

TEST(Part, DISABLED_RawLatency) {
  const RawPin pin(kGiB);
  EXPECT_GE(test::field_of("/proc/self/status", "VmPin"), kGiB >> 10);
  const double started = spawn_seconds(9);
  print("spawn with 1 GiB pinned as a plain mapping", started);
  EXPECT_LT(started, kQuick);
  const double took = fork_seconds(2);
  print("fork with 1 GiB pinned as a plain mapping", took);
  EXPECT_GT(took, 0.05);
  EXPECT_GT(took, 20 * started);
}

TEST(Pins, ForkingIsQuickWithSlabsAndSlowWithPlainMappings) {
  SKIP_WITHOUT_PINS(kGiB);
  expect_part("SlabLatency");
  expect_part("RawLatency");
}

// --- T10: a control group ------------------------------------------------------------------------

class Group {
 public:
  explicit Group(std::size_t limit) {
    namespace fs = std::filesystem;
    std::error_code failure;
    const bool unified = fs::exists("/sys/fs/cgroup/cgroup.controllers", failure);
    path_ = fs::path(unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") /
            ("segfuse_test_" + std::to_string(getpid()));
    if (unified) std::ofstream("/sys/fs/cgroup/cgroup.subtree_control") << "+memory";
    if (!fs::create_directory(path_, failure)) return;
    std::ofstream file(path_ / (unified ? "memory.max" : "memory.limit_in_bytes"));
    file << limit << std::flush;
    ready_ = file.good();
  }
  ~Group() {
    std::error_code failure;
    for (int i = 0; i < 100 && !std::filesystem::remove(path_, failure) && failure; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  explicit operator bool() const { return ready_; }
  std::string enter() const { return "echo $$ > " + (path_ / "cgroup.procs").string() + "; "; }

 private:
  std::filesystem::path path_;
  bool ready_ = false;
};

TEST(Part, DISABLED_SlabInGroup) {
  const SlabPin pin(kGiB);
  EXPECT_EQ(forked([] { return 0; }), 0);
}

TEST(Part, DISABLED_RawInGroup) {
  // Whoever is chosen: the parent is what the trainer would be.
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  const RawPin pin(kGiB);
  EXPECT_TRUE(spawn::run({.arguments = {"/bin/true"}}).ok());
  std::puts("pinned");
  std::fflush(stdout);
  const int status = forked([] { return 0; });
  std::printf("fork came back: %d, status %d\n", errno, status);
}

TEST(Pins, InATightGroupASlabSurvivesWhatKillsAPlainMapping) {
  SKIP_WITHOUT_PINS(kGiB);
  if (test::kSanitized) GTEST_SKIP() << "shadow memory does not fit the group";
  const Group group(kGiB + kGiB / 2);
  if (!group) GTEST_SKIP() << "no control group for memory can be made here";
  expect_part("SlabInGroup", group.enter());
  const spawn::Result raw = test::run_part("RawInGroup", group.enter());
  EXPECT_THAT(raw.out, ::testing::HasSubstr("pinned"));
  EXPECT_EQ(raw.signal, SIGKILL) << raw.outcome() << "\n" << raw.out;
}

// --- T11: a small pool of huge pages
// ---------------------------------------------------------------

class HugePages {
 public:
  explicit HugePages(int pages) : former_(test::text_of(kFile)) {
    std::ofstream(kFile) << pages << std::flush;
    ready_ = test::field_of("/proc/meminfo", "HugePages_Free") >= static_cast<std::size_t>(pages);
  }
  ~HugePages() { std::ofstream(kFile) << former_; }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  explicit operator bool() const { return ready_; }

 private:
  static constexpr const char* kFile = "/proc/sys/vm/nr_hugepages";
  std::string former_;
  bool ready_ = false;
};

TEST(Part, DISABLED_HugeSlab) {
  const SlabPin pin(60 * kMiB, true);
  EXPECT_EQ(pin.slab.backing(), Backing::kHugeFile);
  EXPECT_EQ(forked([] { return 0; }), 0);
  // Any piece of it may be registered, however small.
  Slab slab = Registry(pin.backend).make_slab({.owner = "h", .bytes = 1, .huge = true});
  EXPECT_EQ(slab.backing(), Backing::kHugeFile);
  EXPECT_TRUE(slab.register_range(4096, 4));
}

// Foreign memory over two mappings of different page sizes is copied like any other.
TEST(Part, DISABLED_TwoPageSizes) {
  std::byte* const area = static_cast<std::byte*>(
      mmap(nullptr, 6 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  const auto at = reinterpret_cast<std::uintptr_t>(area);
  std::byte* const border = area + ((at + 4 * kMiB - 1) / (2 * kMiB) * (2 * kMiB) - at);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  ASSERT_NE(mmap(border, 2 * kMiB, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0), MAP_FAILED);
  ASSERT_NE(mmap(border - 4096, 4096, PROT_READ | PROT_WRITE, flags, -1, 0), MAP_FAILED);
  Registry registry(std::make_shared<UringBackend>());
  EXPECT_THROW(registry.register_address(border - 10, 20), UsageError);
  Bounce bounce = registry.bounce(border - 10, 20);
  std::memset(bounce.registration().address(), 5, 20);
  bounce.from_device();
  EXPECT_EQ(border[-10], std::byte{5});
  EXPECT_EQ(border[9], std::byte{5});
  EXPECT_EQ(border[10], std::byte{0});
}

TEST(Part, DISABLED_HugeRaw) {
  const RawPin pin(60 * kMiB, MAP_HUGETLB);
  errno = 0;
  EXPECT_EQ(forked([] { return 0; }), -1);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_TRUE(spawn::run({.arguments = {"/bin/true"}}).ok());
}

TEST(Pins, APoolOfHugePagesThatIsTooSmallForACopyIsEnoughForASlab) {
  SKIP_WITHOUT_PINS(kGiB);
  const HugePages pool(40);
  if (!pool) GTEST_SKIP() << "no pool of huge pages can be made here (root, and free memory)";
  expect_part("HugeSlab");
  expect_part("HugeRaw");
  expect_part("TwoPageSizes");
}

// --- T12: transparent huge pages
// -------------------------------------------------------------------

TEST(Part, DISABLED_Transparent) {
  const std::size_t bytes = 256 * kMiB;
  const SlabPin pin(bytes, true);
  ASSERT_EQ(pin.slab.backing(), Backing::kTransparentHuge);
  const auto huge_kib = [](const void* at) {
    const std::string part = test::smaps_of(at);
    return std::atoll(part.c_str() + part.find("AnonHugePages:") + 14);
  };
  const std::byte* const data = const_cast<SlabPin&>(pin).slab.data();
  const long long before = huge_kib(data);
  if (before < 128 * 1024) {
    std::puts("no huge pages");
    return;
  }
  EXPECT_EQ(forked([] { return 0; }), 0);
  EXPECT_EQ(huge_kib(data), before);
  // The contrast: a plain mapping is split by the first fork.
  const RawPin raw(64 * kMiB, 0, true);
  const long long raw_before = huge_kib(raw.memory.data());
  EXPECT_GT(raw_before, 0);
  EXPECT_EQ(forked([] { return 0; }), 0);
  EXPECT_LT(huge_kib(raw.memory.data()), raw_before);
}

TEST(Pins, HugePagesStayWholeInSlabs) {
  SKIP_WITHOUT_PINS(kGiB);
  const std::string state = test::text_of("/sys/kernel/mm/transparent_hugepage/enabled");
  if (state.empty() || state.find("[never]") != std::string::npos)
    GTEST_SKIP() << "transparent huge pages are switched off";
  const spawn::Result result = test::run_part("Transparent");
  EXPECT_TRUE(result.ok()) << result.outcome() << "\n" << result.out;
  if (result.out.find("no huge pages") != std::string::npos)
    GTEST_SKIP() << "memory is too fragmented for huge pages";
}

// --- T14: the frames stay, and what the kernel writes through the pin arrives
// ----------------------

std::uint64_t frame_of(const void* address) {
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  std::uint64_t entry = 0;
  const auto place = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(address) / 4096 * 8);
  if (pread(file, &entry, sizeof entry, place) != sizeof entry) entry = 0;
  close(file);
  return entry & ((std::uint64_t{1} << 55) - 1);
}

TEST(Pins, FramesStayAndDataArriveAfterAForkAndAWrite) {
  SKIP_WITHOUT_PINS(kGiB);
  SlabPin pin(4 * kMiB);
  std::byte* const data = pin.slab.data();
  std::memset(data, 1, pin.slab.bytes());
  const std::uint64_t frame = frame_of(data);
  if (frame == 0) GTEST_SKIP() << "frame numbers are for root alone";
  std::string name = (std::filesystem::temp_directory_path() / "segfuse_XXXXXX").string();
  const int file = mkstemp(name.data());
  ASSERT_GE(file, 0);
  std::vector<char> content(pin.slab.bytes());
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 4096);
  ASSERT_EQ(pwrite(file, content.data(), content.size(), 0), std::ssize(content));
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  for (std::size_t i = 0; i < pin.slab.bytes(); i += 4096)
    data[i] = std::byte{2};  // the parent writes
  EXPECT_EQ(frame_of(data), frame);
  EXPECT_EQ(pin.backend->read(file, 0, pin.registration, 0, content.size()), content.size());
  EXPECT_EQ(std::memcmp(data, content.data(), content.size()), 0);
  // And out again, at an odd place; beyond the end comes less.
  std::memset(data, 3, 5000);
  EXPECT_EQ(pin.backend->write(file, 100, pin.registration, 1, 4999), 4999U);
  std::vector<char> back(5001);
  ASSERT_EQ(pread(file, back.data(), back.size(), 99), std::ssize(back));
  EXPECT_EQ(back.front(), content[99]);
  EXPECT_EQ(std::count(back.begin() + 1, back.end() - 1, 3), 4999);
  EXPECT_EQ(back.back(), content[99 + 5000]);
  EXPECT_EQ(pin.backend->read(file, content.size() - 10, pin.registration, 0, 100), 10U);
  EXPECT_THROW(pin.backend->read(-1, 0, pin.registration, 0, 100), DeviceError);
  EXPECT_THROW(pin.backend->read(file, 0, pin.registration, 1, pin.slab.bytes()), UsageError);
  EXPECT_THROW(UringBackend().read(file, 0, pin.registration, 0, 1), UsageError);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(file);
  std::filesystem::remove(name);
}

TEST(Pins, MoreThanAGiBIsPinnedInPieces) {
  SKIP_WITHOUT_PINS(kGiB);
  SlabPin pin(kGiB + 64 * kMiB);
  std::byte* const data = pin.slab.data();
  std::memset(data + kGiB - 4096, 1, 8192);
  std::string name = (std::filesystem::temp_directory_path() / "segfuse_XXXXXX").string();
  const int file = mkstemp(name.data());
  EXPECT_EQ(pin.backend->write(file, 0, pin.registration, kGiB - 4096, 8192), 8192U);
  std::vector<char> back(8192);
  EXPECT_EQ(pread(file, back.data(), back.size(), 0), 8192);
  EXPECT_EQ(back, std::vector<char>(8192, 1));
  close(file);
  std::filesystem::remove(name);
}

}  // namespace
}  // namespace segfuse::comm
