#pragma once
// The sentence about an index out of range. Kernels only say that there was one.

#include <span>
#include <string>

#include "ir/fusion.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// What a run throws that found one.
class BadIndex : public UsageError {
 public:
  /// `what`: "take: index along axis 0".
  explicit BadIndex(const std::string& what) : UsageError(what + " is out of range") {}
};

/// Throws a UsageError that names the operation, the index and the size, as the interpreter does:
/// indices that are integers among the inputs, or made of such by integers alone, are found again.
/// Else, and where such an input has been overwritten or is absent (of another shape), it throws
/// `found` as it is.
[[noreturn]] void explain(const BadIndex& found, const ir::Fusion& fusion,
                          std::span<const Tensor> inputs);

}  // namespace segfuse::engine
