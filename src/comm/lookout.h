#pragma once
// A thread that asks whether the ranks' work goes on. The host may wait for its GPU, which waits
// for a rank that is lost, and would hear of nothing.

#include <atomic>
#include <functional>
#include <thread>

namespace segfuse::comm {

class Lookout {
 public:
  /// Calls `goes_on` every 10 ms until it returns false; what has to end then, it ends itself.
  explicit Lookout(std::function<bool()> goes_on);
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

 private:
  const std::function<bool()> goes_on_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace segfuse::comm
