#pragma once
// segfuse doctor fork: what fork() in a live process would do.
//
// docs/doctor.md explains the output.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace segfuse {

/// The effect of a region on children, from harmless to worst.
enum class ForkRisk {
  kBenign,
  kCopyCost,    ///< fork() copies it at once, and other threads wait
  kSilentZero,  ///< children read zeros where there was data
  kLosesData,   ///< children fault where other data was
  kNoMemory,    ///< fork() fails with ENOMEM
  kOomKill,     ///< fork() gets this process killed
  kCrash        ///< every child of fork() dies
};
std::string fork_risk_name(ForkRisk risk);

/// The mechanism of regions with MADV_DONTFORK.
inline constexpr const char* kKeptFromChildren = "kept from children";

/// Memory that a child of fork() does not get as it is.
struct ForkRegion {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string mechanism;  ///< kKeptFromChildren, "wiped in children", "pinned"
  std::string mapping;    ///< as /proc/PID/maps names it; empty: anonymous
  std::string kind;       ///< "heap chunk", "arena header", "thread stack", "slab", ...
  std::string owner;      ///< a sentence about the owner
  std::optional<std::uint64_t> live_neighbours;  ///< other live malloc blocks in its pages
  ForkRisk risk = ForkRisk::kBenign;
  std::string why;
  std::string remedy;  ///< empty if no action is needed
};

/// What fork() would do now.
struct ForkForecast {
  std::uint64_t private_bytes = 0;      ///< in use, and inherited by a child
  std::uint64_t copied_bytes = 0;       ///< at once: pinned, private, not kept from children
  std::uint64_t copied_at_most = 0;     ///< more than that where a pin's place is not known
  std::uint64_t table_bytes = 0;        ///< page tables of the child
  std::uint64_t huge_pages_needed = 0;  ///< of the pool, to be copied
  std::uint64_t huge_pages_free = 0;
  std::uint64_t split_bytes = 0;  ///< transparent huge pages of this process that are split
  std::uint64_t huge_bytes = 0;   ///< copied out of huge pages, or of such that were split before
  double stall_seconds = 0;       ///< of all threads that allocate or fault meanwhile
  double processor_seconds = 0;   ///< the same on a processor of its own
  // Measured here and now, where it matters; processor time.
  double copy_seconds_per_gib = 0;              ///< of what is pinned
  double table_seconds_per_gib = 0;             ///< of page tables, for memory in pages of 4 KiB
  double slowdown = 1;                          ///< by what else runs on this machine
  std::optional<std::uint64_t> headroom_bytes;  ///< of the tightest memory cgroup
  std::string headroom_of;
  bool crashes = false;
  bool out_of_memory_kill = false;
  bool no_memory = false;  ///< ENOMEM
  std::string sentence;
};

/// Part of the address space, for a picture of it.
struct ForkMapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string kind;  ///< "heap", "stack", "file", "shared", "anonymous", "driver"
  std::string name;
};

struct ForkReport {
  int pid = 0;
  std::string command;
  std::uint64_t threads = 0;
  std::uint64_t mappings = 0;
  std::uint64_t mapping_limit = 0;
  std::uint64_t pinned_bytes = 0;   ///< as the kernel counts them (VmPin)
  std::vector<ForkRegion> regions;  ///< worst first, then by address
  ForkForecast forecast;
  std::vector<std::pair<std::string, std::string>> versions;
  std::vector<std::pair<std::string, std::string>> environment;  ///< what matters to fork()
  std::vector<std::string> warnings;  ///< risks that are not of one region
  std::vector<std::string> notes;     ///< what could not be read, and assumptions
  std::vector<ForkMapping> map;
  double seconds = 0;

  /// Whether there is any risk: exit code 1.
  bool at_risk() const;
};

/// Reads a live process and never stops it. UsageError where it cannot be read: it does not exist,
/// has ended, is a kernel thread, or belongs to another user.
ForkReport examine_fork(int pid);

/// Benign regions are counted, or listed one by one with `all`.
std::string fork_report_text(const ForkReport& report, bool all = false);
std::string fork_report_json(const ForkReport& report);
std::string fork_report_html(const ForkReport& report);

/// A change since the previous reading.
struct ForkChange {
  enum class Kind { kAppeared, kGone, kChanged, kForecast, kWarning };
  Kind kind = Kind::kAppeared;
  ForkRegion region;  ///< of the first three
  std::string sentence;
};
std::string fork_change_name(ForkChange::Kind kind);
/// Regions by address, then the forecast, then warnings. The forecast counts as changed if its text
/// differs, for a stall by half or more.
std::vector<ForkChange> fork_changes(const ForkReport& before, const ForkReport& after);
std::string fork_change_text(const ForkChange& change, double seconds);
std::string fork_change_json(const ForkChange& change, double seconds);

struct ForkWatch {
  std::chrono::milliseconds interval{1000};  ///< between two readings
  std::function<bool()> stop;                ///< called twenty times a second; null: at Ctrl-C
  std::function<void(const ForkReport&)> first;
  std::function<void(const ForkChange&, double seconds)> changed;
  std::function<void(const std::string& why)> ended;  ///< the process cannot be read any more
};
/// Reads the process repeatedly until it ends or `stop` is true. Returns whether there was a risk.
/// UsageError as examine_fork() at the first reading.
bool watch_fork(int pid, const ForkWatch& watch);

struct ForkRepair {
  ForkRegion region;           ///< as it was
  double stopped_seconds = 0;  ///< of the one thread that made the call
  ForkReport after;
};
/// Gives the region around `address` back to children: a thread of the process is made to call
/// madvise(MADV_DOFORK). UsageError where there is nothing to repair, or the process may not be
/// changed; DeviceError where fork() was not seen to copy pinned memory on this kernel: there the
/// process and its device would use different pages.
ForkRepair repair_fork(int pid, std::uint64_t address);
std::string fork_repair_text(const ForkRepair& repair);
std::string fork_repair_json(const ForkRepair& repair);

struct ForkTraced {
  bool at_risk = false;
  std::string text;
  std::string json;
};
/// Runs a command with a preloaded library that reports which calls register memory, and examines
/// its processes when they do. The output of the command goes to our stderr. UsageError if it
/// cannot be started, DeviceError if the library is missing.
ForkTraced trace_forks(const std::vector<std::string>& command);

}  // namespace segfuse
