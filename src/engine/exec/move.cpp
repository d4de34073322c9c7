#include "engine/exec/move.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "engine/kernels/reduce_kernels.h"
#include "ir/bind.h"

namespace segfuse::engine {
namespace {

/// Calls body(T{}) with an element type of the size of `dtype`, or of its arithmetic.
template <class Body>
void with_bits(DType dtype, Body&& body) {
  switch (size_of(dtype)) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    case 8: return body(std::uint64_t{});
    default: throw InternalError(fmt::format("elements of {} bytes", size_of(dtype)));
  }
}

template <class Body>
void with_sum_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kF64: return body(double{});
    case DType::kI32: return body(std::uint32_t{});
    case DType::kI64: return body(std::uint64_t{});
    default: throw InternalError(fmt::format("no sums of {}", name_of(dtype)));
  }
}

template <class Body>
void with_number(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kF64: return body(double{});
    case DType::kI32: return body(std::int32_t{});
    case DType::kI64: return body(std::int64_t{});
    default: throw InternalError(fmt::format("no sums of {}", name_of(dtype)));
  }
}

template <class T>
void copy_run(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
              std::int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  } else if (from_stride == 0 && to_stride == 1) {
    std::fill_n(to, n, *from);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

/// One plane whose source runs along the outer axis: by tiles that stay in the first cache.
template <class T>
void copy_transposed(const T* from, std::int64_t from_stride, T* to, std::int64_t to_row,
                     std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTile)
      for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (std::int64_t c = c0; c < std::min(columns, c0 + kTile); ++c)
          to[r * to_row + c] = from[r + c * from_stride];
}

/// The axis along which the source is contiguous, if it is not the innermost one.
std::optional<std::size_t> transposed_axis(const Nest& nest) {
  const std::size_t rank = nest.sizes.size();
  if (rank < 2 || nest.strides[0][rank - 1] <= 1 || nest.strides[1][rank - 1] != 1) return {};
  for (std::size_t axis = 0; axis + 1 < rank; ++axis)
    if (nest.strides[0][axis] == 1 && nest.sizes[axis] >= 8) return axis;
  return {};
}

template <class T>
void copy_planes(ThreadPool& pool, const Nest& nest, std::size_t axis, const T* from, T* to) {
  const std::size_t last = nest.sizes.size() - 1;
  const std::int64_t rows = nest.sizes[axis];
  const std::int64_t columns = nest.sizes[last];
  Nest planes = nest;  // without the two axes of a plane
  for (Shape* axes : {&planes.sizes, &planes.strides[0], &planes.strides[1]}) {
    axes->pop_back();
    axes->erase(axes->begin() + static_cast<std::ptrdiff_t>(axis));
  }
  constexpr std::int64_t kBand = 64;
  const std::int64_t bands = (rows + kBand - 1) / kBand;
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / (kBand * columns));
  pool.for_ranges(planes.size() * bands, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const Odometer at(planes, planes.sizes.size(), task / bands);
      const std::int64_t first = task % bands * kBand;
      copy_transposed(from + at.offset(0) + first, nest.strides[0][last],
                      to + at.offset(1) + first * nest.strides[1][axis], nest.strides[1][axis],
                      std::min(kBand, rows - first), columns);
    }
  });
}

template <class T>
void copy_elements(ThreadPool& pool, const Nest& nest, const T* from, T* to) {
  if (nest.sizes.empty()) {
    *to = *from;
    return;
  }
  const std::size_t last = nest.sizes.size() - 1;
  const std::int64_t columns = nest.sizes[last];
  if (last == 0) {
    pool.for_ranges(columns, kTaskElements, [&](std::int64_t begin, std::int64_t end) {
      copy_run(from + begin * nest.strides[0][0], nest.strides[0][0],
               to + begin * nest.strides[1][0], nest.strides[1][0], end - begin);
    });
    return;
  }
  if (const auto axis = transposed_axis(nest)) return copy_planes(pool, nest, *axis, from, to);
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / columns);
  pool.for_ranges(nest.size() / columns, grain, [&](std::int64_t begin, std::int64_t end) {
    Odometer at(nest, last, begin);
    for (std::int64_t i = begin; i < end; ++i, at.next())
      copy_run(from + at.offset(0), nest.strides[0][last], to + at.offset(1), nest.strides[1][last],
               columns);
  });
}

Array part(const Array& array, Layout& storage, const Shape& starts, const Shape& sizes) {
  storage = sliced(*array.layout, starts, sizes);
  const std::int64_t shift = storage.offset - array.layout->offset;
  return {array.data + shift * static_cast<std::int64_t>(size_of(array.dtype)), &storage,
          array.dtype};
}

std::int64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t result = 1;
  for (std::size_t i = begin; i < end; ++i) result *= shape[i];
  return result;
}

/// All indices, row-major, each checked.
std::vector<std::int64_t> read_indices(ir::Op op, const Array& indices, std::int64_t size) {
  const std::int64_t count = indices.layout->size();
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  if (count == 0) return result;
  const Nest nest = collapse(indices.shape(), {indices.layout->strides});
  Odometer at(nest, nest.sizes.size(), 0);
  for (std::int64_t& index : result) {
    index = indices.dtype == DType::kI32 ? indices.as<std::int32_t>()[at.offset(0)]
                                         : indices.as<std::int64_t>()[at.offset(0)];
    ir::check_index(op, index, size);
    at.next();
  }
  return result;
}

}  // namespace

void copy(ThreadPool& pool, const Array& from, const Array& to) {
  if (to.layout->size() == 0) return;
  const Nest nest = collapse(to.shape(), {from.layout->strides, to.layout->strides});
  with_bits(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    copy_elements(pool, nest, from.as<const T>(), to.as<T>());
  });
}

void fill(ThreadPool& pool, const Array& to, const void* value) {
  const Layout repeated{to.shape(), Shape(to.shape().size(), 0), 0};
  // The source is only read.
  copy(pool, {static_cast<std::byte*>(const_cast<void*>(value)), &repeated, to.dtype}, to);
}

void pad(ThreadPool& pool, const Array& from, const Array& to, const Shape& low,
         const void* value) {
  const std::size_t rank = low.size();
  Shape starts(rank, 0);
  Shape sizes = to.shape();
  Layout layout;
  for (std::size_t axis = 0; axis < rank; ++axis) {  // the borders, axis by axis
    const std::int64_t total = to.shape()[axis];
    const std::int64_t inside = from.shape()[axis];
    starts[axis] = 0;
    sizes[axis] = low[axis];
    fill(pool, part(to, layout, starts, sizes), value);
    starts[axis] = low[axis] + inside;
    sizes[axis] = total - low[axis] - inside;
    fill(pool, part(to, layout, starts, sizes), value);
    starts[axis] = low[axis];
    sizes[axis] = inside;
  }
  copy(pool, from, part(to, layout, starts, sizes));
}

void take(ThreadPool& pool, const Array& from, const Array& indices, std::size_t axis,
          const Array& to) {
  const std::int64_t size = from.shape()[axis];
  const std::vector<std::int64_t> rows = read_indices(ir::Op::take, indices, size);
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::size_t rank = from.shape().size();
  const std::int64_t inner = product(from.shape(), axis + 1, rank);
  if (to.layout->size() == 0) return;
  // Walk (outer, inner) of the source with the axis itself taken out.
  Shape outer_shape(from.shape().begin(), from.shape().begin() + static_cast<std::ptrdiff_t>(axis));
  Shape outer_strides(from.layout->strides.begin(),
                      from.layout->strides.begin() + static_cast<std::ptrdiff_t>(axis));
  const Shape inner_shape(from.shape().begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                          from.shape().end());
  const Shape inner_strides(from.layout->strides.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                            from.layout->strides.end());
  const Nest outer = collapse(outer_shape, {outer_strides});
  const Nest within = collapse(inner_shape, {inner_strides});
  const bool run = within.sizes.size() <= 1;
  const std::int64_t run_stride = within.sizes.empty() ? 1 : within.strides[0].back();
  const std::int64_t step = from.layout->strides[axis];
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / inner);
  with_bits(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* source = from.as<const T>();
    T* target = to.as<T>();
    pool.for_ranges(outer.size() * count, grain, [&](std::int64_t begin, std::int64_t end) {
      Odometer at(outer, outer.sizes.size(), begin / count);
      for (std::int64_t i = begin; i < end; ++i) {
        if (i > begin && i % count == 0) at.next();
        const T* row = source + at.offset(0) + rows[static_cast<std::size_t>(i % count)] * step;
        if (run) {
          copy_run(row, run_stride, target + i * inner, 1, inner);
          continue;
        }
        Odometer element(within, within.sizes.size(), 0);
        for (std::int64_t j = 0; j < inner; ++j, element.next())
          target[i * inner + j] = row[element.offset(0)];
      }
    });
  });
}

void gather(ThreadPool& pool, const Array& from, const Array& indices, std::size_t axis,
            const Array& to) {
  const std::vector<std::int64_t> rows = read_indices(ir::Op::gather, indices, from.shape()[axis]);
  if (rows.empty()) return;
  Shape strides = from.layout->strides;
  const std::int64_t step = std::exchange(strides[axis], 0);
  const Nest nest = collapse(to.shape(), {strides});
  with_bits(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    pool.for_ranges(
        static_cast<std::int64_t>(rows.size()), kTaskElements,
        [&](std::int64_t begin, std::int64_t end) {
          Odometer at(nest, nest.sizes.size(), begin);
          for (std::int64_t i = begin; i < end; ++i, at.next())
            to.as<T>()[i] =
                from.as<const T>()[at.offset(0) + rows[static_cast<std::size_t>(i)] * step];
        });
  });
}

void scatter_add(ThreadPool& pool, const Array& updates, const Array& indices, std::size_t axis,
                 const Array& to) {
  const std::vector<std::int64_t> rows =
      read_indices(ir::Op::scatter_add, indices, to.shape()[axis]);
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t outer = product(to.shape(), 0, axis);
  const std::int64_t inner = product(to.shape(), axis + 1, to.shape().size());
  const std::int64_t size = to.shape()[axis];
  if (to.layout->size() == 0) return;
  const Nest nest = collapse(updates.shape(), {updates.layout->strides});
  const std::int64_t tile = 64;  // columns of one task: all its rows, in order
  const std::int64_t tiles = (inner + tile - 1) / tile;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, count * tile));
  with_sum_type(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    pool.for_ranges(outer * tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t first = task % tiles * tile;
        const std::int64_t columns = std::min(tile, inner - first);
        T* target = to.as<T>() + task / tiles * size * inner + first;
        for (std::int64_t r = 0; r < size; ++r) std::fill_n(target + r * inner, columns, T(0));
        for (std::int64_t r = 0; r < count; ++r) {
          Odometer at(nest, nest.sizes.size(), (task / tiles * count + r) * inner + first);
          T* sums = target + rows[static_cast<std::size_t>(r)] * inner;
          for (std::int64_t c = 0; c < columns; ++c, at.next())
            sums[c] = static_cast<T>(sums[c] + updates.as<const T>()[at.offset(0)]);
        }
      }
    });
  });
}

void fold(ThreadPool& pool, const Array& from, std::size_t axis, std::int64_t stride,
          std::int64_t dilation, const Array& to) {
  if (to.layout->size() == 0) return;
  const Layout& layout = *from.layout;
  const auto at_axis = static_cast<std::ptrdiff_t>(axis);
  const std::int64_t windows = layout.shape[axis];
  const std::int64_t width = layout.shape[axis + 1];
  const std::int64_t length = to.shape()[axis];
  const Nest outer = collapse({layout.shape.begin(), layout.shape.begin() + at_axis},
                              {{layout.strides.begin(), layout.strides.begin() + at_axis}});
  const Nest inner = collapse({layout.shape.begin() + at_axis + 2, layout.shape.end()},
                              {{layout.strides.begin() + at_axis + 2, layout.strides.end()}});
  const std::int64_t run = inner.size();
  const bool row_runs =
      inner.sizes.empty() || (inner.sizes.size() == 1 && inner.strides[0][0] == 1);
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / (run * width));
  with_number(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto add = reduce_loops<T>(ir::Op::sum).columns;
    pool.for_ranges(outer.size() * length, grain, [&](std::int64_t begin, std::int64_t end) {
      Odometer row(outer, outer.sizes.size(), begin / length);
      for (std::int64_t i = begin; i < end; ++i) {
        if (i > begin && i % length == 0) row.next();
        T* target = to.as<T>() + i * run;
        std::fill_n(target, run, T(0));
        for (std::int64_t j = 0; j < width; ++j) {
          const std::int64_t start = i % length - j * dilation;
          if (start < 0 || start % stride != 0 || start / stride >= windows) continue;
          const T* source = from.as<const T>() + row.offset(0) +
                            start / stride * layout.strides[axis] + j * layout.strides[axis + 1];
          if (row_runs) {
            add(target, source, run);
            continue;
          }
          Odometer element(inner, inner.sizes.size(), 0);
          for (std::int64_t c = 0; c < run; ++c, element.next())
            add(target + c, source + element.offset(0), 1);
        }
      }
    });
  });
}

void iota(const Array& to) {
  const std::int64_t n = to.layout->size();
  auto count = [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < n; ++i) to.as<T>()[i] = static_cast<T>(i);
  };
  with_sum_type(to.dtype, count);
}

void convert_half(DType half, const std::byte* from, float* to, std::int64_t n) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
  const auto convert = half == DType::kF16 ? half_to_float : bfloat16_to_float;
  for (std::int64_t i = 0; i < n; ++i) to[i] = convert(bits[i]);
}

void convert_to_half(DType half, const float* from, std::byte* to, std::int64_t n) {
  auto* bits = reinterpret_cast<std::uint16_t*>(to);
  const auto convert = half == DType::kF16 ? float_to_half : float_to_bfloat16;
  for (std::int64_t i = 0; i < n; ++i) bits[i] = convert(from[i]);
}

}  // namespace segfuse::engine
