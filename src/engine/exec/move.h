#pragma once
// Copies and the movement operations that need them. Shapes were checked when the plan was made;
// element types of source and target are equal. All splits depend on sizes alone.

#include "base/thread_pool.h"
#include "engine/exec/array.h"
#include "ir/op.h"

namespace segfuse::engine {

/// Elements a task should have at least, so that waking a worker pays.
inline constexpr std::int64_t kTaskElements = 32768;

/// to[i] = from[i]; equal shapes, any strides, no overlap.
void copy(ThreadPool& pool, const Array& from, const Array& to);
/// Sets every element to the one at `value` (of the array's type).
void fill(ThreadPool& pool, const Array& to, const void* value);
void pad(ThreadPool& pool, const Array& from, const Array& to, const Shape& low, const void* value);
/// to[outer, i..., inner] = from[outer, indices[i...], inner]. UsageError for a bad index, before
/// anything is written. `to` is contiguous.
void take(ThreadPool& pool, const Array& from, const Array& indices, std::size_t axis,
          const Array& to);
void gather(ThreadPool& pool, const Array& from, const Array& indices, std::size_t axis,
            const Array& to);
/// The adjoint of take: sums in the order of the updates.
void scatter_add(ThreadPool& pool, const Array& updates, const Array& indices, std::size_t axis,
                 const Array& to);
/// The adjoint of unfold: each element sums its windows in ascending order of their offset.
void fold(ThreadPool& pool, const Array& from, std::size_t axis, std::int64_t stride,
          std::int64_t dilation, const Array& to);
void iota(const Array& to);
/// f16 or bf16 to f32, and back with rounding to nearest even.
void convert_half(DType half, const std::byte* from, float* to, std::int64_t n);
void convert_to_half(DType half, const float* from, std::byte* to, std::int64_t n);

}  // namespace segfuse::engine
