#include "segfuse/tensor.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/half.h"
#include "base/os/big_memory.h"

namespace segfuse {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "bool", 1}, {DType::kI32, "i32", 4},   {DType::kI64, "i64", 8},
    {DType::kF16, "f16", 2},   {DType::kBF16, "bf16", 2}, {DType::kF32, "f32", 4},
    {DType::kF64, "f64", 8},
};

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  return {static_cast<std::byte*>(allocate_array(bytes)),
          [bytes](std::byte* memory) { free_array(memory, bytes); }};
}

template <class T>
T load_as(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value,
              static_cast<const std::byte*>(data) + static_cast<std::size_t>(index) * sizeof(T),
              sizeof(T));
  return value;
}

template <class T>
void store_as(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(data) + static_cast<std::size_t>(index) * sizeof(T), &value,
              sizeof(T));
}

}  // namespace

std::size_t size_of(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].size; }
std::string_view name_of(DType dtype) noexcept {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

DType dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kDTypes)
    if (info.name == name) return info.dtype;
  throw UsageError(fmt::format(
      "unknown element type '{}'; known are bool, i32, i64, f16, bf16, f32 and f64", name));
}

bool is_float(DType dtype) noexcept { return dtype >= DType::kF16; }
bool is_integer(DType dtype) noexcept { return dtype == DType::kI32 || dtype == DType::kI64; }

std::int64_t num_elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) throw UsageError(fmt::format("shape {} has a negative size", to_string(shape)));
    if (__builtin_mul_overflow(count, size, &count))
      throw UsageError(
          fmt::format("shape {} has more elements than 64 bits can count", to_string(shape)));
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Tensor::Tensor() : Tensor(DType::kF32, {0}) {}

Tensor::Tensor(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(num_elements(shape_)) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(size_), size_of(dtype), &bytes))
    throw UsageError(fmt::format("a tensor of shape {} and type {} does not fit the address space",
                                 to_string(shape_), name_of(dtype)));
  storage_ = allocate(bytes);
}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<std::byte> storage)
    : dtype_(dtype),
      shape_(std::move(shape)),
      size_(num_elements(shape_)),
      storage_(std::move(storage)) {}

Tensor Tensor::borrow(DType dtype, Shape shape, std::shared_ptr<std::byte> memory) {
  Tensor tensor(dtype, std::move(shape), std::move(memory));
  if (!tensor.storage_ && tensor.size_ > 0)
    throw UsageError(fmt::format("a tensor of shape {} borrows no memory (a null pointer)",
                                 to_string(tensor.shape_)));
  if (!tensor.storage_) tensor.storage_ = allocate(0);
  return tensor;
}

Tensor Tensor::on_device(DType dtype, Shape shape, std::shared_ptr<DeviceMemory> memory) {
  Tensor tensor(dtype, std::move(shape), std::shared_ptr<std::byte>());
  tensor.device_ = std::move(memory);
  return tensor;
}

void refuse_moved_from(const char* name) {
  throw UsageError(fmt::format(
      "a {} was used after it was moved from; use the one that it was moved to, or assign to it",
      name));
}

void Tensor::refuse() const {
  if (!device_) refuse_moved_from("Tensor");
  throw UsageError(
      fmt::format("a tensor {}{} is in the memory of {}; copy it to the host with to_host() first",
                  name_of(dtype_), to_string(shape_), device_->device()));
}

Tensor Tensor::to_host() const {
  if (storage_) return *this;
  if (!device_) refuse();
  Tensor copy(dtype_, shape_);
  if (size_ > 0) device_->copy_to_host(copy.data(), copy.bytes());
  return copy;
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor tensor(dtype, std::move(shape));
  std::memset(tensor.data(), 0, tensor.bytes());
  return tensor;
}

Tensor Tensor::full(DType dtype, Shape shape, double value) {
  Tensor tensor(dtype, std::move(shape));
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, value);
  return tensor;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, Shape shape) {
  Tensor tensor(DTypeOf<T>::value, std::move(shape));
  if (static_cast<std::int64_t>(values.size()) != tensor.size())
    throw UsageError(fmt::format("a tensor of shape {} needs {} values, {} were given",
                                 to_string(tensor.shape()), tensor.size(), values.size()));
  if (!values.empty()) std::memcpy(tensor.data(), values.data(), tensor.bytes());
  return tensor;
}

template <class T>
std::span<T> Tensor::span() {
  if (DTypeOf<T>::value != dtype_)
    throw UsageError(fmt::format("a tensor of type {} was read as {}", name_of(dtype_),
                                 name_of(DTypeOf<T>::value)));
  return {static_cast<T*>(data()), static_cast<std::size_t>(size_)};
}

template <class T>
std::span<const T> Tensor::span() const {
  return const_cast<Tensor*>(this)->span<T>();
}

#define SEGFUSE_INSTANTIATE(T)                                \
  template Tensor Tensor::from<T>(std::span<const T>, Shape); \
  template std::span<T> Tensor::span<T>();                    \
  template std::span<const T> Tensor::span<T>() const;
SEGFUSE_INSTANTIATE(std::uint8_t)
SEGFUSE_INSTANTIATE(std::int32_t)
SEGFUSE_INSTANTIATE(std::int64_t)
SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

double Tensor::at(std::int64_t index) const {
  SEGFUSE_CHECK(index >= 0 && index < size_, "index {} of {} elements", index, size_);
  switch (dtype_) {
    case DType::kBool: return load_as<std::uint8_t>(data(), index);
    case DType::kI32: return load_as<std::int32_t>(data(), index);
    case DType::kI64: return static_cast<double>(load_as<std::int64_t>(data(), index));
    case DType::kF16: return half_to_float(load_as<std::uint16_t>(data(), index));
    case DType::kBF16: return bfloat16_to_float(load_as<std::uint16_t>(data(), index));
    case DType::kF32: return load_as<float>(data(), index);
    case DType::kF64: return load_as<double>(data(), index);
  }
  return 0;
}

void Tensor::set(std::int64_t index, double value) {
  SEGFUSE_CHECK(index >= 0 && index < size_, "index {} of {} elements", index, size_);
  switch (dtype_) {
    case DType::kBool: return store_as<std::uint8_t>(data(), index, value != 0);
    case DType::kI32:
      return store_as<std::int32_t>(data(), index, saturate_cast<std::int32_t>(value));
    case DType::kI64:
      return store_as<std::int64_t>(data(), index, saturate_cast<std::int64_t>(value));
    case DType::kF16: return store_as<std::uint16_t>(data(), index, double_to_half(value));
    case DType::kBF16: return store_as<std::uint16_t>(data(), index, double_to_bfloat16(value));
    case DType::kF32: return store_as<float>(data(), index, static_cast<float>(value));
    case DType::kF64: return store_as<double>(data(), index, value);
  }
}

Tensor Tensor::clone() const {
  if (device_) return on_device(dtype_, shape_, device_->clone());
  const void* const elements = data();
  Tensor copy(dtype_, shape_);
  if (size_ > 0) std::memcpy(copy.data(), elements, bytes());
  return copy;
}

Tensor Tensor::to(DType dtype) const {
  if (!storage_ && (!device_ || dtype != dtype_)) refuse();
  if (dtype == dtype_) return *this;
  Tensor converted(dtype, shape_);
  for (std::int64_t i = 0; i < size_; ++i) converted.set(i, at(i));
  return converted;
}

Tensor Tensor::reshaped(Shape shape) const {
  if (!storage_ && !device_) refuse();
  if (num_elements(shape) != size_)
    throw UsageError(
        fmt::format("a tensor of shape {} cannot take the shape {}: {} against {} elements",
                    to_string(shape_), to_string(shape), size_, num_elements(shape)));
  Tensor view = *this;
  view.shape_ = std::move(shape);
  return view;
}

}  // namespace segfuse
