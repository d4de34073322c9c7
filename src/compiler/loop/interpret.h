#pragma once
// The meaning of a kernel, by plain loops in double precision: the reference of every back end.

#include <functional>
#include <span>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::loop {

/// Runs all outer iterations. `globals` are the kernel's buffers that are not row buffers, in their
/// order, as f64 (floats) or i64 (integers and bools). Nothing is rounded; lanes and reductions go
/// in ascending order. Row buffers are NaN before they are written. Returns the status word: 0, or
/// 1 + the number of the check that failed last. InternalError for a position outside of a buffer.
int interpret(const Kernel& kernel, std::span<Tensor> globals,
              const std::function<std::int64_t(const ir::Extent&)>& size);

}  // namespace segfuse::compiler::loop
