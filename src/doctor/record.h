#pragma once
// What a heap was seen to do, in files: our own JSON, a Chrome trace that Perfetto and
// about:tracing show, and the logs of two other allocators. read_record() tells them apart by their
// content.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/heap.h"

namespace segfuse::doctor {

/// A snapshot of a heap, its history, or both.
struct MemoryRecord {
  std::string source = "segfuse";  ///< who wrote it: "segfuse", "RMM log", "PyTorch snapshot"
  std::map<std::uint32_t, std::string> streams;  ///< names of those that history speaks of
  std::optional<runtime::HeapSnapshot> snapshot;
  /// By time. It may begin late: what was held before may only be seen to go.
  std::vector<runtime::HeapEvent> history;
};

MemoryRecord capture(const runtime::Heap& heap);

std::string to_json(const MemoryRecord& record);
/// One track a stream with a span for each buffer, and counters of live, cached, free and mapped
/// bytes. Holds all of the record: read_record() gives it back.
std::string to_chrome_trace(const MemoryRecord& record);

/// Reads what the two above wrote, an RMM log (CSV) or a PyTorch snapshot as JSON
/// (docs/memory.md has the line that converts one). DataError with the place of what is wrong.
MemoryRecord read_record(const std::filesystem::path& file);
/// The same; `name` stands for the file in errors.
MemoryRecord parse_record(std::string_view text, const std::string& name);

std::string_view kind_name(runtime::HeapEvent::Kind kind);
std::string_view state_name(runtime::BlockState state);
/// "3.25 MiB".
std::string in_words(std::uint64_t bytes);

}  // namespace segfuse::doctor
