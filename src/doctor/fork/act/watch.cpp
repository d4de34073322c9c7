// What changed between two readings of a process.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <thread>
#include <tuple>

#include "base/json/json.h"
#include "base/os/interrupt.h"
#include "doctor/record.h"
#include "segfuse/doctor/fork.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

using doctor::in_words;

/// Regions are the same if they stand at the same place for the same reason.
using Key = std::tuple<std::uint64_t, std::uint64_t, std::string>;

std::map<Key, const ForkRegion*> by_key(const ForkReport& report) {
  std::map<Key, const ForkRegion*> regions;
  for (const ForkRegion& region : report.regions)
    regions[{region.begin, region.end, region.mechanism}] = &region;
  return regions;
}

std::string words_of(const ForkRegion& region) {
  return fmt::format("{:#x}-{:#x}  {}, {}: {}, {}", region.begin, region.end,
                     in_words(region.end - region.begin), region.mechanism,
                     fork_risk_name(region.risk), region.owner);
}

/// A stall is another one from half as much again on, if anybody would notice.
bool other_stall(double before, double after) {
  constexpr double kNoticeable = 0.005;
  const double less = std::max(kNoticeable, std::min(before, after));
  return std::max(before, after) > 1.5 * less;
}

bool other_forecast(const ForkForecast& a, const ForkForecast& b) {
  return a.crashes != b.crashes || a.out_of_memory_kill != b.out_of_memory_kill ||
         a.no_memory != b.no_memory || a.copied_bytes != b.copied_bytes ||
         other_stall(a.stall_seconds, b.stall_seconds);
}

}  // namespace

std::vector<ForkChange> fork_changes(const ForkReport& before, const ForkReport& after) {
  std::vector<ForkChange> changes;
  const auto were = by_key(before);
  const auto are = by_key(after);
  for (const auto& [key, region] : are) {
    const auto found = were.find(key);
    if (found == were.end())
      changes.push_back({ForkChange::Kind::kAppeared, *region, words_of(*region)});
    else if (found->second->risk != region->risk)
      changes.push_back(
          {ForkChange::Kind::kChanged, *region,
           words_of(*region) + fmt::format(" (it was: {})", fork_risk_name(found->second->risk))});
  }
  for (const auto& [key, region] : were)
    if (!are.contains(key))
      changes.push_back({ForkChange::Kind::kGone, *region, words_of(*region)});
  if (other_forecast(before.forecast, after.forecast))
    changes.push_back({ForkChange::Kind::kForecast, {}, after.forecast.sentence});
  for (const std::string& warning : after.warnings)
    if (std::find(before.warnings.begin(), before.warnings.end(), warning) == before.warnings.end())
      changes.push_back({ForkChange::Kind::kWarning, {}, warning});
  return changes;
}

std::string fork_change_name(ForkChange::Kind kind) {
  switch (kind) {
    case ForkChange::Kind::kAppeared: return "new";
    case ForkChange::Kind::kGone: return "gone";
    case ForkChange::Kind::kChanged: return "changed";
    case ForkChange::Kind::kForecast: return "forecast";
    case ForkChange::Kind::kWarning: break;
  }
  return "risk";
}

std::string fork_change_text(const ForkChange& change, double seconds) {
  return fmt::format("{:9.2f} s  {:<9} {}\n", seconds, fork_change_name(change.kind),
                     change.sentence);
}

std::string fork_change_json(const ForkChange& change, double seconds) {
  Json json{{"seconds", seconds},
            {"change", fork_change_name(change.kind)},
            {"sentence", change.sentence}};
  if (change.region.end > 0) {
    json["begin"] = fmt::format("{:#x}", change.region.begin);
    json["end"] = fmt::format("{:#x}", change.region.end);
    json["risk"] = fork_risk_name(change.region.risk);
    json["kind"] = change.region.kind;
  }
  return json_text(json) + "\n";
}

bool watch_fork(int pid, const ForkWatch& watch) {
  using Clock = std::chrono::steady_clock;
  if (watch.interval < std::chrono::milliseconds(10) || watch.interval > std::chrono::hours(1))
    throw UsageError(
        fmt::format("a reading every {} ms; expected 10 to 3600000", watch.interval.count()));
  const InterruptScope interrupt;
  const auto stop = [&] { return watch.stop ? watch.stop() : interrupt.requested(); };
  const auto start = Clock::now();
  ForkReport before = examine_fork(pid);
  bool risk = before.at_risk();
  watch.first(before);
  while (!stop()) {
    // In small steps, so that a request to stop is seen soon.
    for (const auto next = Clock::now() + watch.interval; Clock::now() < next && !stop();)
      std::this_thread::sleep_for(
          std::min<std::chrono::milliseconds>(watch.interval, std::chrono::milliseconds(50)));
    ForkReport after;
    try {
      after = examine_fork(pid);
    } catch (const UsageError& error) {
      watch.ended(error.what());
      return risk;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (const ForkChange& change : fork_changes(before, after)) watch.changed(change, seconds);
    risk = risk || after.at_risk();
    before = std::move(after);
  }
  return risk;
}

}  // namespace segfuse
