// The report in words, and as JSON.

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/json/json.h"
#include "doctor/record.h"
#include "segfuse/doctor/memory.h"

namespace segfuse {

namespace {

using doctor::in_words;

constexpr std::size_t kHolders = 10;

std::string plural(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string holders_text(const std::vector<MemoryHolder>& holders) {
  std::string text;
  for (std::size_t i = 0; i < holders.size() && i < kHolders; ++i)
    text +=
        fmt::format("  {:>10}  {} ({})\n", in_words(holders[i].bytes),
                    holders[i].label.empty() ? std::string_view("(no label)") : holders[i].label,
                    plural(holders[i].buffers, "buffer"));
  if (holders.size() > kHolders)
    text += fmt::format("  and {} more\n", plural(holders.size() - kHolders, "label"));
  return text;
}

Json holders_json(const std::vector<MemoryHolder>& holders) {
  Json rows = Json::array();
  for (const MemoryHolder& holder : holders)
    rows.push_back({{"label", holder.label},
                    {"bytes", holder.bytes},
                    {"requested", holder.requested},
                    {"buffers", holder.buffers}});
  return rows;
}

std::string snapshot_text(const MemoryReport& r) {
  std::string text = fmt::format("{} held", in_words(r.mapped));
  if (r.hard_limit > 0) text += fmt::format(" of at most {}", in_words(r.hard_limit));
  text +=
      fmt::format("\n  {:>10}  live, in {}\n", in_words(r.live), plural(r.live_buffers, "buffer"));
  text += fmt::format("  {:>10}  cached for streams\n", in_words(r.cached));
  text += fmt::format("  {:>10}  free, the largest run {}\n", in_words(r.free),
                      in_words(r.largest_run));
  text += fmt::format(
      "fragmentation\n"
      "  {:>10}  hard: free, outside the largest run\n"
      "  {:>10}  soft: lost to rounding\n"
      "  {:>10}  stream: free, but work may still use it\n",
      in_words(r.hard_fragmentation), in_words(r.soft_fragmentation),
      in_words(r.stream_fragmentation));
  return text;
}

}  // namespace

std::string memory_report_text(const MemoryReport& r) {
  std::string text =
      fmt::format("{}: {}{}, {}\n", r.file, r.source, r.device.empty() ? "" : ", " + r.device,
                  plural(r.events, "event"));
  if (r.has_snapshot)
    text += snapshot_text(r);
  else
    text += fmt::format("{} live at the end, in {}\n", in_words(r.live),
                        plural(r.live_buffers, "buffer"));
  if (!r.holders.empty()) text += "held by\n" + holders_text(r.holders);
  if (r.events > 0) {
    text += fmt::format("peak {} live at {:.6f} s", in_words(r.peak_live), r.peak_seconds);
    if (r.peak_mapped > 0) text += fmt::format(", {} held at most", in_words(r.peak_mapped));
    text +=
        fmt::format("; {}\n{}", plural(r.allocations, "allocation"), holders_text(r.peak_holders));
  }
  if (r.out_of_memory > 0)
    text += fmt::format("{} failed because memory ran out\n", plural(r.out_of_memory, "request"));
  if (r.replay)
    text += fmt::format(
        "the same requests on segfuse's heap: {} held at most for {} live ({} requested), "
        "{} between streams, grown {}{}\n",
        in_words(r.replay->peak_mapped), in_words(r.replay->peak_live),
        in_words(r.replay->peak_requested), plural(r.replay->waits, "wait"),
        plural(r.replay->grown, "time"),
        r.replay->refused > 0 ? fmt::format(", {} refused", r.replay->refused) : "");
  return text;
}

std::string memory_report_json(const MemoryReport& r) {
  Json json{{"file", r.file},
            {"source", r.source},
            {"device", r.device},
            {"events", r.events},
            {"allocations", r.allocations},
            {"out_of_memory", r.out_of_memory},
            {"live", r.live},
            {"live_buffers", r.live_buffers},
            {"peak_live", r.peak_live},
            {"peak_seconds", r.peak_seconds},
            {"peak_mapped", r.peak_mapped}};
  if (r.has_snapshot) {
    json["hard_limit"] = r.hard_limit;
    json["mapped"] = r.mapped;
    json["cached"] = r.cached;
    json["free"] = r.free;
    json["largest_run"] = r.largest_run;
    json["fragmentation"] = {{"hard", r.hard_fragmentation},
                             {"soft", r.soft_fragmentation},
                             {"stream", r.stream_fragmentation}};
  }
  json["holders"] = holders_json(r.holders);
  json["peak_holders"] = holders_json(r.peak_holders);
  Json& timeline = json["timeline"] = Json::array();
  for (const MemoryPoint& p : r.timeline)
    timeline.push_back(
        {{"seconds", p.seconds}, {"live", p.live}, {"cached", p.cached}, {"mapped", p.mapped}});
  if (r.replay)
    json["replay"] = {{"allocations", r.replay->allocations},
                      {"peak_requested", r.replay->peak_requested},
                      {"peak_live", r.replay->peak_live},
                      {"peak_mapped", r.replay->peak_mapped},
                      {"waits", r.replay->waits},
                      {"host_waits", r.replay->host_waits},
                      {"grown", r.replay->grown},
                      {"refused", r.replay->refused}};
  return json_text(json, 2) + "\n";
}

}  // namespace segfuse
