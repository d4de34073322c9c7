#include "arrays.h"

#include <fmt/core.h>

#include <utility>

namespace segfuse::python {
namespace {

/// "ndarray of dtype object", or the type alone of what has no dtype.
std::string class_of(nb::handle object) {
  std::string text = nb::type_name(object.type()).c_str();
  if (nb::hasattr(object, "dtype")) {
    const nb::object value = object.attr("dtype");
    const nb::str dtype{nb::handle(value)};
    text += fmt::format(" of dtype {}", dtype.c_str());
  }
  return text;
}

template <class Array>
bool is_imported(nb::handle object, Array& array) {
  return !object.is_none() && nb::try_cast(object, array, false) && array.is_valid();
}

/// A field of NumPy's records has strides that need not be multiples of an element, which DLPack
/// cannot express; its copy has.
bool is_copied(nb::handle object, Input& array) {
  const nb::object type = nb::module_::import_("numpy").attr("ndarray");
  return nb::isinstance(object, type) && is_imported(object.attr("copy")(), array);
}

[[noreturn]] void refuse(const char* name, nb::handle object, const char* expected) {
  throw UsageError(
      fmt::format("semicrf: {} is of type {}, expected {}", name, class_of(object), expected));
}

}  // namespace

std::string to_text(const Device& device) {
  switch (device.type) {
    case nb::device::cpu::value: return "the CPU";
    case nb::device::cuda::value: return fmt::format("cuda:{}", device.index);
    default: return fmt::format("device {}:{} (numbers of DLPack)", device.type, device.index);
  }
}

std::string to_text(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  const char* kind = "unknown";
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int: kind = "int"; break;
    case Code::UInt: kind = "uint"; break;
    case Code::Float: kind = "float"; break;
    case Code::Bfloat: kind = "bfloat"; break;
    case Code::Complex: kind = "complex"; break;
    case Code::Bool: return "bool";
    default: break;
  }
  return fmt::format("{}{}", kind, dtype.bits);
}

Input import_input(const char* name, nb::handle object) {
  Input array;
  if (is_imported(object, array) || is_copied(object, array)) return array;
  refuse(name, object,
         "a NumPy, JAX or PyTorch array (or another with DLPack) in the byte order of this "
         "machine");
}

Output import_output(const char* name, nb::handle object) {
  Output array;
  if (is_imported(object, array)) return array;
  refuse(name, object, "an array that may be written");
}

nb::tuple to_numpy(semicrf::Segmentations y) {
  return nb::make_tuple(to_numpy(std::move(y.row_pointer)), to_numpy(std::move(y.start)),
                        to_numpy(std::move(y.duration)), to_numpy(std::move(y.label)));
}

}  // namespace segfuse::python
