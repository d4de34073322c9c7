#include "runtime/check/listener.h"

#include "base/listeners.h"
#include "base/mutex.h"

namespace segfuse::runtime {
namespace {

Listeners<RaceListener>& listeners() {
  static auto& all = *new Listeners<RaceListener>();
  return all;
}

}  // namespace

RaceListener::RaceListener() { listeners().add(this); }
RaceListener::~RaceListener() { listeners().remove(this); }

std::vector<Finding> RaceListener::findings() const {
  const MutexLock lock(mutex_);
  return findings_;
}

void tell_operation() noexcept {
  listeners().tell([](RaceListener& listener) { ++listener.operations_; });
}

void tell_race(const Finding& finding) {
  listeners().tell([&](RaceListener& listener) {
    const MutexLock own(listener.mutex_);
    listener.findings_.push_back(finding);
  });
}

}  // namespace segfuse::runtime
