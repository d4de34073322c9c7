// The fork doctor against live processes that plant what it has to find
// (support/system/fork_victim.cpp).

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/text.h"
#include "segfuse/doctor/fork.h"
#include "segfuse/error.h"
#include "unit/doctor/child.h"

namespace segfuse {
namespace {

using test::Child;
using ::testing::HasSubstr;

std::vector<std::string> victim(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SEGFUSE_FORK_VICTIM);
  return arguments;
}

std::uint64_t hex(std::string_view text) {
  std::uint64_t value = 0;
  text.remove_prefix(2);
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

const ForkRegion* region_at(const ForkReport& report, std::uint64_t address) {
  for (const ForkRegion& region : report.regions)
    if (address >= region.begin && address < region.end) return &region;
  return nullptr;
}

struct Forked {
  long children = 0, died = 0, failed = 0;
  double longest = 0;
};
Forked forked(Child& child, int count, const char* how = "fork ") {
  child.say(how + std::to_string(count));
  const std::string line = child.line();
  const auto fields = split(line, '\t');
  if (fields.size() < 5) return {};
  return {*parse_int(fields[1]), *parse_int(fields[2]), *parse_int(fields[3]),
          *parse_double(fields[4])};
}

/// Every plant is found with its owner, its risk and the number of its neighbours.
int expect_plants(const std::vector<std::string>& lines, const ForkReport& report) {
  int plants = 0;
  for (const std::string& line : lines) {
    const auto fields = split(line, '\t');
    SCOPED_TRACE(line);
    if (fields.size() != 6u) {
      ADD_FAILURE();
      continue;
    }
    ++plants;
    const ForkRegion* region = region_at(report, hex(fields[2]));
    if (region == nullptr) {
      ADD_FAILURE() << "not found";
      continue;
    }
    if (fields[3] != "-") {
      EXPECT_EQ(region->kind, fields[3]) << region->owner;
    }
    EXPECT_EQ(fork_risk_name(region->risk), fields[4]) << region->owner << region->why;
    const std::int64_t neighbours = *parse_int(fields[5]);
    if (neighbours >= 0) {
      EXPECT_EQ(static_cast<std::int64_t>(region->live_neighbours.value_or(999999)), neighbours)
          << region->owner;
    }
    EXPECT_EQ(region->remedy.empty(), region->risk == ForkRisk::kBenign);
  }
  return plants;
}

void expect_all_plants(const std::string& how) {
  Child child(victim({"planted", how}));
  const std::vector<std::string> lines = child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  EXPECT_EQ(expect_plants(lines, report), 11);
  EXPECT_TRUE(report.at_risk());
  EXPECT_TRUE(report.forecast.crashes);
  EXPECT_EQ(report.regions.size(), 11u) << fork_report_text(report);
}

TEST(ForkDoctorTest, PlantedOwnersAreFound) { expect_all_plants("plain"); }

TEST(ForkDoctorTest, PlantedOwnersAreFoundThroughTheVerbsLibrary) {
  if (dlopen("libibverbs.so.1", RTLD_NOW) == nullptr)
    GTEST_SKIP() << "libibverbs.so.1 is not installed";
  expect_all_plants("real");
}

/// What owns its pages and touches a stack or a library's variables is neither theirs.
TEST(ForkDoctorTest, NeighboursOfStacksAndVariablesAreToldApart) {
  for (const char* mode : {"above-stack", "behind-variables"}) {
    Child child(victim({mode}));
    const auto lines = child.lines_until_ready();
    const ForkReport report = examine_fork(child.pid());
    EXPECT_GE(expect_plants(lines, report), 1) << mode;
    EXPECT_FALSE(report.at_risk()) << fork_report_text(report);
    EXPECT_EQ(forked(child, 3).died, 0);
    EXPECT_EQ(forked(child, 3, "fork on a thread ").died, 0);
  }
  Child child(victim({"block-above-stack"}));
  const auto lines = child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  EXPECT_EQ(expect_plants(lines, report), 2) << fork_report_text(report);
  EXPECT_FALSE(report.forecast.crashes) << report.forecast.sentence;
  for (const ForkRegion& region : report.regions)
    EXPECT_EQ(region.owner.find("not found"), std::string::npos) << region.owner;
}

/// Threads, blocks and memory that owns its pages, in generated orders: nothing harms a child, and
/// nothing else is said.
TEST(ForkDoctorTest, LayoutsThatHarmNobodyRaiseNoAlarm) {
  for (int seed = 0; seed < 60; ++seed) {
    Child child(victim({"layout", std::to_string(seed)}));
    child.lines_until_ready();
    const ForkReport report = examine_fork(child.pid());
    EXPECT_FALSE(report.at_risk()) << "seed " << seed << "\n" << fork_report_text(report);
    EXPECT_EQ(forked(child, 2).died, 0) << "seed " << seed;
    EXPECT_EQ(forked(child, 2, "fork on a thread ").died, 0) << "seed " << seed;
    if (::testing::Test::HasFailure()) return;
  }
}

/// The story: the page and its arena are named at once, and what is foretold happens.
TEST(ForkDoctorTest, TheArenaOfTheStoryIsNamedInTime) {
  if (dlopen("libibverbs.so.1", RTLD_NOW) == nullptr)
    GTEST_SKIP() << "libibverbs.so.1 is not installed";
  Child child(victim({"arena", "real"}));
  const auto lines = child.lines_until_ready();
  ASSERT_EQ(lines.size(), 1u);
  const std::uint64_t page = hex(split(lines[0], '\t')[2]);
  const ForkReport report = examine_fork(child.pid());
  ASSERT_EQ(report.regions.size(), 1u);
  EXPECT_EQ(report.regions[0].begin, page);
  EXPECT_EQ(report.regions[0].risk, ForkRisk::kCrash);
  EXPECT_THAT(report.regions[0].owner, HasSubstr("malloc arena"));
  // The other thread, whatever its number.
  const std::string tasks = "/proc/" + std::to_string(child.pid()) + "/task";
  int named = 0;
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    const std::string thread = task.path().filename().string();
    if (thread == std::to_string(child.pid())) continue;
    named += report.regions[0].owner.find("of thread " + thread + " ") != std::string::npos;
  }
  EXPECT_EQ(named, 1) << report.regions[0].owner;
  const Forked after = forked(child, 5);
  EXPECT_EQ(after.children, 5);
  EXPECT_EQ(after.died, 5);
}

/// The same in a Python process, whose small objects are not malloc's.
TEST(ForkDoctorTest, ObjectsOfPythonAreNamed) {
  const std::string program =
      "import ctypes, os, sys\n"
      "flag = ctypes.create_string_buffer(100)\n"
      "page = ctypes.addressof(flag) & -4096\n"
      "assert ctypes.CDLL(None).madvise(ctypes.c_void_p(page), 4096, 10) == 0\n"
      "print(hex(page), flush=True)\n"
      "input()\n"
      "died = 0\n"
      "for i in range(5):\n"
      "  child = os.fork()\n"
      "  if child == 0:\n"
      "    try:\n"
      "      x = [object() for i in range(100000)], flag.value\n"
      "    finally:\n"
      "      os._exit(0)\n"
      "  died += os.waitpid(child, 0)[1] != 0\n"
      "print(died, flush=True)\n";
  Child child({"/usr/bin/env", "-u", "PYTHONMALLOC", "python3", "-c", program});
  const std::string line = child.line();
  if (line.empty()) GTEST_SKIP() << "python3 is not installed, or has no ctypes";
  const std::uint64_t page = hex(line);
  const ForkReport report = examine_fork(child.pid());
  const ForkRegion* region = region_at(report, page);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->kind, "Python pool") << fork_report_text(report);
  EXPECT_EQ(region->risk, ForkRisk::kLosesData);
  EXPECT_GT(region->live_neighbours.value_or(0), 5U) << region->owner;
  child.say("");
  EXPECT_EQ(child.line(), "5") << "children died";
}

TEST(ForkDoctorTest, ACleanProcessIsCleanAndItsChildrenLive) {
  Child child(victim({"clean"}));
  child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  EXPECT_FALSE(report.at_risk()) << fork_report_text(report);
  EXPECT_THAT(fork_report_text(report), HasSubstr("0 regions, 0 of them a risk"));
  const Forked after = forked(child, 5);
  EXPECT_EQ(after.died, 0);
  if (!test::times_are_tested()) return;
  EXPECT_LT(after.longest, 3 * report.forecast.processor_seconds + 0.02);
}

/// Nothing critical is said of anything that runs here, nor of many processes that are clean.
TEST(ForkDoctorTest, NoFalseAlarm) {
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    try {
      const ForkReport report = examine_fork(static_cast<int>(*pid));
      // Other tests may run beside this one, and plant what they like.
      if (report.command == "fork_victim") continue;
      ++read;
      EXPECT_FALSE(!report.regions.empty() && report.regions[0].risk > ForkRisk::kSilentZero)
          << fork_report_text(report);
    } catch (const UsageError&) {
      // Ended meanwhile, a kernel thread, or somebody else's.
    }
  }
  EXPECT_GT(read, 0);
  // T16.
  const std::vector<std::vector<std::string>> clean = {
      {"/bin/cat"}, {"/bin/sh"}, {"/bin/sleep", "100"}, victim({"clean"})};
  for (std::size_t i = 0; i < 1000; ++i) {
    Child child(clean[i % clean.size()]);
    const ForkReport report = examine_fork(child.pid());
    ASSERT_FALSE(report.at_risk()) << fork_report_text(report);
    ASSERT_GT(report.mappings, 0u);
  }
}

std::string refusal_of(int pid) {
  try {
    examine_fork(pid);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ForkDoctorTest, WhatCannotBeReadIsToldApart) {
  EXPECT_THAT(refusal_of(0), HasSubstr("not a process id"));
  EXPECT_THAT(refusal_of(-4), HasSubstr("not a process id"));
  EXPECT_THAT(refusal_of(0x3fffffff), HasSubstr("there is no process"));
  Child child(victim({"zombie"}));
  const auto lines = child.lines_until_ready();
  ASSERT_EQ(lines.size(), 1u);
  const int zombie = static_cast<int>(*parse_int(split(lines[0], '\t')[1]));
  // It may take a moment to end.
  for (int i = 0; i < 100 && refusal_of(zombie).find("zombie") == std::string::npos; ++i)
    usleep(10000);
  EXPECT_THAT(refusal_of(zombie), HasSubstr("is a zombie"));
  std::ifstream threadd("/proc/2/status");
  std::string line;
  bool kernel = false;
  while (std::getline(threadd, line)) kernel = kernel || line == "Name:\tkthreadd";
  if (kernel) {
    EXPECT_THAT(refusal_of(2), HasSubstr("kernel thread"));
  }
}

TEST(ForkDoctorTest, AProcessThatEndsMeanwhileIsAnError) {
  int ended = 0;
  for (int i = 0; i < 60; ++i) {
    Child child(victim({"planted", "plain"}));
    child.lines_until_ready();
    // From before the reading to well after it.
    const std::string text = "0.0" + std::to_string(i % 30 / 10) + std::to_string(i % 10);
    Child killer({"/bin/sh", "-c", "sleep " + text + "; kill -9 " + std::to_string(child.pid())});
    for (int again = 0; again < 100; ++again) {
      const std::string refusal = refusal_of(child.pid());
      if (refusal.empty()) continue;
      EXPECT_TRUE(refusal.find("ended") != std::string::npos ||
                  refusal.find("zombie") != std::string::npos ||
                  refusal.find("just ending") != std::string::npos)
          << refusal;
      ++ended;
      break;
    }
  }
  EXPECT_GT(ended, 50);
}

/// Processor time of a report.
double cost_of(int pid) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  static_cast<void>(examine_fork(pid));
  return now() - start;
}

TEST(ForkDoctorTest, ManyMappingsAreReadAndReported) {
  Child child(victim({"many", "32600"}));
  const auto lines = child.lines_until_ready();
  ASSERT_EQ(lines.size(), 1u);
  const auto kept = static_cast<std::size_t>(*parse_int(split(lines[0], '\t')[1]));
  const ForkReport report = examine_fork(child.pid());
  EXPECT_EQ(report.regions.size(), kept);
  EXPECT_GT(report.mappings, 2 * kept - 1);
  if (report.mapping_limit < 70000) {
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_THAT(report.warnings[0], HasSubstr("vm.max_map_count"));
    EXPECT_TRUE(report.at_risk());
  }
  EXPECT_LT(fork_report_html(report).size(), 4u << 20);
  if (!test::times_are_tested()) return;
  // Eight times as many take about eight times as long, not sixty-four times.
  Child fewer(victim({"many", std::to_string(kept / 8)}));
  fewer.lines_until_ready();
  const double of_few =
      std::min({cost_of(fewer.pid()), cost_of(fewer.pid()), cost_of(fewer.pid())});
  EXPECT_LT(std::min(cost_of(child.pid()), cost_of(child.pid())), 24 * of_few);
}

TEST(ForkDoctorTest, VariablesOfTheCLibraryAreNoOthers) {
  Child child(victim({"libc"}));
  const auto lines = child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  EXPECT_EQ(expect_plants(lines, report), 1) << fork_report_text(report);
  EXPECT_TRUE(report.forecast.crashes);
}

/// Nothing to see takes one line; every risk is told.
TEST(ForkDoctorTest, BenignRegionsAreCountedAndToldOnRequest) {
  Child child(victim({"planted", "plain"}));
  child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  const std::string text = fork_report_text(report);
  const std::string all = fork_report_text(report, true);
  EXPECT_THAT(text, HasSubstr("4 benign regions, "));
  EXPECT_EQ(text.find("what      benign"), std::string::npos);
  EXPECT_THAT(all, HasSubstr("what      benign"));
  EXPECT_EQ(all.find("benign regions"), std::string::npos);
  for (const ForkRegion& region : report.regions)
    if (region.risk != ForkRisk::kBenign) {
      EXPECT_THAT(text, HasSubstr(region.owner));
    }
}

/// What the victim plants in its own variables has the name that the victim gave it.
TEST(ForkDoctorTest, VariablesAreNamed) {
  Child child(victim({"planted", "plain"}));
  child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  int found = 0;
  for (const ForkRegion& region : report.regions)
    if (region.kind == ".bss") {
      ++found;
      EXPECT_THAT(region.owner, HasSubstr("fork_victim: "));
      EXPECT_THAT(region.owner, HasSubstr("variables"));
    }
  EXPECT_EQ(found, 1);
}

TEST(ForkDoctorTest, ThePageShowsFindingsAndNeedsNoNetwork) {
  Child child(victim({"planted", "plain"}));
  child.lines_until_ready();
  const ForkReport report = examine_fork(child.pid());
  const std::string page = fork_report_html(report);
  for (const char* part : {"<svg", "crashes every fork", "arena header", "glibc",
                           "name=\"viewport\"", "<body><main>", "</main></body></html>"})
    EXPECT_THAT(page, HasSubstr(part));
  for (const char* part : {"http", "<script", "<link"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  const std::string json = fork_report_json(report);
  for (const char* part : {"\"live_neighbours\"", "\"at_risk\": true", "\"loses data\""})
    EXPECT_THAT(json, HasSubstr(part));
}

}  // namespace
}  // namespace segfuse
