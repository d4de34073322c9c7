#include "comm/meet/roster.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

namespace segfuse::comm::meet {
namespace {

auto order_of(const State& state) { return std::tuple(state.generation, state.step, state.bucket); }

std::string goal_of(const State& state) {
  if (state.bucket < 0) return fmt::format("the exchange of step {}", state.step);
  return fmt::format("bucket {} of step {}", state.bucket, state.step);
}

}  // namespace

std::string name_of_rank(std::int64_t rank, const std::string& host, std::int64_t pid) {
  return fmt::format("rank {} (host {}, pid {})", rank, host, pid);
}

std::string list_of(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kMax = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t shown = std::min(ranks.size(), kMax);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

std::string text_of(Duration duration) {
  const double seconds = seconds_of(duration);
  return seconds < 9.95 ? fmt::format("{:.1f} s", std::max(seconds, 0.0))
                        : fmt::format("{:.0f} s", seconds);
}

std::string loss_of(const std::string& name, const State& state, Duration silent,
                    std::string_view why) {
  return fmt::format("{} was lost in {}, {} after its last report: {}", name, place_of(state),
                     text_of(silent), why);
}

void Roster::came(std::int64_t rank, const Here& here, Time now) {
  Member& member = at(rank);
  member = {};
  member.here = true;
  member.said = here;
  member.heard = now;
  member.since = now;
}

bool Roster::all_here() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.here; });
}

void Roster::left(std::int64_t rank, Time now) {
  at(rank).left = true;
  at(rank).since = now;
}

bool Roster::all_left() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.left || m.lost; });
}

void Roster::lose(std::int64_t rank, Time now) {
  at(rank).lost = true;
  wait_anew(now);
}

void Roster::take_in(std::int64_t rank, const Here& here, Time now) {
  came(rank, here, now);
  wait_anew(now);
}

/// Nobody has waited for anybody yet, and whose work was done has more of it.
void Roster::wait_anew(Time now) {
  for (Member& member : members_) {
    member.left = false;
    member.since = now;
  }
}

std::vector<std::int64_t> Roster::ranks() const {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < count(); ++rank)
    if (!is_lost(rank)) ranks.push_back(rank);
  return ranks;
}

void Roster::forgive(Time now) {
  for (Member& member : members_) member.heard = now;
}

void Roster::moved(std::int64_t rank, const State& state, Time now) {
  Member& member = at(rank);
  // It was there before this heartbeat came.
  if (!state.same_place(member.state))
    member.since = std::max(member.since, now - duration_of(std::clamp(state.seconds, 0.0, 1e6)));
  member.state = state;
  member.heard = now;
}

std::string Roster::name(std::int64_t rank) const {
  return name_of_rank(rank, at(rank).said.host, at(rank).said.pid);
}

std::string Roster::missing() const {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < count(); ++rank)
    if (!is_here(rank)) ranks.push_back(rank);
  return list_of(ranks);
}

Failure Roster::lost(std::int64_t rank, Time now, std::string_view why) const {
  return {false, rank, loss_of(name(rank), at(rank).state, now - at(rank).heard, why)};
}

std::optional<Failure> Roster::judge(Time now) const {
  for (std::int64_t rank = 0; rank < count(); ++rank) {
    const Member& member = at(rank);
    if (!counts(member) || member.left || now - member.heard <= timings_.silence()) continue;
    return lost(rank, now, fmt::format("{} heartbeats are missing", timings_.missing));
  }
  return stuck(now);
}

std::vector<std::int64_t> Roster::awaited() const {
  std::vector<std::int64_t> working;
  std::vector<std::int64_t> behind;
  const Member* least = nullptr;
  bool all_equal = true;
  bool anybody_waits = false;
  for (std::int64_t rank = 0; rank < count(); ++rank) {
    const Member& member = at(rank);
    if (!counts(member)) continue;
    if (!waits(member)) {
      working.push_back(rank);
      continue;
    }
    anybody_waits = true;
    if (least != nullptr && order_of(member.state) != order_of(least->state)) all_equal = false;
    if (least == nullptr || order_of(member.state) < order_of(least->state)) {
      least = &member;
      behind.clear();
    }
    if (order_of(member.state) == order_of(least->state)) behind.push_back(rank);
  }
  if (!anybody_waits) return {};
  if (!working.empty()) return working;
  return all_equal ? std::vector<std::int64_t>{} : behind;
}

std::optional<Failure> Roster::stuck(Time now) const {
  const auto long_enough = [&](const Member& member) {
    return now - member.since >= timings_.stuck;
  };
  std::int64_t waiting = 0;
  const Member* example = nullptr;  // the furthest of those who have waited long enough
  for (const Member& member : members_) {
    if (!waits(member)) continue;
    ++waiting;
    if (!long_enough(member)) continue;
    if (example == nullptr || order_of(member.state) > order_of(example->state)) example = &member;
  }
  if (example == nullptr) return {};
  const std::vector<std::int64_t> late = awaited();
  if (late.empty()) {
    if (!std::all_of(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.lost || long_enough(m); }))
      return {};
    return Failure{false, -1,
                   fmt::format("{} has not ended for {}, and all {} ranks have joined it",
                               goal_of(example->state), text_of(now - example->since), waiting)};
  }
  std::int64_t worst = -1;
  for (const std::int64_t rank : late)
    if (long_enough(at(rank)) && (worst < 0 || at(rank).since < at(worst).since)) worst = rank;
  if (worst < 0) return {};  // who moves is slow, and no failure
  if (waits(at(worst))) waiting -= static_cast<std::int64_t>(late.size());
  const Member& blamed = at(worst);
  return Failure{
      false, worst,
      fmt::format("{} has {} and has not joined {}; {} {}", name(worst),
                  blamed.left ? "ended its work"
                              : fmt::format("been {} for {}", work_of(blamed.state),
                                            text_of(now - blamed.since)),
                  goal_of(example->state), waiting, waiting == 1 ? "rank waits" : "ranks wait")};
}

Rows Roster::rows(Time now) const {
  Rows out;
  out.count = count();
  const std::vector<std::int64_t> late = awaited();
  for (std::int64_t rank = 0; rank < count(); ++rank) {
    const Member& member = at(rank);
    Row row{rank,
            member.said.host,
            member.said.pid,
            member.state,
            0,
            member.here,
            member.left,
            std::find(late.begin(), late.end(), rank) != late.end(),
            member.lost};
    if (member.here) {
      row.state.seconds = seconds_of(now - member.since);
      row.silent = seconds_of(now - member.heard);
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace segfuse::comm::meet
