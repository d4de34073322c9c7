#pragma once
// Which operand of an attention, or of its gradients, is what.

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

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

/// The type of the bias, the logarithms and the sums of rows of an attention of `dtype`.
inline DType attention_sums(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

inline AttentionOperands attention_operands(const Fusion& fusion, Op op,
                                            std::span<const ValId> operands) {
  AttentionOperands found;
  found.rest = operands.size() - (op == Op::attention_grad ? 3 : 0);
  for (std::size_t i = 3; i < found.rest; ++i)
    (fusion.val(operands[i]).dtype == DType::kBool ? found.mask : found.bias) = i;
  return found;
}

/// A number that may be negative, as `ahead` holds it: the first less the second, which are sizes.
inline std::pair<Extent, Extent> difference(const Extent& number) {
  std::pair<Extent, Extent> both{0, 0};
  for (Extent::Term term : number.terms()) {
    Extent& side = term.coefficient < 0 ? both.second : both.first;
    term.coefficient = std::abs(term.coefficient);
    side = side + Extent::of(term);
  }
  return both;
}

}  // namespace segfuse::ir
