#include "comm/launch/signals.h"

#include <atomic>

#include "base/check.h"

namespace segfuse::comm::launch {
namespace {

// A signal handler has no argument to reach an object by.
std::atomic<bool> alive{false};
std::array<std::atomic<std::uint32_t>, PassedSignals::kSignals.size()> counts{};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a signal handler takes no lock");

extern "C" void on_passed_signal(int signal) {
  for (std::size_t i = 0; i < PassedSignals::kSignals.size(); ++i)
    if (PassedSignals::kSignals[i] == signal) ++counts[i];
}

}  // namespace

PassedSignals::PassedSignals() {
  SEGFUSE_CHECK(!alive.exchange(true), "two launchers that pass signals at the same time");
  struct sigaction action{};
  action.sa_handler = on_passed_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    counts[i] = 0;
    ::sigaction(kSignals[i], nullptr, &former_[i]);
    if (former_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

PassedSignals::~PassedSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &former_[i], nullptr);
  alive = false;
}

PassedSignals::Cursor PassedSignals::now() noexcept {
  Cursor cursor{};
  for (std::size_t i = 0; i < kSignals.size(); ++i) cursor[i] = counts[i];
  return cursor;
}

int PassedSignals::next(Cursor& cursor) noexcept {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (cursor[i] != counts[i]) {
      ++cursor[i];
      return kSignals[i];
    }
  return 0;
}

bool PassedSignals::end_was_asked() noexcept {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] != SIGUSR1 && counts[i] > 0) return true;
  return false;
}

}  // namespace segfuse::comm::launch
