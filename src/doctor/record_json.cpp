#include "doctor/record_json.h"

#include <fmt/core.h>

#include <array>
#include <string_view>
#include <utility>

namespace segfuse::doctor {

using runtime::BlockState;
using runtime::HeapEvent;
using runtime::HeapSnapshot;
using runtime::HeapStatistics;

namespace {

constexpr std::array<std::string_view, 6> kKinds = {"allocate", "free",          "map",
                                                    "unmap",    "out_of_memory", "flush"};
constexpr std::array<std::string_view, 5> kStates = {"unmapped", "changing", "free", "cached",
                                                     "live"};

struct Count {
  std::string_view name;
  std::uint64_t HeapStatistics::* member;
};
constexpr std::array<Count, 16> kCounts = {{
    {"mapped_bytes", &HeapStatistics::mapped_bytes},
    {"live_bytes", &HeapStatistics::live_bytes},
    {"requested_bytes", &HeapStatistics::requested_bytes},
    {"cached_bytes", &HeapStatistics::cached_bytes},
    {"free_bytes", &HeapStatistics::free_bytes},
    {"live_blocks", &HeapStatistics::live_blocks},
    {"cached_blocks", &HeapStatistics::cached_blocks},
    {"peak_mapped_bytes", &HeapStatistics::peak_mapped_bytes},
    {"peak_taken_bytes", &HeapStatistics::peak_taken_bytes},
    {"allocations", &HeapStatistics::allocations},
    {"magazine_hits", &HeapStatistics::magazine_hits},
    {"grown", &HeapStatistics::grown},
    {"released", &HeapStatistics::released},
    {"added_waits", &HeapStatistics::added_waits},
    {"host_waits", &HeapStatistics::host_waits},
    {"out_of_memory", &HeapStatistics::out_of_memory},
}};

int read_arena(const JsonPlace& place) {
  const std::uint64_t arena = place.count();
  if (arena > 1) place.refuse("arena 0 (small) or 1 (large)");
  return static_cast<int>(arena);
}

}  // namespace

std::string_view kind_name(HeapEvent::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
std::string_view state_name(BlockState state) { return kStates[static_cast<std::size_t>(state)]; }

std::string in_words(std::uint64_t bytes) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  if (unit == 0) return fmt::format("{} bytes", bytes);
  return fmt::format("{:.{}f} {}", amount, amount < 10 ? 2 : 1, kUnits[unit]);
}

Json snapshot_json(const HeapSnapshot& snapshot) {
  Json statistics;
  for (const Count& count : kCounts)
    statistics[std::string(count.name)] = snapshot.statistics.*count.member;
  Json entries = Json::array();
  for (const HeapSnapshot::Entry& entry : snapshot.entries) {
    Json row{{"arena", entry.arena},
             {"offset", entry.offset},
             {"bytes", entry.bytes},
             {"state", state_name(entry.state)}};
    if (entry.state == BlockState::kLive) {
      row["requested"] = entry.requested;
      row["label"] = entry.label;
    }
    if (!entry.stream.empty()) row["stream"] = entry.stream;
    if (!entry.uses.empty()) row["uses"] = entry.uses;
    entries.push_back(std::move(row));
  }
  return {{"device", snapshot.device},
          {"hard_limit", snapshot.hard_limit},
          {"soft_limit", snapshot.soft_limit},
          {"statistics", std::move(statistics)},
          {"entries", std::move(entries)}};
}

Json event_json(const HeapEvent& event) {
  Json row{{"kind", kind_name(event.kind)}, {"ns", event.nanoseconds}, {"serial", event.serial},
           {"arena", event.arena},          {"offset", event.offset},  {"bytes", event.bytes},
           {"requested", event.requested},  {"stream", event.stream}};
  if (event.cached) row["cached"] = true;
  if (!event.label.empty()) row["label"] = event.label;
  return row;
}

Json streams_json(const MemoryRecord& record) {
  Json streams = Json::array();
  for (const auto& [number, name] : record.streams)
    streams.push_back({{"number", number}, {"name", name}});
  return streams;
}

std::string to_json(const MemoryRecord& record) {
  Json json{{"format", kFormat}, {"version", kVersion}, {"streams", streams_json(record)}};
  if (record.source != "segfuse") json["source"] = record.source;
  if (record.snapshot) json["snapshot"] = snapshot_json(*record.snapshot);
  Json history = Json::array();
  for (const HeapEvent& event : record.history) history.push_back(event_json(event));
  json["history"] = std::move(history);
  return json_text(json, 1) + "\n";
}

HeapSnapshot read_snapshot(const JsonPlace& place) {
  HeapSnapshot snapshot;
  snapshot.device = place.at("device").text();
  snapshot.hard_limit = place.at("hard_limit").count();
  snapshot.soft_limit = place.at("soft_limit").count();
  const JsonPlace statistics = place.at("statistics");
  for (const Count& count : kCounts)
    snapshot.statistics.*count.member = statistics.at(count.name).count();
  place.at("entries").for_each([&](const JsonPlace& row) {
    HeapSnapshot::Entry entry;
    entry.arena = read_arena(row.at("arena"));
    entry.offset = row.at("offset").count();
    entry.bytes = row.at("bytes").count();
    entry.state = static_cast<BlockState>(row.at("state").one_of(kStates));
    if (const auto requested = row.find("requested")) entry.requested = requested->count();
    if (const auto label = row.find("label")) entry.label = label->text();
    if (const auto stream = row.find("stream")) entry.stream = stream->text();
    if (const auto uses = row.find("uses"))
      uses->for_each([&](const JsonPlace& use) {
        if (!use.value().is_array() || use.value().size() != 2 || !use.value()[0].is_string() ||
            !use.value()[1].is_number_unsigned())
          use.refuse("[stream, tick]");
        entry.uses.emplace_back(use.value()[0].get<std::string>(),
                                use.value()[1].get<runtime::Tick>());
      });
    snapshot.entries.push_back(std::move(entry));
  });
  return snapshot;
}

HeapEvent read_event(const JsonPlace& place) {
  HeapEvent event;
  event.kind = static_cast<HeapEvent::Kind>(place.at("kind").one_of(kKinds));
  event.nanoseconds = place.at("ns").count();
  event.serial = place.at("serial").count();
  event.arena = read_arena(place.at("arena"));
  event.offset = place.at("offset").count();
  event.bytes = place.at("bytes").count();
  event.requested = place.at("requested").count();
  const std::uint64_t stream = place.at("stream").count();
  if (stream > UINT32_MAX) place.at("stream").refuse("the number of a stream");
  event.stream = static_cast<std::uint32_t>(stream);
  if (const auto cached = place.find("cached")) event.cached = cached->boolean();
  if (const auto label = place.find("label")) event.label = label->text();
  return event;
}

void read_streams(const JsonPlace& place, MemoryRecord& record) {
  place.for_each([&](const JsonPlace& row) {
    const std::uint64_t number = row.at("number").count();
    if (number > UINT32_MAX) row.at("number").refuse("the number of a stream");
    record.streams[static_cast<std::uint32_t>(number)] = row.at("name").text();
  });
}

}  // namespace segfuse::doctor
