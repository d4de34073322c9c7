#pragma once
// A clock that tests move.

#include <atomic>

#include "comm/meet/clock.h"

namespace segfuse::test {

class ManualClock final : public comm::meet::Clock {
 public:
  comm::meet::Time now() const override {
    return comm::meet::Time(std::chrono::hours(1)) + comm::meet::Duration(passed_.load());
  }
  std::chrono::milliseconds patience(comm::meet::Time until) const override {
    return std::chrono::milliseconds(until <= now() ? 0 : 2);
  }
  void advance(comm::meet::Duration by) { passed_ += by.count(); }

 private:
  std::atomic<comm::meet::Duration::rep> passed_ = 0;
};

}  // namespace segfuse::test
