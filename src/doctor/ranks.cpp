#include "segfuse/doctor/ranks.h"

#include <fmt/core.h>

#include <charconv>

#include "base/json/json.h"
#include "base/os/file.h"
#include "comm/meet/job.h"
#include "comm/meet/roster.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

namespace meet = comm::meet;
namespace fs = std::filesystem;

meet::Place place_of(const std::string& target) {
  if (path_exists(target)) {
    if (!path_is_directory(target)) return meet::read_place(target);
    const fs::path file = fs::path(target) / meet::kPlaceFile;
    if (path_exists(file)) return meet::read_place(file);
    throw DataError(
        fmt::format("{}: there is no such file, so no job of several ranks uses this folder now",
                    file.string()));
  }
  const std::size_t colon = target.rfind(':');
  meet::Place place;
  if (colon != target.npos) {
    const char* const end = target.data() + target.size();
    const auto [at, error] = std::from_chars(target.data() + colon + 1, end, place.port);
    if (error != std::errc{} || at != end) place.port = 0;
  }
  if (colon == target.npos || colon == 0 || place.port < 1 || place.port > 65535)
    throw UsageError(
        fmt::format("'{}' is neither the folder of a run, nor its file {}, nor HOST:PORT", target,
                    meet::kPlaceFile));
  place.host = target.substr(0, colon);
  place.key = meet::key_of_environment("").bytes;
  return place;
}

RankReport report_of(const meet::Row& row) {
  RankReport out;
  out.rank = row.rank;
  out.here = row.here;
  out.done = row.left;
  out.awaited = row.awaited;
  out.lost = row.lost;
  out.host = row.host;
  out.pid = row.pid;
  out.step = row.state.step;
  out.work = row.left ? "done" : meet::work_of(row.state);
  out.seconds = row.state.seconds;
  out.silent = row.silent;
  out.free_bytes = row.state.free_bytes;
  return out;
}

std::string memory_text(std::int64_t bytes) {
  if (bytes < 0) return "";
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

std::string duration_text(double seconds) { return meet::text_of(meet::duration_of(seconds)); }

}  // namespace

RanksReport examine_ranks(const std::string& target) {
  const meet::Place place = place_of(target);
  const meet::SteadyClock clock;
  const meet::Rows rows = meet::look(place, clock, {});
  RanksReport report;
  report.where = fmt::format("{}:{}", place.host, place.port);
  report.failure = rows.failure;
  report.generation = rows.generation;
  for (const meet::Row& row : rows.rows) report.ranks.push_back(report_of(row));
  return report;
}

std::string ranks_report_text(const RanksReport& report) {
  std::string awaited;
  std::size_t widest = 4;
  std::size_t left = 0;
  for (const RankReport& rank : report.ranks) {
    if (rank.awaited) awaited += fmt::format("{}{}", awaited.empty() ? "" : ", ", rank.rank);
    widest = std::max(widest, rank.host.size());
    left += rank.lost ? 0 : 1;
  }
  std::string text = fmt::format(
      "{} at {}\n",
      report.ranks.size() == 1 ? "1 rank is" : fmt::format("{} ranks meet", report.ranks.size()),
      report.where);
  if (report.generation > 0)
    text += fmt::format("generation {}: {} of them are left\n", report.generation, left);
  if (!report.failure.empty()) text += fmt::format("failed: {}\n", report.failure);
  if (!awaited.empty()) text += fmt::format("awaited by others: {}\n", awaited);
  text += fmt::format("{:>5}  {:<{}}  {:>7}  {:>8}  {:>7}  {:>9}  {}\n", "rank", "host", widest,
                      "pid", "step", "for", "free", "is");
  for (const RankReport& rank : report.ranks) {
    if (!rank.here) {
      text += fmt::format("{:>5}  has not come yet\n", rank.rank);
      continue;
    }
    text +=
        fmt::format("{:>5}  {:<{}}  {:>7}  {:>8}  {:>7}  {:>9}  {}{}", rank.rank, rank.host, widest,
                    rank.pid, rank.step, duration_text(rank.seconds), memory_text(rank.free_bytes),
                    rank.work, rank.awaited ? "; others wait for it" : "");
    if (rank.lost)
      text += "; lost, the others go on";
    else if (rank.silent > 2)
      text += fmt::format("; silent for {}", duration_text(rank.silent));
    text += "\n";
  }
  return text;
}

std::string ranks_report_json(const RanksReport& report) {
  Json ranks = Json::array();
  for (const RankReport& rank : report.ranks) {
    Json one{{"rank", rank.rank}, {"here", rank.here}};
    if (rank.here)
      one.update({{"host", rank.host},
                  {"pid", rank.pid},
                  {"step", rank.step},
                  {"is", rank.work},
                  {"seconds", rank.seconds},
                  {"silent_seconds", rank.silent},
                  {"free_bytes", rank.free_bytes < 0 ? Json() : Json(rank.free_bytes)},
                  {"done", rank.done},
                  {"lost", rank.lost},
                  {"awaited", rank.awaited}});
    ranks.push_back(std::move(one));
  }
  const Json json{{"where", report.where},
                  {"generation", report.generation},
                  {"failure", report.failure.empty() ? Json() : Json(report.failure)},
                  {"ranks", std::move(ranks)}};
  return json_text(json, 2) + "\n";
}

}  // namespace segfuse
