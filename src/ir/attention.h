#pragma once
// Which operand of an attention, or of its gradients, is what.

#include <cstddef>
#include <optional>
#include <span>

#include "ir/fusion.h"

namespace segfuse::ir {

/// By operand: q, k and v are the first three.
struct AttentionOperands {
  std::optional<std::size_t> bias;
  std::optional<std::size_t> mask;
  /// Of the gradients: the logarithms, the cotangent and the row sums begin here; else the number
  /// of operands.
  std::size_t rest = 0;
};

inline AttentionOperands attention_operands(const Fusion& fusion, Op op,
                                            std::span<const ValId> operands) {
  AttentionOperands found;
  found.rest = operands.size() - (op == Op::attention_grad ? 3 : 0);
  for (std::size_t i = 3; i < found.rest; ++i)
    (fusion.val(operands[i]).dtype == DType::kBool ? found.mask : found.bias) = i;
  return found;
}

}  // namespace segfuse::ir
