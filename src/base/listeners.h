#pragma once
// Listeners to events in this process: called while they live, by one thread at a time.

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/mutex.h"

namespace segfuse {

template <class Listener>
class Listeners {
 public:
  void add(Listener* listener) {
    const MutexLock lock(mutex_);
    all_.push_back(listener);
    ++count_;
  }
  void remove(Listener* listener) {
    const MutexLock lock(mutex_);
    std::erase(all_, listener);
    --count_;
  }
  /// Without a lock: whether telling does anything.
  bool any() const noexcept { return count_ > 0; }
  template <class Tell>
  void tell(const Tell& tell) {
    if (!any()) return;
    const MutexLock lock(mutex_);
    for (Listener* listener : all_) tell(*listener);
  }

 private:
  Mutex mutex_;
  std::vector<Listener*> all_ SEGFUSE_GUARDED_BY(mutex_);
  std::atomic<int> count_ = 0;
};

}  // namespace segfuse
