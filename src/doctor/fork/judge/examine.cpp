// Puts together what the files of /proc/PID say: see the contract in segfuse/doctor/fork.h.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text.h"
#include "doctor/fork/judge/forecast.h"
#include "doctor/fork/judge/owner.h"
#include "doctor/fork/judge/risk.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

using namespace doctor;

const char* mechanism_name(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kKept: return kKeptFromChildren;
    case Mechanism::kWiped: return "wiped in children";
    case Mechanism::kPinned: break;
  }
  return "pinned";
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t vma = 0;  ///< the first
  std::size_t mapping = 0;
  Mechanism mechanism = Mechanism::kKept;
  std::string pinned_by;
};

/// Neighbours of one mapping and one mechanism are one range.
void add_range(std::vector<Range>& ranges, Range range) {
  if (!ranges.empty()) {
    Range& last = ranges.back();
    if (last.end == range.begin && last.mapping == range.mapping &&
        last.mechanism == range.mechanism && last.pinned_by == range.pinned_by) {
      last.end = range.end;
      return;
    }
  }
  ranges.push_back(std::move(range));
}

std::vector<Range> find_ranges(const std::vector<Vma>& vmas, const std::vector<Mapping>& mappings,
                               const std::vector<Pin>& pins) {
  std::vector<Range> ranges;
  for (std::size_t m = 0; m < mappings.size(); ++m)
    for (std::size_t i = mappings[m].first; i <= mappings[m].last; ++i) {
      const Vma& vma = vmas[i];
      const std::uint64_t begin = std::max(vma.begin, mappings[m].begin);
      const std::uint64_t end = std::min(vma.end, mappings[m].end);
      if (vma.kept) add_range(ranges, {begin, end, i, m, Mechanism::kKept, ""});
      if (vma.wiped && !vma.droppable) add_range(ranges, {begin, end, i, m, Mechanism::kWiped, ""});
    }
  std::size_t mapping = 0;
  for (const Pin& pin : pins) {
    while (mapping < mappings.size() && mappings[mapping].end <= pin.begin) ++mapping;
    for (std::size_t m = mapping; m < mappings.size() && mappings[m].begin < pin.end; ++m)
      for (std::size_t i = mappings[m].first; i <= mappings[m].last; ++i) {
        const Vma& vma = vmas[i];
        const std::uint64_t begin =
            std::max({vma.begin, mappings[m].begin, pin.begin & ~(vma.page - 1)});
        const std::uint64_t end =
            std::min({vma.end, mappings[m].end, (pin.end + vma.page - 1) & ~(vma.page - 1)});
        // What is kept from children or wiped in them is reported already, and is never copied.
        if (begin < end && !vma.kept && !vma.wiped)
          add_range(ranges, {begin, end, i, m, Mechanism::kPinned, pin.who});
      }
  }
  return ranges;
}

std::string kind_on_map(const Vma& vma) {
  if (vma.name == "[heap]") return "heap";
  if (vma.name.starts_with("[stack")) return "stack";
  if (vma.device || vma.name.starts_with("[v")) return "driver";
  if (vma.shared || vma.name.starts_with("/memfd:")) return "shared";
  if (!vma.readable && !vma.writable) return "guard";
  return vma.name.empty() ? "anonymous" : "file";
}

void add_map(ForkReport& report, const std::vector<Vma>& vmas,
             const std::vector<Mapping>& mappings) {
  for (const Mapping& mapping : mappings) {
    const Vma& vma = vmas[mapping.first];
    std::string kind = kind_on_map(vma);
    if (!report.map.empty()) {
      ForkMapping& last = report.map.back();
      if (last.kind == kind && last.name == vma.name && last.end == mapping.begin) {
        last.end = mapping.end;
        continue;
      }
    }
    report.map.push_back({mapping.begin, mapping.end, std::move(kind), vma.name});
  }
}

void add_regions(ForkReport& report, const std::vector<Range>& ranges, const std::vector<Vma>& vmas,
                 Owners& owners, const Software& software) {
  for (const Range& range : ranges) {
    const Owner owner = owners.of(range.begin, range.end, range.mapping);
    ForkRegion region;
    region.begin = range.begin;
    region.end = range.end;
    region.mechanism = mechanism_name(range.mechanism);
    if (!range.pinned_by.empty()) region.mechanism += " (" + range.pinned_by + ")";
    region.mapping = vmas[range.vma].name;
    region.kind = owner_name(owner.kind);
    region.owner = owner.sentence;
    if (owner.live) region.live_neighbours = *owner.live - std::min<std::uint64_t>(*owner.live, 1);
    judge(region, range.mechanism, owner, vmas[range.vma], report.forecast, software);
    report.regions.push_back(std::move(region));
  }
  std::stable_sort(report.regions.begin(), report.regions.end(),
                   [](const ForkRegion& a, const ForkRegion& b) {
                     return a.risk != b.risk ? a.risk > b.risk : a.begin < b.begin;
                   });
}

void add_warnings(ForkReport& report) {
  if (report.mapping_limit > 0 && report.mappings * 10 > report.mapping_limit * 9)
    report.warnings.push_back(fmt::format(
        "{} of {} mappings (vm.max_map_count) are used: at the limit madvise, mmap and new threads "
        "fail. One MADV_DONTFORK for each small registration does this; register out of few large "
        "slabs.",
        report.mappings, report.mapping_limit));
  if (report.forecast.no_memory &&
      report.forecast.huge_pages_needed <= report.forecast.huge_pages_free)
    report.warnings.push_back(report.forecast.sentence);
}

void add_notes(ForkReport& report, const Process& process, const Owners& owners,
               const Software& software) {
  if (!process.memory_is_readable())
    report.notes.push_back(
        "The process's memory may not be read (ptrace rights): owners are known by mapping only.");
  if (!software.glibc)
    report.notes.push_back(
        "No glibc is mapped under its name: malloc's blocks are known only where they add up as "
        "glibc's do.");
  if (!owners.consistent())
    report.notes.push_back(
        "A heap did not add up: it was changing while it was read, or is not glibc's.");
  if (report.forecast.copied_at_most > report.forecast.copied_bytes)
    report.notes.push_back(
        "VmPin counts pins of RDMA and io_uring; the kernel does not say where RDMA's are.");
  const bool has_chunks =
      std::any_of(report.regions.begin(), report.regions.end(),
                  [](const ForkRegion& region) { return region.live_neighbours.has_value(); });
  if (has_chunks)
    report.notes.push_back(
        "Blocks count as in use while malloc keeps them for reuse (its caches mark nothing).");
}

/// False: it changed too much while it was read.
bool examine(const Process& process, ForkReport& report) {
  const std::vector<Vma> vmas = parse_smaps(process.read_text("smaps"));
  if (vmas.empty())
    throw UsageError(fmt::format("process {} ended while it was being read", process.pid()));
  std::vector<Mapping> mappings = join_mappings(vmas);
  const std::string status = process.read_text("status");
  const std::vector<Pin> pins = find_pins(process);
  report.pid = process.pid();
  report.command = trim(process.try_read("comm").value_or(""));
  report.threads = status_value(status, "Threads").value_or(0);
  report.mappings = vmas.size();
  report.mapping_limit = static_cast<std::uint64_t>(
      parse_int(trim(read_system_file("/proc/sys/vm/max_map_count").value_or(""))).value_or(0));
  report.pinned_bytes = status_value(status, "VmPin").value_or(0);
  add_map(report, vmas, mappings);
  const Software software = find_software(process, vmas, report);
  report.forecast = forecast_fork(process, vmas, pins, report.pinned_bytes);
  const bool any = !find_ranges(vmas, mappings, pins).empty();
  Owners owners(process, vmas, std::move(mappings));
  if (any) owners.find_ends();
  add_regions(report, find_ranges(vmas, owners.mappings(), pins), vmas, owners, software);
  if (!report.regions.empty() && report.regions.front().risk == ForkRisk::kCrash) {
    report.forecast.crashes = true;
    const bool stacks_only =
        std::all_of(report.regions.begin(), report.regions.end(), [](const ForkRegion& region) {
          return region.risk != ForkRisk::kCrash || region.kind.ends_with("stack");
        });
    report.forecast.sentence +=
        stacks_only ? "; the child dies if the thread forks whose stack is missing in it"
                    : "; the child dies";
  }
  add_warnings(report);
  add_notes(report, process, owners, software);
  return owners.consistent();
}

}  // namespace

std::string fork_risk_name(ForkRisk risk) {
  switch (risk) {
    case ForkRisk::kBenign: break;
    case ForkRisk::kCopyCost: return "copy cost";
    case ForkRisk::kSilentZero: return "silent zero";
    case ForkRisk::kLosesData: return "loses data";
    case ForkRisk::kNoMemory: return "ENOMEM";
    case ForkRisk::kOomKill: return "OOM-kill";
    case ForkRisk::kCrash: return "crashes every fork";
  }
  return "benign";
}

bool ForkReport::at_risk() const {
  return !warnings.empty() || (!regions.empty() && regions.front().risk != ForkRisk::kBenign);
}

ForkReport examine_fork(int pid) {
  const auto start = std::chrono::steady_clock::now();
  const Process process(pid);
  ForkReport report;
  for (int attempt = 0; attempt < 3; ++attempt) {
    report = {};
    if (examine(process, report)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace segfuse
