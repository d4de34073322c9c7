#pragma once
// Attention as one operation: found in a program that was written with products and a softmax, and
// written out again where it has to be taken apart.

#include <map>
#include <span>

#include "ir/fusion.h"

namespace segfuse::compiler {

/// The value that replaces a given one.
using Replaced = std::map<ir::ValId, ir::ValId>;

/// Lets `attention` stand for each softmax(scale * q k^T + bias, masked) v that the roots need, of
/// f32 or f64 without a cast in between, unless something else that they need reads what lies
/// within, or that is in `kept`. The scores may be written with any factors and biases, and then
/// any `where` that fills one number in; the softmax as Builder::softmax has it, as
/// exp(s - logsumexp(s)), or as exp(s - max(s)) over its sum. What only positions decide (n <= m +
/// a number) is no operand. Nothing is erased. Adds to `replaced` what was replaced, roots
/// included.
void find_attention(ir::Fusion& fusion, std::span<const ir::ValId> roots,
                    std::span<const ir::ValId> kept, Replaced& replaced);

/// The same for a program, whose outputs are the roots; what nobody needs any more is erased.
/// Whether there was one.
bool find_attention(ir::Fusion& fusion);

/// The results of an attention, or of its gradients, by products, sums and elementwise operations;
/// its uses read them. Of bf16, products and weights are bf16, and scores, softmax and its gradient
/// f32.
void write_attention_out(ir::Fusion& fusion, ir::ExprId attention, Replaced& replaced);

/// Writes all out. Whether there was one.
bool write_attention_out(ir::Fusion& fusion);

/// The largest sizes of rows, of queries and of values, and the most axes that kernels for GPUs
/// have.
inline constexpr std::int64_t kMaxGpuAttention = 256;
inline constexpr std::int64_t kMaxGpuAttention16 = 128;  // of bf16
inline constexpr std::size_t kMaxGpuAttentionAxes = 8;
/// Writes those out that GPUs have no kernel for: with larger rows, or rows of a size that is not a
/// number. Whether there was one.
bool write_large_attention_out(ir::Fusion& fusion);

}  // namespace segfuse::compiler
