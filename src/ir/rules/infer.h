#pragma once
// The type and shape rules of all operations, used when an expression is built and when a Fusion is
// verified.

#include <span>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::ir {

struct ValueType {
  DType dtype;
  Extents shape;
  friend bool operator==(const ValueType&, const ValueType&) = default;
};

/// The results of `op`. Sizes that must agree are united in `fusion`. Throws UsageError that names
/// the operation, what was found and what was expected.
std::vector<ValueType> infer(Fusion& fusion, Op op, std::span<const ValId> operands,
                             const Attrs& attrs);

/// The same for an attention and its gradients.
std::vector<ValueType> infer_attention(Fusion& fusion, Op op, std::span<const ValId> operands,
                                       const Attrs& attrs);

/// The same for a scan, whose attributes have their types.
std::vector<ValueType> infer_scan(Fusion& fusion, std::span<const ValId> operands,
                                  const Attrs& attrs);

}  // namespace segfuse::ir
