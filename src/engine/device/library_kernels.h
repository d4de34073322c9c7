#pragma once
// Kernels that no group is lowered to: copies of views, sums into places that indices or windows
// choose, conversions, and matrix products where the device has no library for them. Texts of their
// own, in the manner of printed kernels: one argument of 8-byte words.

#include <cstdint>
#include <string>
#include <vector>

#include "ir/op.h"
#include "runtime/kernels.h"

namespace segfuse::engine {

/// What a launch needs besides addresses. `words` are the argument; those that are addresses come
/// first, in the order that each function says.
struct LibraryLaunch {
  runtime::GpuProgram program;
  std::string entry;
  std::size_t addresses = 0;
  std::vector<std::uint64_t> words;
  runtime::Extent3 grid;
  runtime::Extent3 block;
  std::size_t shared_bytes = 0;
};

/// to[i] = from[...] in row-major order over `sizes`; `strides` in elements. Addresses: from, to.
LibraryLaunch copy_view_launch(std::size_t element_bytes, const std::vector<std::int64_t>& sizes,
                               const std::vector<std::int64_t>& strides);

/// The adjoint of unfold: from (outer, windows, width, inner) is added into to (outer, length,
/// inner); each element sums its windows in ascending order of their offset, halves in f32.
/// Addresses: from, to.
struct FoldSizes {
  std::int64_t outer, length, windows, width, stride, dilation, inner;
};
LibraryLaunch fold_launch(DType dtype, const FoldSizes& sizes);

/// The adjoint of take: updates (outer, count, inner) are added into to (outer, size, inner) at
/// indices (count), in the order of the updates, halves in f32. An index out of range sets the
/// status word to 1 and is left out. Addresses: updates, indices, sums, to, status; sums is f32
/// memory of the size of `to` for halves, else `to` itself. With chunks, that many sizes of `to`
/// beside each other, in f32 for halves, which join_chunks_launch() sums (addresses: sums, to).
struct ScatterSizes {
  std::int64_t outer, count, size, inner;
};
/// How many updates are summed before others are: a function of the sizes. All if there are few.
std::int64_t scatter_chunk(const ScatterSizes& sizes);
LibraryLaunch join_chunks_launch(DType dtype, std::int64_t chunks, std::int64_t elements);
LibraryLaunch scatter_add_launch(DType dtype, DType indices, const ScatterSizes& sizes,
                                 int multiprocessors);

/// Running results along the lines of (outer, length, inner), in a tree that depends on sizes
/// alone. Addresses: from, second operand (or from again), to.
struct LineSizes {
  std::int64_t outer, length, inner;
};
LibraryLaunch scan_launch(DType dtype, ir::Op op, const LineSizes& sizes, bool reverse);

/// Each line in order, one block a line: for lines of up to some ten thousand elements. Addresses:
/// from, values, places.
LibraryLaunch sort_launch(DType dtype, const LineSizes& sizes, bool descending);

/// A product as GpuProduct says. Addresses: a, b, out.
LibraryLaunch matmul_launch(const runtime::GpuProduct& product);

/// Sets bit 0 of a word if one of the elements is NaN, and bit 1 if one is infinite. Addresses:
/// from, word.
LibraryLaunch look_launch(DType dtype, std::int64_t count);

/// f32 to f64 or back. Addresses: from, to.
LibraryLaunch convert_launch(DType from, DType to, std::int64_t count);

}  // namespace segfuse::engine
