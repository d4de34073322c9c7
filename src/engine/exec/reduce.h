#pragma once
// Reductions over any axes of a strided array. Elements are taken in runs of fixed length whose
// states are combined in order, so the bits depend on sizes and strides alone.

#include <span>

#include "base/thread_pool.h"
#include "engine/exec/array.h"
#include "ir/op.h"

namespace segfuse::engine {

/// Reduces `axes` of `from` into the contiguous arrays `to` (two for welford, else one). UsageError
/// for the argmax of nothing.
void reduce(ThreadPool& pool, ir::Op op, const Array& from, const std::vector<std::int64_t>& axes,
            std::span<const Array> to);

}  // namespace segfuse::engine
