#pragma once
// The semi-Markov CRF operations of the IR over the engine of segfuse/semicrf.h.

#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "engine/exec/array.h"
#include "ir/interpret/interpreter.h"
#include "segfuse/semicrf.h"
#include "semicrf/cpu/engine_over_pool.h"

namespace segfuse::engine {

/// Operands and results as ops.def says. A label that changes without segment_start is a DataError.
/// Any thread may call; one call runs at a time.
class SemicrfOps {
 public:
  explicit SemicrfOps(ThreadPool& pool, semicrf::EngineOptions options = {})
      : engine_(semicrf::EngineOverPool::make(pool, options)) {}

  /// `loss` is contiguous.
  void loss(std::span<const Array> operands, const Array& loss);
  /// A gradient without data is not wanted.
  void loss_grad(std::span<const Array> operands, std::span<const Array> gradients);

 private:
  template <class T>
  void loss_of(std::span<const Array> operands, const Array& loss) SEGFUSE_REQUIRES(calls_);
  template <class T>
  void loss_grad_of(std::span<const Array> operands, std::span<const Array> gradients)
      SEGFUSE_REQUIRES(calls_);
  void read_gold(std::span<const Array> operands, std::size_t scores) SEGFUSE_REQUIRES(calls_);

  Mutex calls_;
  semicrf::Engine engine_ SEGFUSE_GUARDED_BY(calls_);
  semicrf::Segmentations gold_ SEGFUSE_GUARDED_BY(calls_);
  std::vector<double> values_ SEGFUSE_GUARDED_BY(calls_);
};

/// For the interpreter: the plain recursion in double.
ir::OpaqueOps reference_opaque_ops();

}  // namespace segfuse::engine
