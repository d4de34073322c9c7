#pragma once
// Element types by the names that Python's array libraries use, and as DLPack writes them.

#include <fmt/core.h>
#include <nanobind/ndarray.h>

#include <array>
#include <string_view>

#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse::python {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  nanobind::dlpack::dtype code;
};

inline constexpr std::array<DTypeRow, 7> kDTypes = {{
    {DType::kBool, "bool", {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Bool), 8, 1}},
    {DType::kI32, "int32", {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Int), 32, 1}},
    {DType::kI64, "int64", {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Int), 64, 1}},
    {DType::kF16,
     "float16",
     {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float), 16, 1}},
    {DType::kBF16,
     "bfloat16",
     {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Bfloat), 16, 1}},
    {DType::kF32,
     "float32",
     {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float), 32, 1}},
    {DType::kF64,
     "float64",
     {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float), 64, 1}},
}};

inline const DTypeRow& row_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

inline DType dtype_of_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes)
    if (row.name == name) return row.dtype;
  throw UsageError(fmt::format(
      "found the dtype {}, expected bool, int32, int64, float16, bfloat16, float32 or float64",
      name));
}

}  // namespace segfuse::python
