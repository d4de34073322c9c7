#pragma once
// Listeners to what the race checkers of this process examine and find.

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/mutex.h"
#include "runtime/check/finding.h"

namespace segfuse::runtime {

/// Collects from when it is made until it is destroyed.
class RaceListener {
 public:
  RaceListener();
  ~RaceListener();
  RaceListener(const RaceListener&) = delete;
  RaceListener& operator=(const RaceListener&) = delete;

  /// Launches, copies and fills that were looked at.
  std::uint64_t operations() const { return operations_; }
  std::vector<Finding> findings() const;

 private:
  friend void tell_operation() noexcept;
  friend void tell_race(const Finding& finding);
  std::atomic<std::uint64_t> operations_ = 0;
  mutable Mutex mutex_;
  std::vector<Finding> findings_ SEGFUSE_GUARDED_BY(mutex_);
};

/// Called by race checkers.
void tell_operation() noexcept;
void tell_race(const Finding& finding);

}  // namespace segfuse::runtime
