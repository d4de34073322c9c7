#include "engine/exec/array.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::engine {

Layout contiguous(Shape shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return {std::move(shape), std::move(strides), 0};
}

bool is_contiguous(const Layout& layout) {
  if (num_elements(layout.shape) == 0) return true;
  std::int64_t stride = 1;
  for (std::size_t axis = layout.shape.size(); axis-- > 0;) {
    if (layout.shape[axis] != 1 && layout.strides[axis] != stride) return false;
    stride *= layout.shape[axis];
  }
  return true;
}

Layout permuted(const Layout& layout, const std::vector<std::int64_t>& perm) {
  Layout result{{}, {}, layout.offset};
  for (const std::int64_t axis : perm) {
    result.shape.push_back(layout.shape[static_cast<std::size_t>(axis)]);
    result.strides.push_back(layout.strides[static_cast<std::size_t>(axis)]);
  }
  return result;
}

Layout broadcasted(const Layout& layout, const std::vector<std::int64_t>& axes,
                   const Shape& shape) {
  Layout result{shape, Shape(shape.size(), 0), layout.offset};
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (layout.shape[i] != 1) result.strides[static_cast<std::size_t>(axes[i])] = layout.strides[i];
  return result;
}

Layout sliced(const Layout& layout, const Shape& starts, const Shape& sizes) {
  Layout result{sizes, layout.strides, layout.offset};
  if (num_elements(sizes) == 0) return result;
  for (std::size_t i = 0; i < starts.size(); ++i) result.offset += starts[i] * layout.strides[i];
  return result;
}

Layout unfolded(const Layout& layout, std::size_t axis, std::int64_t windows, std::int64_t size,
                std::int64_t stride, std::int64_t dilation) {
  Layout result = layout;
  const std::int64_t step = layout.strides[axis];
  const auto after = static_cast<std::ptrdiff_t>(axis) + 1;
  result.shape[axis] = windows;
  result.strides[axis] = step * stride;
  result.shape.insert(result.shape.begin() + after, size);
  result.strides.insert(result.strides.begin() + after, step * dilation);
  return result;
}

std::optional<Layout> reshaped(const Layout& layout, const Shape& shape) {
  Layout result = contiguous(shape);
  result.offset = layout.offset;
  if (is_contiguous(layout)) return result;
  // Axes that are one run in memory form a group; a new axis must split one group exactly.
  const Nest runs = collapse(layout.shape, {layout.strides});
  std::size_t run = runs.sizes.size();
  std::int64_t left = 1;    // elements of the current run not yet given to new axes
  std::int64_t stride = 0;  // of the next new axis, going outwards
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 1) {
      result.strides[axis] = 0;
      continue;
    }
    if (left == 1) {
      --run;
      left = runs.sizes[run];
      stride = runs.strides[0][run];
    }
    if (left % shape[axis] != 0) return {};
    result.strides[axis] = stride;
    stride *= shape[axis];
    left /= shape[axis];
  }
  return result;
}

Nest collapse(const Shape& shape, const std::vector<Shape>& strides) {
  Nest nest;
  nest.strides.resize(strides.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool merges = !nest.sizes.empty();
    for (std::size_t k = 0; k < strides.size() && merges; ++k)
      merges = nest.strides[k].back() == strides[k][axis] * shape[axis];
    if (merges) {
      nest.sizes.back() *= shape[axis];
    } else {
      nest.sizes.push_back(shape[axis]);
    }
    for (std::size_t k = 0; k < strides.size(); ++k) {
      if (!merges) nest.strides[k].push_back(0);
      nest.strides[k].back() = strides[k][axis];
    }
  }
  return nest;
}

Odometer::Odometer(const Nest& nest, std::size_t depth, std::int64_t position, std::size_t first)
    : depth_(depth) {
  if (depth > kMaxAxes)
    throw UsageError(
        fmt::format("a view has {} separate axes; at most {} can be walked", depth, kMaxAxes));
  const bool two = nest.strides.size() > first + 1;
  for (std::size_t axis = depth; axis-- > 0;) {
    axes_[axis] = {nest.sizes[axis],
                   {nest.strides[first][axis], two ? nest.strides[first + 1][axis] : 0}};
    index_[axis] = position % nest.sizes[axis];
    position /= nest.sizes[axis];
    offsets_[0] += index_[axis] * axes_[axis].strides[0];
    offsets_[1] += index_[axis] * axes_[axis].strides[1];
  }
}

/// The innermost index is past its end.
void Odometer::carry() {
  for (std::size_t axis = depth_ - 1;; --axis) {
    index_[axis] = 0;
    offsets_[0] -= axes_[axis].size * axes_[axis].strides[0];
    offsets_[1] -= axes_[axis].size * axes_[axis].strides[1];
    if (axis == 0) return;
    offsets_[0] += axes_[axis - 1].strides[0];
    offsets_[1] += axes_[axis - 1].strides[1];
    if (++index_[axis - 1] < axes_[axis - 1].size) return;
  }
}

}  // namespace segfuse::engine
