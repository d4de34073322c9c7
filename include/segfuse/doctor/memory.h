#pragma once
// segfuse doctor memory: what a device's memory was used for, from a file.
//
// docs/doctor.md explains the output.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace segfuse {

/// Memory held by the buffers of one label.
struct MemoryHolder {
  std::string label;
  std::uint64_t bytes = 0;      ///< with rounding
  std::uint64_t requested = 0;  ///< as requested
  std::uint64_t buffers = 0;
};

/// The state at one moment.
struct MemoryPoint {
  double seconds = 0;
  std::uint64_t live = 0;
  std::uint64_t cached = 0;
  std::uint64_t mapped = 0;  ///< 0 throughout: not known from the file
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
  std::string device;  ///< empty: not known from the file
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

  // Memory that is held but not usable.
  std::uint64_t hard_fragmentation = 0;    ///< free, outside the largest run
  std::uint64_t soft_fragmentation = 0;    ///< live, but not requested: rounding
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
/// DataError with the place of an error in it.
MemoryReport examine_memory(const std::filesystem::path& file, bool with_replay = false);

/// State and history of the memory of segfuse/memory.h on a CUDA device, as a record that
/// examine_memory() reads.
std::string tensor_memory_record(int device);

std::string memory_report_text(const MemoryReport& report);
std::string memory_report_json(const MemoryReport& report);
/// A page that needs no network and no script: figures, level over time, map of addresses.
std::string memory_report_html(const MemoryReport& report);

}  // namespace segfuse
