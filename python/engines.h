#pragma once
// The engines that calls run on.

#include <memory>
#include <mutex>

#include "segfuse/semicrf.h"

namespace segfuse::python {

/// The CPU engine, made at its first use, one call at a time.
class CpuEngine {
 public:
  /// The process's engine. A child made by fork starts with a new one: threads are not inherited.
  static CpuEngine& instance();

  void set_threads(int threads);
  int threads();
  /// As it was set; for a child made by fork, in which nobody else runs.
  int threads_without_lock() const;

  template <class Call>
  void run(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) engine_ = std::make_unique<semicrf::Engine>(threads_);
    call(*engine_);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<semicrf::Engine> engine_;
  int threads_ = 0;
};

}  // namespace segfuse::python
