#pragma once
// Records as JSON values; for the files that write and read them.

#include <cstdint>
#include <string>
#include <utility>

#include "base/json/json.h"
#include "doctor/record.h"

namespace segfuse::doctor {

inline constexpr std::string_view kFormat = "segfuse.memory";
inline constexpr std::uint64_t kVersion = 1;
/// Category of the events of a Chrome trace that are ours.
inline constexpr std::string_view kCategory = "segfuse.memory";

Json snapshot_json(const runtime::HeapSnapshot& snapshot);
Json event_json(const runtime::HeapEvent& event);
Json streams_json(const MemoryRecord& record);

runtime::HeapSnapshot read_snapshot(const JsonPlace& place);
runtime::HeapEvent read_event(const JsonPlace& place);
void read_streams(const JsonPlace& place, MemoryRecord& record);

MemoryRecord read_chrome_trace(const JsonPlace& file);
MemoryRecord read_torch(const JsonPlace& file);
MemoryRecord read_rmm_log(std::string_view text, const std::string& name);

}  // namespace segfuse::doctor
