#pragma once
// The arrays of a call by XLA as views.
//
// `vmap` puts axes in front of every array: those of the examples, or 1 where an array is the same
// for all. So a call is several of the engine's, one a group, or one with the rows of all groups.

#include <fmt/core.h>

#include <string_view>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "xla/abi.h"

namespace segfuse::python::xla {

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, float>) return Type::kF32;
  if constexpr (std::is_same_v<T, double>) return Type::kF64;
  if constexpr (std::is_same_v<T, std::int32_t>) return Type::kS32;
  return Type::kS64;
}

/// An argument or result; absent where `buffer` is null.
struct Operand {
  const char* name = "";
  const Buffer* buffer = nullptr;
  int rank = 0;      ///< without the axes in front
  bool rows = true;  ///< whether its first own axis is that of the rows

  explicit operator bool() const { return buffer != nullptr; }
  bool is(Type type) const { return buffer->type == type; }
  std::int64_t front() const { return buffer->rank - rank; }
  std::int64_t extent(int axis) const { return buffer->extents[front() + axis]; }
  std::int64_t size() const {
    std::int64_t size = 1;
    for (int axis = 0; axis < rank; ++axis) size *= extent(axis);
    return size;
  }
  /// Whether all groups share it.
  bool is_shared() const {
    for (std::int64_t axis = 0; axis < front(); ++axis)
      if (buffer->extents[axis] != 1) return false;
    return true;
  }
};

/// The groups of a call: the axes in front of all operands together.
class Groups {
 public:
  explicit Groups(const std::vector<Operand>& operands) {
    for (const Operand& x : operands) {
      if (!x) continue;
      if (extents_.empty())
        extents_.assign(static_cast<std::size_t>(std::max<std::int64_t>(0, x.front())), 1);
      if (x.front() != static_cast<std::int64_t>(extents_.size()))
        throw UsageError(fmt::format("semicrf: {} has {} axes, expected {}", x.name, x.buffer->rank,
                                     x.rank + static_cast<std::int64_t>(extents_.size())));
      for (std::size_t axis = 0; axis < extents_.size(); ++axis)
        extents_[axis] = x.buffer->extents[axis] == 1 ? extents_[axis] : x.buffer->extents[axis];
    }
  }
  std::int64_t count() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents_) count *= extent;
    return count;
  }
  /// Which of an operand's own groups is group g of the call.
  std::int64_t index(const Operand& x, std::int64_t g) const {
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (std::size_t axis = extents_.size(); axis-- > 0;) {
      const std::int64_t own = x.buffer->extents[axis];
      if (own != 1) index += stride * (g % extents_[axis]);
      stride *= own;
      g /= extents_[axis];
    }
    return index;
  }
  bool is_full(const Operand& x) const {
    for (std::size_t axis = 0; axis < extents_.size(); ++axis)
      if (x.buffer->extents[axis] != extents_[axis]) return false;
    return true;
  }

 private:
  std::vector<std::int64_t> extents_;
};

/// Rows [first, first + rows) of what the engine sees in one of its calls: one group, or all.
struct Part {
  const Groups& groups;
  std::int64_t group = 0;
  bool all = false;

  /// Empty for an absent operand.
  template <class T, int N>
  semicrf::View<T, N> view(const Operand& x) const {
    if (!x) return {};
    using Element = std::remove_const_t<T>;
    if (!x.is(type_of<Element>()))
      throw UsageError(fmt::format("semicrf: {} has another dtype than expected", x.name));
    typename semicrf::View<T, N>::Axes extents{};
    for (int axis = 0; axis < N; ++axis) extents[static_cast<std::size_t>(axis)] = x.extent(axis);
    static Element none{};
    auto* data = static_cast<Element*>(x.buffer->data);
    if (data == nullptr) data = &none;  // no group has an element
    if (!all) return {data + groups.index(x, group) * x.size(), extents};
    if (!x.rows) return {data, extents};
    semicrf::View<T, N> one(data, extents);
    auto strides = one.strides();
    if (x.is_shared() && groups.count() > 1) strides[0] = 0;  // one row, of all groups
    extents[0] *= groups.count();
    return {data, extents, strides};
  }
};

}  // namespace segfuse::python::xla
