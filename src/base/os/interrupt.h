#pragma once
// The wish that a process ends, as a question that a long loop asks between steps.

#include <signal.h>

#include <array>

namespace segfuse {

/// While alive, the first SIGINT (Ctrl-C), SIGTERM (a scheduler) or SIGHUP (a terminal that closes)
/// only sets a flag; the second one of its kind ends the process as if nothing had been installed.
/// The former handling comes back on destruction. A process that was started with one of them
/// ignored keeps ignoring it. One at a time: a second scope throws InternalError.
class [[nodiscard]] InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const noexcept;
  /// The process is ending: signals that are still to come find nothing to do, also after the end
  /// of this. For ranks, each of which gets the same wish a little earlier or later.
  void ignore_others() noexcept;

 private:
  bool over_ = false;
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace segfuse
