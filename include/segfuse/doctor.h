#pragma once
// The tools of `segfuse doctor`; how to read what they say: docs/doctor.md.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segfuse {

// doctor memory: what a device's memory was used for, from a file.

/// Who holds memory: buffers of one label.
struct MemoryHolder {
  std::string label;
  std::uint64_t bytes = 0;      ///< with rounding
  std::uint64_t requested = 0;  ///< as asked for
  std::uint64_t buffers = 0;
};

/// How much there was at a moment.
struct MemoryPoint {
  double seconds = 0;
  std::uint64_t live = 0;
  std::uint64_t cached = 0;
  std::uint64_t mapped = 0;  ///< 0 throughout: the file does not tell
};

/// A range of addresses that has memory.
struct MemoryRange {
  int arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string state;  ///< "live", "cached", "free", "pending" (free, but work may still use it)
  std::string label;  ///< of what is live
};

/// What segfuse's heap would have done with the same requests.
struct MemoryReplay {
  std::uint64_t allocations = 0;
  std::uint64_t peak_requested = 0;
  std::uint64_t peak_live = 0;
  std::uint64_t peak_mapped = 0;
  std::uint64_t waits = 0;  ///< of streams for each other's memory
  std::uint64_t host_waits = 0;
  std::uint64_t grown = 0;
  std::uint64_t refused = 0;
};

struct MemoryReport {
  std::string file;
  std::string source;  ///< "segfuse", "RMM log", "PyTorch snapshot"
  std::string device;  ///< empty: the file does not tell
  std::uint64_t events = 0;
  std::uint64_t allocations = 0;  ///< in the history
  std::uint64_t out_of_memory = 0;

  // At the end. mapped = live + cached + free.
  bool has_snapshot = false;  ///< without one, only `live` and what follows from it is known
  std::uint64_t hard_limit = 0;
  std::uint64_t mapped = 0;
  std::uint64_t live = 0;
  std::uint64_t cached = 0;
  std::uint64_t free = 0;
  std::uint64_t largest_run = 0;  ///< of neighbouring free ranges
  std::uint64_t live_buffers = 0;

  // Memory that is held and helps nobody.
  std::uint64_t hard_fragmentation = 0;    ///< free, outside the largest run
  std::uint64_t soft_fragmentation = 0;    ///< live, but not asked for: rounding
  std::uint64_t stream_fragmentation = 0;  ///< free, but work may still use it

  std::uint64_t peak_live = 0;
  double peak_seconds = 0;
  std::uint64_t peak_mapped = 0;
  std::vector<MemoryHolder> holders;       ///< at the end, most bytes first
  std::vector<MemoryHolder> peak_holders;  ///< when most was live

  std::vector<MemoryPoint> timeline;  ///< of the history; peaks are kept
  std::vector<MemoryRange> ranges;    ///< by arena and address; nothing where there is no snapshot
  std::optional<MemoryReplay> replay;
};

/// Reads a memory record, a Chrome trace of one, an RMM log (CSV) or a PyTorch snapshot as JSON.
/// DataError with the place of what is wrong in it.
MemoryReport examine_memory(const std::filesystem::path& file, bool with_replay = false);

std::string memory_report_text(const MemoryReport& report);
std::string memory_report_json(const MemoryReport& report);
/// A page that needs no network and no script: figures, level over time, map of addresses.
std::string memory_report_html(const MemoryReport& report);

// doctor fork: what fork() in a live process would do.

/// What a region does to children, from harmless to worst.
enum class ForkRisk {
  kBenign,
  kCopyCost,    ///< fork() copies it at once, and everybody waits
  kSilentZero,  ///< children read zeros where there was data
  kLosesData,   ///< children fault where there was data of others
  kNoMemory,    ///< fork() fails with ENOMEM
  kOomKill,     ///< fork() gets this process killed
  kCrash        ///< every child of fork() dies
};
std::string fork_risk_name(ForkRisk risk);

/// The mechanism of what MADV_DONTFORK was said of.
inline constexpr const char* kKeptFromChildren = "kept from children";

/// Memory that a child of fork() does not get as it is.
struct ForkRegion {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string mechanism;  ///< kKeptFromChildren, "wiped in children", "pinned"
  std::string mapping;    ///< as /proc/PID/maps names it; empty: anonymous
  std::string kind;       ///< "heap chunk", "arena header", "thread stack", "slab", ...
  std::string owner;      ///< a sentence about whose it is
  std::optional<std::uint64_t> live_neighbours;  ///< other live malloc blocks in its pages
  ForkRisk risk = ForkRisk::kBenign;
  std::string why;
  std::string remedy;  ///< empty where nothing is to be done
};

/// What fork() would do now.
struct ForkForecast {
  std::uint64_t private_bytes = 0;      ///< in use, and handed on to a child
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
  std::vector<std::string> notes;     ///< what could not be seen, and what is only believed
  std::vector<ForkMapping> map;
  double seconds = 0;

  /// Whether there is any risk: exit code 1.
  bool at_risk() const;
};

/// Reads a live process and never stops it. UsageError where it cannot be read: it does not exist,
/// has ended, is a kernel thread, or belongs to somebody else.
ForkReport examine_fork(int pid);

/// Benign regions are counted, or told one by one with `all`.
std::string fork_report_text(const ForkReport& report, bool all = false);
std::string fork_report_json(const ForkReport& report);
std::string fork_report_html(const ForkReport& report);

/// What is another than it was at the reading before.
struct ForkChange {
  enum class Kind { kAppeared, kGone, kChanged, kForecast, kWarning };
  Kind kind = Kind::kAppeared;
  ForkRegion region;  ///< of the first three
  std::string sentence;
};
std::string fork_change_name(ForkChange::Kind kind);
/// Regions by address, then the forecast, then warnings. The forecast changed if it says something
/// else: of a stall, half as much again.
std::vector<ForkChange> fork_changes(const ForkReport& before, const ForkReport& after);
std::string fork_change_text(const ForkChange& change, double seconds);
std::string fork_change_json(const ForkChange& change, double seconds);

struct ForkWatch {
  std::chrono::milliseconds interval{1000};  ///< between two readings
  std::function<bool()> stop;                ///< asked twenty times a second; null: at Ctrl-C
  std::function<void(const ForkReport&)> first;
  std::function<void(const ForkChange&, double seconds)> changed;
  std::function<void(const std::string& why)> ended;  ///< it cannot be read any more
};
/// Reads the process again and again until it ends or `stop` says so. Whether there was any risk.
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
/// process and its device would part ways.
ForkRepair repair_fork(int pid, std::uint64_t address);
std::string fork_repair_text(const ForkRepair& repair);
std::string fork_repair_json(const ForkRepair& repair);

struct ForkTraced {
  bool at_risk = false;
  std::string text;
  std::string json;
};
/// Runs a command with a library before it that tells which calls register memory, and looks at its
/// processes as they do. What the command prints goes to our stderr. UsageError when it cannot be
/// started, DeviceError when the library is not there.
ForkTraced trace_forks(const std::vector<std::string>& command);

// doctor kernel: what a kernel of a GPU needs, from PTX, a cubin or CUDA C++; what the vectorisers
// make of the loops of C.

/// Atomic instructions of one kind in a kernel.
struct KernelAtomic {
  std::string instruction;  ///< "red.global.add.f32"
  std::uint64_t count = 0;  ///< in the text
  /// "independent": memory ends the same in every order. "returned": so it does, but what the
  /// instruction returns depends on the order. "dependent": so does memory.
  std::string order;
};

/// How much of a multiprocessor one kernel can fill.
struct KernelOccupancy {
  std::string architecture;
  std::uint64_t block = 0;   ///< threads
  std::uint64_t blocks = 0;  ///< at the same time on a multiprocessor
  double share = 0;          ///< of the warps it can have
  std::string limit;         ///< "registers", "shared memory", "threads", "blocks"
};

/// What is not set, the input does not tell.
struct KernelInfo {
  std::string name;
  std::string architecture;
  std::optional<std::uint64_t> registers;  ///< of a thread
  std::optional<std::uint64_t> spill_store_bytes;
  std::optional<std::uint64_t> spill_load_bytes;
  std::optional<std::uint64_t> stack_bytes;
  std::uint64_t shared_bytes = 0;  ///< without what is asked for at the launch
  std::optional<std::uint64_t> barriers;
  std::uint64_t max_threads = 0;  ///< of a block, as declared; 0: not declared
  std::uint64_t code_bytes = 0;   ///< 0: the input is no machine code
  // Of PTX only.
  bool has_text = false;
  std::uint64_t declared_registers = 0;
  std::uint64_t local_bytes = 0;  ///< of arrays in local memory
  std::uint64_t local_loads = 0;  ///< instructions
  std::uint64_t local_stores = 0;
  std::vector<KernelAtomic> atomics;
  std::vector<KernelOccupancy> occupancy;

  bool spills() const { return spill_store_bytes.value_or(0) + spill_load_bytes.value_or(0) > 0; }
};

struct KernelOptions {
  std::string architecture;  ///< to compile or assemble for; empty: PTX's own, else sm_90
  std::uint64_t block = 0;   ///< threads; 0: as declared, else 256
};

/// What the CPU's compiler says of a loop in C.
struct KernelLoop {
  std::uint64_t line = 0;  ///< of the text, from 1
  bool vectorized = false;
  std::string remark;       ///< as the compiler says it
  std::string kernel = {};  ///< of several texts: whose
};

struct KernelReport {
  std::string file;
  /// "cubin", "PTX", "PTX, assembled by ptxas", "CUDA C++, compiled by NVRTC", "C, compiled by
  /// clang 19.1.7 for znver5"
  std::string source;
  std::vector<KernelInfo> kernels;  ///< by name
  std::vector<KernelLoop> loops;    ///< of C, by line
  std::vector<std::string> notes;

  bool spills() const;
};

/// By the ending of the file's name (.ptx, .cu, .c), or, for a cubin, by its first bytes. DataError
/// for what cannot be read or does not compile; DeviceError where the compiler is missing.
KernelReport examine_kernels(const std::filesystem::path& file, const KernelOptions& options = {});

KernelReport examine_cubin(const std::string& name, std::string_view cubin,
                           const KernelOptions& options = {});

std::string kernel_report_text(const KernelReport& report);
std::string kernel_report_json(const KernelReport& report);
std::string kernel_comparison_text(const KernelReport& former, const KernelReport& report);
std::string kernel_comparison_json(const KernelReport& former, const KernelReport& report);

// doctor streams, and --report-kernels: what this process does while it is watched.

struct StreamRace {
  std::string sentence, missing, picture;  ///< all of it; the wait that would help; SVG
};

struct StreamReport {
  std::string command;
  std::uint64_t operations = 0;  ///< launches, copies and fills that race checkers looked at
  std::vector<StreamRace> races;
};
std::string stream_report_text(const StreamReport& report);
std::string stream_report_json(const StreamReport& report);

class Watch {
 public:
  Watch();
  ~Watch();
  /// Kernels that were made or loaded: a report for the CPU's and one for each kind of GPU, of each
  /// text once, in the order of their first use. Further kernels of a name get a number behind it.
  std::vector<KernelReport> kernels() const;
  /// What race checkers found, which are there with the option check-streams.
  StreamReport streams(std::string command) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse
