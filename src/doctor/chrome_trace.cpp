// The trace format of about:tracing, which Perfetto reads too. Times are microseconds; the exact
// event stands in the arguments.

#include "doctor/memory/levels.h"
#include "doctor/record_json.h"

namespace segfuse::doctor {

using runtime::HeapEvent;
using Kind = HeapEvent::Kind;

namespace {

constexpr int kProcess = 1;

double microseconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

std::string_view phase(Kind kind) {
  if (kind == Kind::kAllocate) return "b";
  return kind == Kind::kFree ? "e" : "i";
}

Json trace_event(const HeapEvent& event) {
  const bool span = event.kind == Kind::kAllocate || event.kind == Kind::kFree;
  std::string name(kind_name(event.kind));
  if (span) name = event.label.empty() ? "buffer" : event.label;
  Json row{{"name", name},
           {"cat", kCategory},
           {"ph", phase(event.kind)},
           {"ts", microseconds(event.nanoseconds)},
           {"pid", kProcess},
           {"tid", event.stream + 1}};
  if (span)
    row["id"] = event.serial;
  else
    row["s"] = "p";
  row["args"] = event_json(event);
  return row;
}

Json counters(const HeapEvent& event, const Levels& levels) {
  const std::int64_t free = levels.mapped - levels.live - levels.cached;
  Json args{{"live", levels.live}};
  if (levels.mapped > 0) {
    args["cached"] = levels.cached;
    args["free"] = std::max<std::int64_t>(free, 0);
    args["mapped"] = levels.mapped;
  }
  return {{"name", "memory"},
          {"ph", "C"},
          {"ts", microseconds(event.nanoseconds)},
          {"pid", kProcess},
          {"args", std::move(args)}};
}

Json named(std::string_view what, std::uint32_t thread, const std::string& name) {
  return {
      {"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

std::string to_chrome_trace(const MemoryRecord& record) {
  Json events = Json::array();
  const std::string device = record.snapshot ? record.snapshot->device : record.source;
  events.push_back(named("process_name", 0, "memory of " + device));
  for (const auto& [number, name] : record.streams)
    events.push_back(named("thread_name", number + 1, name));
  Walk walk(record);
  for (const HeapEvent& event : record.history) {
    walk.apply(event);
    events.push_back(trace_event(event));
    events.push_back(counters(event, walk.levels()));
  }
  Json json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}};
  Json rest{{"format", kFormat},
            {"version", kVersion},
            {"source", record.source},
            {"streams", streams_json(record)}};
  if (record.snapshot) rest["snapshot"] = snapshot_json(*record.snapshot);
  json["segfuse"] = std::move(rest);
  return json_text(json) + "\n";
}

MemoryRecord read_chrome_trace(const JsonPlace& file) {
  MemoryRecord record;
  const bool bare = file.value().is_array();
  const auto read = [&](const JsonPlace& row) {
    const auto category = row.find("cat");
    if (!category || !category->value().is_string() || category->text() != kCategory) return;
    record.history.push_back(read_event(row.at("args")));
  };
  if (bare) {
    file.for_each(read);
  } else {
    const JsonPlace events = file.at("traceEvents");
    events.for_each(read);
  }
  const auto rest = bare ? std::nullopt : file.find("segfuse");
  if (rest) {
    record.source = rest->at("source").text();
    const JsonPlace streams = rest->at("streams");
    read_streams(streams, record);
    if (const auto snapshot = rest->find("snapshot")) record.snapshot = read_snapshot(*snapshot);
  } else if (record.history.empty()) {
    file.refuse("a trace with events of category segfuse.memory");
  }
  return record;
}

}  // namespace segfuse::doctor
