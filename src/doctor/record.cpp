#include "doctor/record.h"

#include <fmt/core.h>

#include "base/os/file.h"
#include "doctor/pickle.h"
#include "doctor/record_json.h"
#include "runtime/tensors/tensor_memory.h"
#include "runtime/timeline.h"
#include "segfuse/doctor/memory.h"

namespace segfuse::doctor {

namespace {

MemoryRecord read_own(const JsonPlace& file) {
  const std::uint64_t version = file.at("version").count();
  if (version != kVersion) file.at("version").refuse(fmt::format("version {}", kVersion));
  MemoryRecord record;
  if (const auto source = file.find("source")) record.source = source->text();
  read_streams(file.at("streams"), record);
  if (const auto snapshot = file.find("snapshot")) record.snapshot = read_snapshot(*snapshot);
  const JsonPlace history = file.at("history");
  history.for_each([&](const JsonPlace& row) { record.history.push_back(read_event(row)); });
  return record;
}

}  // namespace

MemoryRecord capture(const runtime::Heap& heap) {
  MemoryRecord record;
  record.snapshot = heap.snapshot();
  record.history = heap.history();
  for (const runtime::StreamId stream : heap.timeline().streams(heap.device()))
    record.streams[stream.index] = heap.timeline().name(stream);
  for (const runtime::HeapEvent& event : record.history)
    record.streams.try_emplace(event.stream, fmt::format("stream {}", event.stream));
  return record;
}

MemoryRecord parse_record(std::string_view text, const std::string& name) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    throw DataError(
        fmt::format("{}: the file is empty; expected a memory record, a Chrome trace, an RMM log "
                    "or a PyTorch snapshot",
                    name));
  const bool pickle = is_pickle(text);
  if (!pickle && text[first] != '{' && text[first] != '[') return read_rmm_log(text, name);
  const Json json = pickle ? read_pickle(text, name) : parse_json(text, name);
  const JsonPlace file(json, name);
  if (json.is_array()) return read_chrome_trace(file);
  if (json.contains("traceEvents")) return read_chrome_trace(file);
  if (json.contains("device_traces") || json.contains("segments")) return read_torch(file);
  if (json.contains("format") && file.at("format").text() == kFormat) return read_own(file);
  throw DataError(fmt::format(
      "{}: this {} is not a record of memory; expected one with format \"{}\", a Chrome trace "
      "(traceEvents) or a PyTorch snapshot (device_traces)",
      name, pickle ? "pickle" : "JSON", kFormat));
}

MemoryRecord read_record(const std::filesystem::path& file) {
  return parse_record(read_file(file), file.string());
}

}  // namespace segfuse::doctor

namespace segfuse {

std::string tensor_memory_record(int device) {
  return doctor::to_json(doctor::capture(runtime::cuda_tensor_memory(device).device().heap()));
}

}  // namespace segfuse
