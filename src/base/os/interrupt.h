#pragma once
// Ctrl-C as a question that a long loop asks between steps.

#include <signal.h>

namespace segfuse {

/// While alive, the first SIGINT only sets a flag; the second one ends the process as if nothing
/// had been installed. The former handling comes back on destruction. A process that was started
/// with SIGINT ignored keeps ignoring it. One at a time: a second one throws InternalError.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const noexcept;

 private:
  struct sigaction former_{};
};

}  // namespace segfuse
