#pragma once
// Element types, shapes and tensors: the values that go into and come out of a compiled Fusion.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

/// Element types. Bool is stored as one byte holding 0 or 1.
enum class DType : std::uint8_t { kBool, kI32, kI64, kF16, kBF16, kF32, kF64 };

/// Bytes of one element.
std::size_t size_of(DType dtype) noexcept;
/// Name in the text form: bool, i32, i64, f16, bf16, f32, f64.
std::string_view name_of(DType dtype) noexcept;
/// The inverse of name_of; throws UsageError for an unknown name.
DType dtype_from_name(std::string_view name);
bool is_float(DType dtype) noexcept;
bool is_integer(DType dtype) noexcept;  ///< i32 and i64; not bool.

/// An alternative that no variant ever holds. libstdc++ takes a variant of scalars, strings and
/// vectors to be never without a value, and destroys what is not there when copying one runs out
/// of memory; with one more alternative, which is none of these, it does not.
struct NeverHeld {
  NeverHeld() = delete;
  ~NeverHeld() {}  // NOLINT(modernize-use-equals-default): it must not be trivial
  bool operator==(const NeverHeld&) const = default;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};

/// Sizes of the axes, outermost first. A scalar has no axes.
using Shape = std::vector<std::int64_t>;

/// Number of elements; 1 for a scalar. Throws UsageError if a size is negative or the product
/// overflows.
std::int64_t num_elements(const Shape& shape);
/// "[2, 3]"
std::string to_string(const Shape& shape);

/// Device memory of a tensor, made by the library. Destroying the last copy frees it, even while
/// the device still uses it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// "cuda:0"
  virtual std::string device() const = 0;
  /// Copies the first bytes to the host, when what was enqueued before has written them, and waits
  /// for them. DeviceError when that work failed.
  virtual void copy_to_host(void* to, std::size_t bytes) const = 0;
  /// Memory of the same device with the same bytes; enqueued, not waited for.
  virtual std::shared_ptr<DeviceMemory> clone() const = 0;
};

/// A contiguous row-major array in host memory, or in that of a device. Copies share the storage;
/// clone() copies the elements. Functions that access elements throw a UsageError for a tensor on a
/// device; to_host() copies it. A tensor that was moved from has no storage, and its shape and size
/// mean nothing: accesses throw a UsageError, too.
class Tensor {
 public:
  /// An empty tensor of shape [0].
  Tensor();
  /// Uninitialised storage, aligned to 64 bytes.
  Tensor(DType dtype, Shape shape);

  /// Views the caller's memory, contiguous and aligned to its elements, which lives as long as
  /// copies of `memory`.
  static Tensor borrow(DType dtype, Shape shape, std::shared_ptr<std::byte> memory);
  /// Elements in the memory of a device.
  static Tensor on_device(DType dtype, Shape shape, std::shared_ptr<DeviceMemory> memory);
  static Tensor zeros(DType dtype, Shape shape);
  static Tensor full(DType dtype, Shape shape, double value);
  /// Copies `values`; their number must equal the shape's.
  template <class T>
  static Tensor from(std::span<const T> values, Shape shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, Shape shape) {
    return from(std::span<const T>(values), std::move(shape));
  }

  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  std::int64_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(size_) * size_of(dtype_); }
  bool shares_storage_with(const Tensor& other) const noexcept {
    return storage_ == other.storage_ && device_ == other.device_;
  }
  /// Null for a tensor in host memory.
  const std::shared_ptr<DeviceMemory>& device_memory() const noexcept { return device_; }
  /// The same elements in host memory: the tensor itself if it is there. Waits for the device.
  Tensor to_host() const;

  void* data() {
    if (!storage_) refuse();
    return storage_.get();
  }
  const void* data() const {
    if (!storage_) refuse();
    return storage_.get();
  }
  /// The elements as T; throws UsageError if T is not the dtype.
  template <class T>
  std::span<T> span();
  template <class T>
  std::span<const T> span() const;

  /// Element `index` in row-major order, converted to double.
  double at(std::int64_t index) const;
  /// Stores `value` converted to the dtype.
  void set(std::int64_t index, double value);

  Tensor clone() const;
  /// A converted copy (shares storage when the dtype is already right).
  Tensor to(DType dtype) const;
  /// The same elements under another shape of equal size.
  Tensor reshaped(Shape shape) const;

 private:
  Tensor(DType dtype, Shape shape, std::shared_ptr<std::byte> storage);
  [[noreturn]] void refuse() const;

  DType dtype_;
  Shape shape_;
  std::int64_t size_;
  std::shared_ptr<std::byte> storage_;    ///< in host memory
  std::shared_ptr<DeviceMemory> device_;  ///< or there
};

}  // namespace segfuse
