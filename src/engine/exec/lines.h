#pragma once
// Operations along one axis that need its elements in order: running results and sorting. A line
// is one task's, from its beginning to its end, so the bits depend on its elements alone.

#include "base/thread_pool.h"
#include "engine/exec/array.h"
#include "ir/op.h"

namespace segfuse::engine {

/// cumsum and the like of `from`, or linear_scan of `from` and `second`; from the end of the axis
/// on if `reverse`. All arrays are contiguous, of one shape and type. f32 is carried in double.
void scan(ThreadPool& pool, ir::Op op, const Array& from, const Array& second, std::size_t axis,
          bool reverse, const Array& to);

/// The elements along the axis in order, and where they were (i64); null where that is not wanted.
/// Equal elements keep their order, NaN is last (first if `descending`). All arrays are contiguous.
void sort(ThreadPool& pool, const Array& from, std::size_t axis, bool descending,
          const Array* values, const Array* places);

}  // namespace segfuse::engine
