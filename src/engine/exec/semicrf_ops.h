#pragma once
// The semi-Markov CRF operations of the IR over the engine of segfuse/semicrf.h.

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "compiler/interpret/interpreter.h"
#include "engine/exec/array.h"
#include "segfuse/semicrf.h"
#include "semicrf/cpu/engine_over_pool.h"

namespace segfuse::engine {

/// Operands and results as ops.def says. A label that changes without segment_start is a DataError.
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
  void loss_of(std::span<const Array> operands, const Array& loss);
  template <class T>
  void loss_grad_of(std::span<const Array> operands, std::span<const Array> gradients);
  void read_gold(std::span<const Array> operands, std::size_t scores);

  semicrf::Engine engine_;
  semicrf::Segmentations gold_;
  std::vector<double> values_;
};

/// For the interpreter: the plain recursion in double.
compiler::OpaqueOps reference_opaque_ops();

}  // namespace segfuse::engine
