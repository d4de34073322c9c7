#pragma once
// Strided views of memory, and the loop nests over them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "segfuse/tensor.h"

namespace segfuse::engine {

/// Sizes, strides and offset of a view, in elements. Strides are 0 for repeated axes.
struct Layout {
  Shape shape;
  Shape strides;
  std::int64_t offset = 0;

  std::int64_t size() const { return num_elements(shape); }
};

inline std::size_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
}

/// Row-major without gaps.
Layout contiguous(Shape shape);
bool is_contiguous(const Layout& layout);
Layout permuted(const Layout& layout, const std::vector<std::int64_t>& perm);
/// Axis i becomes axis axes[i] of `shape`, repeated where its size is 1.
Layout broadcasted(const Layout& layout, const std::vector<std::int64_t>& axes, const Shape& shape);
Layout sliced(const Layout& layout, const Shape& starts, const Shape& sizes);
/// `axis` becomes (windows, size).
Layout unfolded(const Layout& layout, std::size_t axis, std::int64_t windows, std::int64_t size,
                std::int64_t stride, std::int64_t dilation);
/// The same elements in row-major order under another shape; nothing if that needs a copy.
std::optional<Layout> reshaped(const Layout& layout, const Shape& shape);

/// A view of memory; `data` points to the element at index 0 of every axis.
struct Array {
  std::byte* data = nullptr;
  const Layout* layout = nullptr;
  DType dtype = DType::kF32;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  const Shape& shape() const { return layout->shape; }
};

/// A loop nest over several arrays: axes of size 1 are dropped, and axes that no array tells apart
/// are merged. strides[k][d] is the stride of array k along axis d.
struct Nest {
  Shape sizes;
  std::vector<Shape> strides;

  std::int64_t size() const { return num_elements(sizes); }
};

Nest collapse(const Shape& shape, const std::vector<Shape>& strides);

/// Walks the first `depth` axes of a nest in row-major order from any position, following one or
/// two of its arrays. Allocates nothing.
class Odometer {
 public:
  static constexpr std::size_t kMaxAxes = 16;

  /// Follows array `first` and, if there is one, the next.
  Odometer(const Nest& nest, std::size_t depth, std::int64_t position, std::size_t first = 0);
  /// Offset of array first + k at the current position.
  std::int64_t offset(std::size_t k) const { return offsets_[k]; }
  void next() {
    if (depth_ == 0) return;
    const Axis& axis = axes_[depth_ - 1];
    offsets_[0] += axis.strides[0];
    offsets_[1] += axis.strides[1];
    if (++index_[depth_ - 1] == axis.size) carry();
  }

 private:
  struct Axis {
    std::int64_t size;
    std::int64_t strides[2];
  };
  void carry();

  std::size_t depth_;
  std::int64_t offsets_[2] = {0, 0};
  std::array<Axis, kMaxAxes> axes_;  // only the first depth_ are set
  std::array<std::int64_t, kMaxAxes> index_;
};

}  // namespace segfuse::engine
