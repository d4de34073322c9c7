#pragma once
// The caller's arrays as views: whatever library speaks DLPack, any strides, nothing copied.

#include <fmt/core.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "segfuse/error.h"
#include "segfuse/semicrf.h"

namespace segfuse::python {

namespace nb = nanobind;

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;

/// Where an array lives, as DLPack numbers it.
struct Device {
  int type = 0;
  int index = 0;
  bool is_cpu() const { return type == nb::device::cpu::value; }
  bool is_cuda() const { return type == nb::device::cuda::value; }
  bool operator==(const Device&) const = default;
};

std::string to_text(const Device& device);
std::string to_text(const nb::dlpack::dtype& dtype);

/// UsageError when the object is not a readable array.
Input import_input(const char* name, nb::handle object);
/// UsageError when the object is not a writable array.
Output import_output(const char* name, nb::handle object);

template <class Array>
Device device_of(const Array& array) {
  return {array.device_type(), array.device_id()};
}

template <class Array>
std::string shape_text(const Array& array) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < array.ndim(); ++axis)
    text += fmt::format("{}{}", axis > 0 ? ", " : "", array.shape(axis));
  return text + (array.ndim() == 1 ? ",)" : ")");
}

template <class Array>
void need_rank(const char* name, const char* axes, const Array& array, int rank) {
  if (static_cast<int>(array.ndim()) != rank)
    throw UsageError(
        fmt::format("semicrf: {} has shape {}, expected {}", name, shape_text(array), axes));
}

template <class T, class Array>
bool has_dtype(const Array& array) {
  return array.dtype() == nb::dtype<T>();
}

/// The elements of an array whose dtype and rank have been checked.
template <class T, int N, class Array>
semicrf::View<T, N> view_of(const Array& array) {
  typename semicrf::View<T, N>::Axes extents{};
  typename semicrf::View<T, N>::Axes strides{};
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    extents[axis] = static_cast<std::int64_t>(array.shape(axis));
    strides[axis] = array.stride(axis);
  }
  // An array without elements may come without memory, which in a view would mean "absent".
  static std::remove_const_t<T> none{};
  T* data = static_cast<T*>(array.data());
  return {data == nullptr ? &none : data, extents, strides};
}

/// A NumPy array that owns what `values` held.
template <class T>
nb::object to_numpy(std::vector<T> values) {
  auto* moved = new std::vector<T>(std::move(values));
  const nb::capsule owner(
      moved, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return nb::cast(nb::ndarray<nb::numpy, T>(moved->data(), {moved->size()}, owner));
}

/// (row_pointer, start, duration, label) as NumPy arrays.
nb::tuple to_numpy(semicrf::Segmentations segmentations);

}  // namespace segfuse::python
