// Logs of other allocators: RMM's CSV and PyTorch's snapshot.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>

#include "base/text.h"
#include "doctor/record_json.h"

namespace segfuse::doctor {

using runtime::BlockState;
using runtime::HeapEvent;
using runtime::HeapSnapshot;
using Kind = HeapEvent::Kind;

namespace {

/// Numbers for the streams of a log, in the order of their appearance.
class Streams {
 public:
  explicit Streams(MemoryRecord& record) : record_(record) {}
  std::uint32_t number(const std::string& name) {
    const auto [found, added] =
        numbers_.try_emplace(name, static_cast<std::uint32_t>(numbers_.size()));
    if (added) record_.streams[found->second] = "stream " + name;
    return found->second;
  }

 private:
  MemoryRecord& record_;
  std::map<std::string, std::uint32_t> numbers_;
};

/// Addresses become offsets from the lowest one, hand-outs get serials, and a free gets the size of
/// what it frees where the log has none.
void finish(MemoryRecord& record, std::uint64_t lowest) {
  std::map<std::uint64_t, const HeapEvent*> live;
  std::uint64_t serial = 0;
  for (HeapEvent& event : record.history) {
    if (event.offset >= lowest) event.offset -= lowest;
    if (event.kind == Kind::kAllocate) {
      event.serial = ++serial;
      live[event.offset] = &event;
    } else if (event.kind == Kind::kFree) {
      const auto found = live.find(event.offset);
      if (found == live.end()) continue;
      event.serial = found->second->serial;
      event.bytes = found->second->bytes;
      event.requested = found->second->requested;
      event.label = found->second->label;
      live.erase(found);
    }
  }
}

/// One line of an RMM log: Thread,Time,Action,Pointer,Size,Stream.
struct RmmLine {
  LinePosition position;
  std::vector<std::string_view> fields;

  [[noreturn]] void refuse(std::size_t field, std::string_view expected) const {
    std::size_t column = 1;
    for (std::size_t i = 0; i < field; ++i) column += fields[i].size() + 1;
    throw DataError(fmt::format("{}:{}:{}: expected {}, found '{}'", position.file, position.line,
                                column, expected, fields[field]));
  }
  std::uint64_t number(std::size_t field, int base, std::string_view expected) const {
    std::string_view text = trim(fields[field]);
    if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
    if (base == 16 && text == "(nil)") return 0;
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size() || text.empty())
      refuse(field, expected);
    return value;
  }
  /// Newer logs tell the seconds since 1970, others the time of day.
  bool tells_epoch() const { return fields[1].find(':') == std::string_view::npos; }
  /// "10:21:33.123456", in older logs "10:21:33:123456", in newer ones "1634567890.123456", as
  /// nanoseconds of the day or since 1970.
  std::uint64_t time() const {
    constexpr std::string_view kExpected = "a time of day or seconds since 1970";
    const bool epoch = tells_epoch();
    const std::size_t fraction = epoch ? 1 : 3;
    std::array<std::uint64_t, 4> parts{};
    std::size_t part = 0;
    std::size_t digits = 0;
    for (const char c : trim(fields[1])) {
      if (c >= '0' && c <= '9' && digits < 18) {
        // Of a fraction, what is less than a nanosecond is left out.
        if (part < fraction || digits < 9)
          parts[part] = parts[part] * 10 + static_cast<std::uint64_t>(c - '0');
        ++digits;
      } else if ((c == '.' || (c == ':' && !epoch)) && part < fraction && digits > 0) {
        ++part;
        digits = 0;
      } else {
        refuse(1, kExpected);
      }
    }
    if (part + 1 < fraction || digits == 0) refuse(1, kExpected);
    if (part == fraction)
      for (; digits < 9; ++digits) parts[part] *= 10;
    const std::uint64_t seconds = epoch ? parts[0] : (parts[0] * 60 + parts[1]) * 60 + parts[2];
    if (seconds > 10'000'000'000) refuse(1, kExpected);
    return seconds * 1'000'000'000 + parts[fraction];
  }
};

HeapEvent rmm_event(const RmmLine& line, Streams& streams) {
  HeapEvent event;
  const std::string_view action = trim(line.fields[2]);
  if (action == "allocate")
    event.kind = Kind::kAllocate;
  else if (action == "free" || action == "deallocate")
    event.kind = Kind::kFree;
  else if (action == "allocate failure")
    event.kind = Kind::kOutOfMemory;
  else
    line.refuse(2, "allocate, free or allocate failure");
  event.nanoseconds = line.time();
  event.offset = line.number(3, 16, "an address in hexadecimal");
  event.requested = event.bytes = line.number(4, 10, "a size in bytes");
  event.stream = streams.number(std::string(trim(line.fields[5])));
  return event;
}

/// Makes times of day, in the order of a log, times since the midnight before the first of them. A
/// step back by more than an hour is a midnight; lines of other threads may come late by less.
class Midnights {
 public:
  std::uint64_t since_first_day(std::uint64_t time_of_day) {
    constexpr std::uint64_t kHour = 3'600'000'000'000;
    constexpr std::uint64_t kDay = 24 * kHour;
    std::uint64_t time = day_ + time_of_day;
    const bool of_the_day_before =
        day_ > 0 && time - kDay <= latest_ && latest_ <= time - kDay + kHour;
    if (of_the_day_before) return time - kDay;
    if (time + kHour < latest_) {
      day_ += kDay;
      time += kDay;
    }
    latest_ = std::max(latest_, time);
    return time;
  }

 private:
  std::uint64_t day_ = 0;
  std::uint64_t latest_ = 0;
};

}  // namespace

MemoryRecord read_rmm_log(std::string_view text, const std::string& name) {
  constexpr std::string_view kHeader = "Thread,Time,Action,Pointer,Size,Stream";
  MemoryRecord record;
  record.source = "RMM log";
  Streams streams(record);
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  Midnights midnights;
  RmmLine line{{name, 0}, {}};
  for (const std::string_view row : split_lines(text)) {
    ++line.position.line;
    if (line.position.line == 1) {
      if (trim(row) != kHeader)
        throw DataError(fmt::format(
            "{}:1:1: expected a memory record, a Chrome trace, a PyTorch snapshot (a pickle, or as "
            "JSON), or an RMM log that begins with '{}'",
            name, kHeader));
      continue;
    }
    if (trim(row).empty()) continue;
    line.fields = split(row, ',');
    if (line.fields.size() != 6)
      throw DataError(fmt::format("{}:{}: expected 6 fields ({}), found {}", name,
                                  line.position.line, kHeader, line.fields.size()));
    HeapEvent event = rmm_event(line, streams);
    if (!line.tells_epoch()) event.nanoseconds = midnights.since_first_day(event.nanoseconds);
    if (event.kind != Kind::kOutOfMemory) lowest = std::min(lowest, event.offset);
    record.history.push_back(std::move(event));
  }
  if (!record.history.empty()) {
    std::uint64_t first = record.history.front().nanoseconds;
    for (const HeapEvent& event : record.history) first = std::min(first, event.nanoseconds);
    for (HeapEvent& event : record.history) event.nanoseconds -= first;
  }
  finish(record, lowest);
  return record;
}

namespace {

/// "model.py:12 forward": the innermost frame that is not the library's.
std::string torch_label(const JsonPlace& row) {
  const auto frames = row.find("frames");
  if (!frames || !frames->value().is_array()) return {};
  std::string label;
  frames->for_each([&](const JsonPlace& frame) {
    const auto file = frame.find("filename");
    const auto line = frame.find("line");
    const auto function = frame.find("name");
    if (!label.empty() || !file || !line || !function) return;
    const std::string path = file->text();
    if (!path.ends_with(".py") || path.find("/torch/") != std::string::npos) return;
    label = fmt::format("{}:{} {}", path.substr(path.rfind('/') + 1), line->integer(),
                        function->text());
  });
  return label;
}

std::string torch_stream(const JsonPlace& row) {
  const auto stream = row.find("stream");
  return stream ? std::to_string(stream->integer()) : "0";
}

/// Nothing for what does not concern memory, and for "free_completed": a buffer counts as freed
/// when the program gave it up.
std::optional<Kind> torch_kind(const std::string& action) {
  if (action == "alloc") return Kind::kAllocate;
  if (action == "free_requested" || action == "free") return Kind::kFree;
  if (action == "segment_alloc" || action == "segment_map") return Kind::kMap;
  if (action == "segment_free" || action == "segment_unmap") return Kind::kUnmap;
  if (action == "oom") return Kind::kOutOfMemory;
  return std::nullopt;
}

void read_torch_trace(const JsonPlace& trace, MemoryRecord& record, Streams& streams,
                      std::uint64_t& lowest) {
  std::uint64_t first = 0;
  std::uint64_t order = 0;
  trace.for_each([&](const JsonPlace& row) {
    const auto kind = torch_kind(row.at("action").text());
    if (!kind) return;
    HeapEvent event;
    event.kind = *kind;
    event.requested = event.bytes = row.at("size").count();
    if (event.kind != Kind::kOutOfMemory) {
      event.offset = row.at("addr").count();
      lowest = std::min(lowest, event.offset);
    }
    event.stream = streams.number(torch_stream(row));
    event.label = torch_label(row);
    const auto time = row.find("time_us");
    const std::uint64_t at = time ? time->count() * 1000 : ++order * 1000;
    if (record.history.empty()) first = at;
    event.nanoseconds = at - std::min(first, at);
    record.history.push_back(std::move(event));
  });
}

HeapSnapshot read_torch_segments(const JsonPlace& segments, std::int64_t device,
                                 std::uint64_t& lowest) {
  HeapSnapshot snapshot;
  auto& statistics = snapshot.statistics;
  segments.for_each([&](const JsonPlace& segment) {
    if (const auto of = segment.find("device"); of && of->integer() != device) return;
    std::uint64_t at = segment.at("address").count();
    lowest = std::min(lowest, at);
    statistics.mapped_bytes += segment.at("total_size").count();
    segment.at("blocks").for_each([&](const JsonPlace& block) {
      HeapSnapshot::Entry entry;
      entry.offset = at;
      entry.bytes = block.at("size").count();
      at += entry.bytes;
      entry.stream = "stream " + torch_stream(segment);
      const std::string state = block.at("state").text();
      if (state == "active_allocated") {
        entry.state = BlockState::kLive;
        const auto requested = block.find("requested_size");
        entry.requested = requested ? requested->count() : entry.bytes;
        entry.label = torch_label(block);
        statistics.live_bytes += entry.bytes;
        statistics.requested_bytes += entry.requested;
        ++statistics.live_blocks;
      } else {
        statistics.free_bytes += entry.bytes;
        if (state != "inactive") entry.uses.emplace_back("recorded streams", 1);
      }
      snapshot.entries.push_back(std::move(entry));
    });
  });
  std::ranges::sort(snapshot.entries, {}, &HeapSnapshot::Entry::offset);
  return snapshot;
}

}  // namespace

MemoryRecord read_torch(const JsonPlace& file) {
  MemoryRecord record;
  record.source = "PyTorch snapshot";
  Streams streams(record);
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  std::int64_t device = 0;
  // The first device that did something.
  if (const auto traces = file.find("device_traces")) {
    std::int64_t number = 0;
    traces->for_each([&](const JsonPlace& trace) {
      if (record.history.empty()) {
        read_torch_trace(trace, record, streams, lowest);
        if (!record.history.empty()) device = number;
      }
      ++number;
    });
  }
  if (const auto segments = file.find("segments"); segments && !segments->value().empty()) {
    record.snapshot = read_torch_segments(*segments, device, lowest);
    record.snapshot->device = fmt::format("device {} of PyTorch", device);
    for (auto& entry : record.snapshot->entries) entry.offset -= lowest;
  }
  finish(record, lowest);
  return record;
}

}  // namespace segfuse::doctor
