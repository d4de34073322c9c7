#include "base/os/interrupt.h"

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace segfuse {
namespace {

// A signal handler has no argument to reach an object by.
std::atomic<bool> scope_alive{false};
std::atomic<bool> interrupt_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not take a lock");

extern "C" void on_interrupt(int) { interrupt_requested.store(true); }

}  // namespace

InterruptScope::InterruptScope() {
  SEGFUSE_CHECK(!scope_alive.exchange(true), "two interrupt scopes at the same time");
  interrupt_requested = false;
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &former_[i]);
    if (former_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  for (std::size_t i = 0; i < kSignals.size() && !over_; ++i)
    ::sigaction(kSignals[i], &former_[i], nullptr);
  scope_alive = false;
}

void InterruptScope::ignore_others() noexcept {
  for (const int signal : kSignals) ::signal(signal, SIG_IGN);
  over_ = true;
}

bool InterruptScope::requested() const noexcept { return interrupt_requested.load(); }

}  // namespace segfuse
