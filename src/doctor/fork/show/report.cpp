// The findings as text and as JSON.

#include <fmt/core.h>

#include "base/json/json.h"
#include "doctor/record.h"
#include "segfuse/doctor/fork.h"

namespace segfuse {

namespace {

using doctor::in_words;

/// So many regions are spelled out; the others are counted.
constexpr std::size_t kMaxShown = 40;

std::string region_text(const ForkRegion& region) {
  std::string text =
      fmt::format("{:#x}-{:#x}  {}, {}\n  what      {}\n  owner     {}: {}\n", region.begin,
                  region.end, in_words(region.end - region.begin), region.mechanism,
                  fork_risk_name(region.risk), region.kind, region.owner);
  if (region.live_neighbours)
    text += fmt::format("  beside    {} other live block{}\n", *region.live_neighbours,
                        *region.live_neighbours == 1 ? "" : "s");
  text += fmt::format("  why       {}\n", region.why);
  if (!region.remedy.empty()) text += fmt::format("  remedy    {}\n", region.remedy);
  return text;
}

std::string pairs_text(const char* title,
                       const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string text;
  for (const auto& [name, value] : pairs)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text.empty() ? "" : fmt::format("{:<12}{}\n", title, text);
}

std::string address(std::uint64_t value) { return fmt::format("{:#x}", value); }

Json region_json(const ForkRegion& region) {
  Json json{{"begin", address(region.begin)},
            {"end", address(region.end)},
            {"bytes", region.end - region.begin},
            {"mechanism", region.mechanism},
            {"mapping", region.mapping},
            {"kind", region.kind},
            {"owner", region.owner},
            {"live_neighbours", nullptr},
            {"risk", fork_risk_name(region.risk)},
            {"why", region.why},
            {"remedy", region.remedy}};
  if (region.live_neighbours) json["live_neighbours"] = *region.live_neighbours;
  return json;
}

Json forecast_json(const ForkForecast& forecast) {
  Json json{{"sentence", forecast.sentence},
            {"crashes", forecast.crashes},
            {"oom_kill", forecast.out_of_memory_kill},
            {"enomem", forecast.no_memory},
            {"stall_seconds", forecast.stall_seconds},
            {"private_bytes", forecast.private_bytes},
            {"copied_bytes", forecast.copied_bytes},
            {"copied_at_most", forecast.copied_at_most},
            {"table_bytes", forecast.table_bytes},
            {"split_bytes", forecast.split_bytes},
            {"huge_bytes", forecast.huge_bytes},
            {"processor_seconds", forecast.processor_seconds},
            {"copy_seconds_per_gib", forecast.copy_seconds_per_gib},
            {"table_seconds_per_gib", forecast.table_seconds_per_gib},
            {"slowdown", forecast.slowdown},
            {"huge_pages_needed", forecast.huge_pages_needed},
            {"huge_pages_free", forecast.huge_pages_free},
            {"headroom_bytes", nullptr},
            {"headroom_of", forecast.headroom_of}};
  if (forecast.headroom_bytes) json["headroom_bytes"] = *forecast.headroom_bytes;
  return json;
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json json = Json::object();
  for (const auto& [name, value] : pairs) json[name] = value;
  return json;
}

}  // namespace

std::string fork_report_text(const ForkReport& report, bool all) {
  std::string text =
      fmt::format("process {} ({}): {} thread{}, {} mappings", report.pid, report.command,
                  report.threads, report.threads == 1 ? "" : "s", report.mappings);
  if (report.pinned_bytes > 0) text += fmt::format(", {} pinned", in_words(report.pinned_bytes));
  text += fmt::format("; read in {:.0f} ms\n{}\n", report.seconds * 1e3, report.forecast.sentence);
  std::size_t benign = 0;
  std::size_t shown = 0;
  std::uint64_t benign_bytes = 0;
  for (const ForkRegion& region : report.regions) {
    if (region.risk == ForkRisk::kBenign) {
      ++benign;
      benign_bytes += region.end - region.begin;
      if (!all) continue;
    }
    if (all || shown < kMaxShown) {
      text += "\n" + region_text(region);
      ++shown;
    }
  }
  const std::size_t risks = report.regions.size() - benign;
  if (!all && shown < risks)
    text += fmt::format("\nand {} regions more that are a risk (--all has them)\n", risks - shown);
  if (!all && benign > 0)
    text += fmt::format("\n{} benign region{}, {} in all (--all lists each)\n", benign,
                        benign == 1 ? "" : "s", in_words(benign_bytes));
  if (report.regions.empty())
    text += "\nNo memory is kept from children, wiped in them, or known to be pinned.\n";
  for (const std::string& warning : report.warnings) text += fmt::format("\nrisk: {}\n", warning);
  text += "\n" + pairs_text("versions", report.versions) +
          pairs_text("environment", report.environment);
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  text += fmt::format("{} region{}, {} of them a risk\n", report.regions.size(),
                      report.regions.size() == 1 ? "" : "s", risks);
  return text;
}

namespace {

Json report_json(const ForkReport& report) {
  Json regions = Json::array();
  for (const ForkRegion& region : report.regions) regions.push_back(region_json(region));
  return Json{{"pid", report.pid},
              {"command", report.command},
              {"at_risk", report.at_risk()},
              {"threads", report.threads},
              {"mappings", report.mappings},
              {"mapping_limit", report.mapping_limit},
              {"pinned_bytes", report.pinned_bytes},
              {"forecast", forecast_json(report.forecast)},
              {"regions", regions},
              {"versions", pairs_json(report.versions)},
              {"environment", pairs_json(report.environment)},
              {"warnings", report.warnings},
              {"notes", report.notes},
              {"seconds", report.seconds}};
}

/// Names and variables of a process are bytes; what is not UTF-8 is replaced.
std::string text_of(const Json& json) { return json_text(json, 2) + "\n"; }

}  // namespace

std::string fork_report_json(const ForkReport& report) { return text_of(report_json(report)); }

std::string fork_repair_text(const ForkRepair& repair) {
  const ForkRegion& region = repair.region;
  return fmt::format(
             "{:#x}-{:#x}  {}, given back to children (a thread stood still for {:.2f} ms)\n"
             "  was       {}\n  owner     {}: {}\nfork() copies it from now on while it is pinned; "
             "what registered it may take it away again.\n\n",
             region.begin, region.end, in_words(region.end - region.begin),
             repair.stopped_seconds * 1e3, fork_risk_name(region.risk), region.kind, region.owner) +
         fork_report_text(repair.after);
}

std::string fork_repair_json(const ForkRepair& repair) {
  return text_of(Json{{"repaired", region_json(repair.region)},
                      {"stopped_seconds", repair.stopped_seconds},
                      {"after", report_json(repair.after)}});
}

}  // namespace segfuse
