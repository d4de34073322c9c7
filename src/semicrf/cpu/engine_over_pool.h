#pragma once
// An Engine on the threads that run programs.

#include "base/thread_pool.h"
#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

struct EngineOverPool {
  /// The pool outlives the engine.
  static Engine make(ThreadPool& pool, EngineOptions options = {});
};

}  // namespace segfuse::semicrf
