#pragma once
// The reference meaning of a Fusion: plain loops in double precision, one expression after the
// other, everything materialised. Slow and obvious; tests compare every other evaluator against it.

#include <functional>
#include <span>
#include <vector>

#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {

/// Library operations that the compiler does not know itself. A function gets the operands widened
/// (floats as f64; integers and bools as i64) and returns all results in f64. An empty function
/// makes interpret() refuse Fusions that need it (UsageError).
struct OpaqueOps {
  using Function = std::function<std::vector<Tensor>(std::span<const Tensor> operands)>;
  Function semicrf_loss;
  Function semicrf_loss_grad;
};

struct InterpretOptions {
  /// Float outputs are returned as f64, whatever their type in the Fusion; else in their own type.
  bool outputs_as_f64 = true;
  /// Rounds every float value to its type after each expression. Without it nothing is rounded:
  /// the result is that of the same program in double.
  bool round_to_dtype = false;
};

/// Evaluates `fusion` on `inputs` (in the order of fusion.inputs(), of their types). Integers wrap
/// in their own type; bools are 0 or 1; a cast of a float to an integer truncates and saturates.
/// Aliases are not written back. Throws UsageError for inputs that do not fit and for indices out
/// of range (it names operation, index and size).
std::vector<Tensor> interpret(const Fusion& fusion, std::span<const Tensor> inputs,
                              const OpaqueOps& opaque = {}, const InterpretOptions& options = {});

}  // namespace segfuse::ir
