#include "runtime/check/listener.h"

namespace segfuse::runtime {
namespace {

struct Listeners {
  std::mutex mutex;
  std::vector<RaceListener*> all;
  std::atomic<int> count = 0;
};

Listeners& listeners() {
  static Listeners state;
  return state;
}

}  // namespace

RaceListener::RaceListener() {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  state.all.push_back(this);
  ++state.count;
}

RaceListener::~RaceListener() {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  std::erase(state.all, this);
  --state.count;
}

std::vector<Finding> RaceListener::findings() const {
  const std::lock_guard lock(mutex_);
  return findings_;
}

void tell_operation() noexcept {
  Listeners& state = listeners();
  if (state.count == 0) return;
  const std::lock_guard lock(state.mutex);
  for (RaceListener* listener : state.all) ++listener->operations_;
}

void tell_race(const Finding& finding) {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  for (RaceListener* listener : state.all) {
    const std::lock_guard own(listener->mutex_);
    listener->findings_.push_back(finding);
  }
}

}  // namespace segfuse::runtime
