#pragma once
// What a Program holds.

#include <memory>

#include "base/thread_pool.h"
#include "engine/executor.h"
#include "ir/fusion.h"
#include "segfuse/compile.h"

namespace segfuse {

struct Program::State {
  explicit State(ir::Fusion program) : fusion(std::move(program)) {}

  ir::Fusion fusion;
  std::unique_ptr<ThreadPool> pool;
  std::shared_ptr<engine::Accelerator> accelerator;  ///< of the executable, which goes first
  std::unique_ptr<engine::Executable> executable;    ///< made for `options`
  RunOptions options;
};

}  // namespace segfuse
