#pragma once
// Runs a recorded sequence of allocations through a heap of ours: what it would have held, and how
// often work would have waited.

#include <cstdint>

#include "doctor/record.h"
#include "runtime/device.h"

namespace segfuse::doctor {

struct ReplayOptions {
  runtime::HeapOptions heap;
  /// Every buffer is written by a piece of work on its stream when it is handed out, and used by
  /// one on the stream that frees it, where that is another. Logs do not know of other uses.
  bool use = true;
};

struct ReplayResult {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t unknown_frees = 0;  ///< of what was allocated before the record begins
  std::uint64_t refused = 0;        ///< OutOfDeviceMemory
  std::uint64_t peak_requested = 0;
  std::uint64_t peak_live = 0;  ///< with rounding
  std::uint64_t peak_mapped = 0;
  std::uint64_t waits = 0;  ///< of streams, for memory
  std::uint64_t host_waits = 0;
  std::uint64_t grown = 0;
  std::uint64_t records = 0;  ///< events
  std::uint64_t hits = 0;     ///< allocations that magazines served
};

/// On a device that is otherwise idle. Labels refer to the record during the call only.
ReplayResult replay(const MemoryRecord& record, runtime::Device& device,
                    const ReplayOptions& options = {});

}  // namespace segfuse::doctor
