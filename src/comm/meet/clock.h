#pragma once
// The time by which ranks are judged. Tests have one that they move.

#include <algorithm>
#include <chrono>

namespace segfuse::comm::meet {

using Duration = std::chrono::steady_clock::duration;
using Time = std::chrono::steady_clock::time_point;

class Clock {
 public:
  Clock() = default;
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual Time now() const = 0;
  /// How long to sleep, at most, before looking whether `until` has come.
  virtual std::chrono::milliseconds patience(Time until) const = 0;
};

class SteadyClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now(); }
  std::chrono::milliseconds patience(Time until) const override {
    using std::chrono::milliseconds;
    return std::clamp(std::chrono::ceil<milliseconds>(until - now()), milliseconds(0),
                      milliseconds(10'000));
  }
};

inline double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
inline Duration duration_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

/// The limits of a meeting.
struct Timings {
  Duration heartbeat = std::chrono::seconds(1);
  int missing = 3;                             ///< heartbeats, and a rank is lost
  Duration join = std::chrono::seconds(60);    ///< for all ranks to come
  Duration stuck = std::chrono::seconds(60);   ///< in one place while others wait: --comm-timeout
  Duration settle = std::chrono::minutes(10);  ///< for a newcomer, from its links to its first step
  Duration slow = std::chrono::seconds(5);     ///< for proving the key
  Duration retry = std::chrono::milliseconds(200);  ///< between two attempts to connect

  /// Nothing was heard for so long: the last heartbeat may have been just on its way.
  Duration silence() const { return heartbeat * (missing + 1); }
  /// For a newcomer to come to the others once it may, and to connect: less than they wait for it.
  Duration arrive() const { return join / 2; }
  /// What a library says of a failed exchange waits so long for the cause of it.
  Duration hint() const { return heartbeat * (missing + 2); }
};

}  // namespace segfuse::comm::meet
