#pragma once
// The state of a Program.

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "engine/executable.h"
#include "ir/fusion.h"
#include "segfuse/program.h"

namespace segfuse {

struct Program::State {
  /// An executable for all runs with one back end, device and set of flags, whatever their
  /// contexts.
  struct Prepared {
    RunOptions options;  ///< of the last run with it; threads are the pool's
    engine::ExecutableOptions how;
    engine::Executable executable;
  };
  explicit State(ir::Fusion program);
  /// The one for these options, all of which are given; made when it is first asked for.
  Prepared& prepared(const RunOptions& options);

  ir::Fusion fusion;
  std::vector<std::size_t> overwritten;  ///< places of inputs
  Mutex running;                         ///< runs from several threads wait for each other
  ThreadPool pool{1};
  int pool_threads = 1;  ///< as requested
  std::deque<Prepared> all;
  Prepared* last = nullptr;
};

}  // namespace segfuse
