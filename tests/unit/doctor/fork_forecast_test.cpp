// What the fork doctor foretells against what then happens to sacrificial processes.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/text.h"
#include "doctor/fork/judge/forecast.h"
#include "segfuse/doctor/fork.h"
#include "unit/doctor/child.h"

namespace segfuse {
namespace {

using test::Child;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::uint64_t kMib = 1 << 20;

struct Forked {
  int failed = 0;
  double seconds = 0;
  /// Memory that the child shares with no other process.
  std::uint64_t copied_bytes = 0;
};

/// What one fork() in the process does; nothing if the process does not survive it.
std::optional<Forked> forked(Child& child) {
  child.say("fork 1");
  const std::string line = child.line();
  const auto fields = split(line, '\t');
  if (fields.size() < 6) return std::nullopt;
  return Forked{static_cast<int>(*parse_int(fields[3])), *parse_double(fields[4]),
                1024 * static_cast<std::uint64_t>(*parse_int(fields[5]))};
}

std::vector<std::string> pinning(const std::string& how, std::uint64_t bytes) {
  return {SEGFUSE_FORK_VICTIM, "pinned", how, std::to_string(bytes)};
}

/// True once it has pinned; else it says why not.
bool has_pinned(Child& child, std::string& why) {
  const auto lines = child.lines_until_ready();
  why = lines.empty() ? "the process ended" : lines[0];
  return why.starts_with("pinned");
}

bool write_number(const fs::path& path, std::uint64_t value) {
  std::ofstream out(path);
  out << value << std::flush;
  return out.good();
}

std::uint64_t read_number(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  in >> value;
  return value;
}

class ForkForecastTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ForkForecastTest,
                         ::testing::Values("plain", "thp", "shared", "kept", "wiped"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(ForkForecastTest, TheCopyAndItsStallAreForetold) {
  Child child(pinning(GetParam(), 256 * kMib));
  std::string why;
  if (!has_pinned(child, why)) GTEST_SKIP() << "cannot pin memory here: " << why;
  const std::string kind = GetParam();
  const bool copied = kind == "plain" || kind == "thp";
  // Processor time; caches are others', too, so one of a few attempts has to agree.
  bool agreed = false;
  std::string said;
  for (int attempt = 0; attempt < 4 && !agreed; ++attempt) {
    const ForkReport report = examine_fork(child.pid());
    EXPECT_EQ(report.pinned_bytes, 256 * kMib);
    EXPECT_EQ(report.forecast.copied_bytes, copied ? 256 * kMib : 0u);
    EXPECT_FALSE(report.forecast.out_of_memory_kill);
    EXPECT_FALSE(report.forecast.no_memory);
    EXPECT_EQ(report.at_risk(), copied);
    ASSERT_EQ(report.regions.size(), 1u) << "what is kept or wiped is told once, as such";
    EXPECT_EQ(report.regions[0].risk, copied ? ForkRisk::kCopyCost : ForkRisk::kBenign);
    const std::optional<Forked> outcome = forked(child);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->failed, 0);
    EXPECT_GE(outcome->copied_bytes, report.forecast.copied_bytes);
    EXPECT_LT(outcome->copied_bytes, report.forecast.copied_bytes + 32 * kMib);
    const double foretold = report.forecast.processor_seconds;
    EXPECT_GE(report.forecast.stall_seconds, foretold);
    if (!test::times_are_tested()) return;
    // Below a millisecond the scheduler decides.
    agreed = copied ? outcome->seconds < 3 * foretold && foretold < 3 * outcome->seconds
                    : outcome->seconds < 3 * foretold + 1e-3;
    said += fmt::format("foretold {:.4f} s, took {:.4f} s\n", foretold, outcome->seconds);
  }
  EXPECT_TRUE(agreed) << said;
}

/// Each fork() of it is as slow as the first, which splits them.
TEST(ForkForecastHugeTest, PinnedHugePagesStaySlow) {
  Child child(pinning("thp", 64 * kMib));
  std::string why;
  if (!has_pinned(child, why)) GTEST_SKIP() << "cannot pin memory here: " << why;
  const ForkForecast first = examine_fork(child.pid()).forecast;
  if (first.split_bytes < 64 * kMib) GTEST_SKIP() << "there are no huge pages here";
  EXPECT_EQ(first.huge_bytes, 64 * kMib);
  ASSERT_TRUE(forked(child));
  const ForkForecast second = examine_fork(child.pid()).forecast;
  EXPECT_EQ(second.split_bytes, 0u) << "they are split";
  EXPECT_EQ(second.huge_bytes, 64 * kMib);
  EXPECT_DOUBLE_EQ(doctor::copy_seconds(64 * kMib, 64 * kMib, 1), 3 * 64.0 / 1024);
  EXPECT_DOUBLE_EQ(doctor::copy_seconds(64 * kMib, 0, 1), 64.0 / 1024);
}

/// Memory that is not pinned: page tables, measured and not assumed.
TEST(ForkForecastTablesTest, WhatIsNotPinnedIsForetold) {
  Child child(pinning("free", 512 * kMib));
  child.lines_until_ready();
  bool agreed = false;
  std::string said;
  for (int attempt = 0; attempt < 4 && !agreed; ++attempt) {
    const ForkForecast forecast = examine_fork(child.pid()).forecast;
    EXPECT_EQ(forecast.copied_bytes, 0u);
    const std::optional<Forked> outcome = forked(child);
    ASSERT_TRUE(outcome);
    EXPECT_LT(outcome->copied_bytes, 32 * kMib);
    if (!test::times_are_tested()) return;
    agreed = outcome->seconds < 3 * forecast.processor_seconds &&
             forecast.processor_seconds < 3 * outcome->seconds;
    said += fmt::format("foretold {:.4f} s, took {:.4f} s\n", forecast.processor_seconds,
                        outcome->seconds);
  }
  EXPECT_TRUE(agreed) << said;
  EXPECT_TRUE(doctor::measured_table_seconds_per_gib());
}

/// A memory cgroup of our own, of version 1 or 2; empty path where none can be made.
class Cgroup {
 public:
  explicit Cgroup(std::uint64_t limit) {
    const std::string name = "segfuse_test_" + std::to_string(getpid());
    for (const auto& [parent, file] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                       std::pair("/sys/fs/cgroup", "memory.max")}) {
      const fs::path folder = fs::path(parent) / name;
      std::error_code error;
      fs::create_directory(folder, error);
      if (!error && fs::exists(folder / file) && write_number(folder / file, limit)) {
        write_number(folder / "memory.swap.max", 0);
        path_ = folder;
        return;
      }
      fs::remove(folder, error);
    }
  }
  ~Cgroup() {
    std::error_code error;
    for (int i = 0; i < 100 && !path_.empty() && !fs::remove(path_, error); ++i) usleep(10000);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(ForkForecastLimitsTest, TheOomKillIsForetold) {
  for (const char* kind : {"plain", "kept"}) {
    const Cgroup cgroup(384 * kMib);
    if (cgroup.path().empty()) GTEST_SKIP() << "no memory cgroup can be made here (needs root)";
    std::vector<std::string> arguments = {
        "/bin/sh", "-c",
        "echo $$ > '" + (cgroup.path() / "cgroup.procs").string() + "' && exec \"$@\"", "sh"};
    for (const std::string& argument : pinning(kind, 256 * kMib)) arguments.push_back(argument);
    Child child(arguments);
    std::string why;
    if (!has_pinned(child, why)) GTEST_SKIP() << "cannot pin memory here: " << why;
    const ForkReport report = examine_fork(child.pid());
    const bool dies = std::string(kind) == "plain";
    EXPECT_EQ(report.forecast.out_of_memory_kill, dies) << report.forecast.sentence;
    ASSERT_EQ(report.regions.size(), 1u);
    EXPECT_EQ(report.regions[0].risk, dies ? ForkRisk::kOomKill : ForkRisk::kBenign);
    EXPECT_THAT(report.forecast.headroom_of, HasSubstr("segfuse_test_"));
    const std::optional<Forked> outcome = forked(child);
    EXPECT_EQ(outcome.has_value(), !dies);
    if (!outcome) {
      const int status = child.wait();
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    }
  }
}

/// So many free huge pages in the pool for as long as it lives.
class HugePages {
 public:
  explicit HugePages(std::uint64_t free) : free_(free) {
    // An io_uring of a process that has ended gives its pages back a little later.
    for (int i = 0; i < 200 && of("surplus") > 0; ++i) usleep(10000);
    before_ = of("nr");
    write_number(kFolder / "nr_hugepages", before_ - of("free") + free);
    enough_ = of("free") == free;
  }
  ~HugePages() {
    for (int i = 0; i < 200 && of("free") < free_; ++i) usleep(10000);
    write_number(kFolder / "nr_hugepages", before_);
  }
  bool enough() const { return enough_; }

 private:
  static std::uint64_t of(const std::string& what) {
    return read_number(kFolder / (what + "_hugepages"));
  }
  static inline const fs::path kFolder = "/sys/kernel/mm/hugepages/hugepages-2048kB";
  std::uint64_t before_ = 0;
  std::uint64_t free_ = 0;
  bool enough_ = false;
};

TEST(ForkForecastLimitsTest, TheMissingHugePagesAreForetold) {
  // Room for one copy, then not.
  for (const bool fails : {false, true}) {
    const HugePages pool(fails ? 40 : 64);
    if (!pool.enough()) GTEST_SKIP() << "no huge pages can be had here (needs root and memory)";
    Child child(pinning("hugetlb", 24 * 2 * kMib));
    std::string why;
    if (!has_pinned(child, why)) GTEST_SKIP() << "cannot pin huge pages here: " << why;
    const ForkReport report = examine_fork(child.pid());
    EXPECT_EQ(report.forecast.huge_pages_needed, 24u);
    EXPECT_EQ(report.forecast.no_memory, fails) << report.forecast.sentence;
    ASSERT_EQ(report.regions.size(), 1u);
    EXPECT_EQ(report.regions[0].risk == ForkRisk::kNoMemory, fails);
    const std::optional<Forked> outcome = forked(child);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->failed, fails ? ENOMEM : 0);
  }
}

}  // namespace
}  // namespace segfuse
