#pragma once

#include <chrono>

namespace segfuse::comm {

/// How to wait for what only a look can tell: at once again at first, then after the other threads
/// of this processor, and after sleep when it takes longer.
class Patience {
 public:
  void rest();
  void start_again() { waiting_ = false; }

 private:
  std::chrono::steady_clock::time_point since_;
  bool waiting_ = false;
};

}  // namespace segfuse::comm
