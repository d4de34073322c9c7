#pragma once
// Signals of the launcher, for its ranks.

#include <signal.h>

#include <array>
#include <cstdint>

namespace segfuse::comm::launch {

/// While alive, the signals only count; a caller that passes them on has a cursor. One at a time.
class [[nodiscard]] PassedSignals {
 public:
  PassedSignals();
  ~PassedSignals();
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
  using Cursor = std::array<std::uint32_t, kSignals.size()>;
  /// One that has seen all that came until now.
  static Cursor now() noexcept;
  /// A signal that this cursor has not seen; 0: none.
  static int next(Cursor& cursor) noexcept;
  /// Whether there was one that asks to end.
  static bool end_was_asked() noexcept;

 private:
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace segfuse::comm::launch
