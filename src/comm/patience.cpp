#include "comm/patience.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace segfuse::comm {

void Patience::rest() {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (!waiting_) since_ = now;
  waiting_ = true;
  const auto waited = now - since_;
  if (waited < 20us) return;
  if (waited < 1ms)
    ::sched_yield();
  else
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 16, 100us));
}

}  // namespace segfuse::comm
