#pragma once
// Matrix products in bfloat16.

#include "ir/fusion.h"

namespace segfuse::learn {

/// Lets every product of f32 values in the fusion, and every attention, take operands that are cast
/// to bf16, and casts its result back; returns what is `root` now. Products within the body of a
/// loop stay as they are. Casts go before operations that only move elements, so
/// that windows and heads are made of bf16 values. Each product has casts of its own: where a
/// value is read by several, its gradients are added in f32.
///
/// With `of_scores`, `root` is what the CRF scores, and the products that it is a sum of stay as
/// they are: those that reach it by additions, factors, choices and moves alone.
///
/// To be called before the fusion is differentiated: products of the gradients are then bf16, too.
ir::ValId round_products(ir::Fusion& fusion, ir::ValId root, bool of_scores = false);

}  // namespace segfuse::learn
