#pragma once
// Who is there, where each one is, and who is to blame: rank 0's book of the meeting. It knows no
// sockets and no clock; times are given to it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/meet/clock.h"
#include "comm/meet/wire/message.h"

namespace segfuse::comm::meet {

/// "rank 3 (host b, pid 812)".
std::string name_of_rank(std::int64_t rank, const std::string& host, std::int64_t pid);
/// "rank 3 (host b, pid 812) was lost in step 1201, backward, 0.4 s after its last report: its
/// connection closed". `silent` counts from the last heartbeat.
std::string loss_of(const std::string& name, const State& state, Duration silent,
                    std::string_view why);
/// "ranks 2, 3 and 5".
std::string list_of(const std::vector<std::int64_t>& ranks);
/// "0.4 s", "63 s".
std::string text_of(Duration duration);

class Roster {
 public:
  Roster(std::int64_t count, const Timings& timings) : timings_(timings) {
    members_.resize(static_cast<std::size_t>(count));
  }

  std::int64_t count() const { return static_cast<std::int64_t>(members_.size()); }
  void came(std::int64_t rank, const Here& here, Time now);
  bool is_here(std::int64_t rank) const { return at(rank).here; }
  bool all_here() const;
  void heard(std::int64_t rank, Time now) { at(rank).heard = now; }
  /// Nobody counts as silent until now.
  void forgive(Time now);
  void moved(std::int64_t rank, const State& state, Time now);
  void left(std::int64_t rank, Time now);
  bool has_left(std::int64_t rank) const { return at(rank).left; }
  bool all_left() const;
  /// The others go on without it: from now on it is none of them, and nobody has waited yet.
  void lose(std::int64_t rank, Time now);
  /// One that was lost is there again.
  void take_in(std::int64_t rank, const Here& here, Time now);
  bool is_lost(std::int64_t rank) const { return at(rank).lost; }
  /// Those that are not lost.
  std::vector<std::int64_t> ranks() const;

  const Here& here(std::int64_t rank) const { return at(rank).said; }
  const State& state(std::int64_t rank) const { return at(rank).state; }
  std::string name(std::int64_t rank) const;

  /// The ranks that have not come.
  std::string missing() const;
  Failure lost(std::int64_t rank, Time now, std::string_view why) const;
  /// Silence, or a rank that does not move while others wait for it.
  std::optional<Failure> judge(Time now) const;
  Rows rows(Time now) const;

 private:
  void wait_anew(Time now);
  struct Member {
    bool here = false;
    bool left = false;
    bool lost = false;
    Here said{};
    State state{};
    Time heard{};
    Time since{};  ///< it is in this place
  };
  Member& at(std::int64_t rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& at(std::int64_t rank) const { return members_[static_cast<std::size_t>(rank)]; }
  static bool counts(const Member& member) { return member.here && !member.lost; }
  static bool waits(const Member& member) {
    return counts(member) && !member.left && member.state.phase == Phase::kExchange;
  }
  /// Where somebody waits: those that are not in the exchange; else those that are furthest behind
  /// in it, unless all are in one place.
  std::vector<std::int64_t> awaited() const;
  std::optional<Failure> stuck(Time now) const;

  Timings timings_;
  std::vector<Member> members_;
};

}  // namespace segfuse::comm::meet
