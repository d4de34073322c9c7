#pragma once
// What a Program holds.

#include <deque>
#include <memory>

#include "base/thread_pool.h"
#include "engine/executor.h"
#include "ir/fusion.h"
#include "segfuse/program.h"

namespace segfuse {

struct Program::State {
  /// An executable for all runs with one backend, device and rounding.
  struct Prepared {
    RunOptions options;                                ///< threads are the pool's
    std::shared_ptr<engine::Accelerator> accelerator;  ///< of the executable, which goes first
    engine::Executable executable;
  };
  explicit State(ir::Fusion program) : fusion(std::move(program)) {}
  /// The one for these options, all of which are given; made when it is first asked for.
  Prepared& prepared(const RunOptions& options);

  ir::Fusion fusion;
  ThreadPool pool{1};
  int pool_threads = 1;  ///< as asked for
  std::deque<Prepared> all;
  Prepared* last = nullptr;
};

}  // namespace segfuse
