#pragma once
// Aligned scratch memory that keeps its capacity.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace segfuse::semicrf {

/// Classes are padded to a multiple of this, so that a vector never straddles two frames.
inline constexpr std::int64_t kLanes = 8;

inline std::int64_t padded(std::int64_t classes) {
  return (classes + kLanes - 1) / kLanes * kLanes;
}

/// Doubles aligned to 64 bytes. resize() keeps no contents and only grows the allocation.
class AlignedDoubles {
 public:
  void resize(std::int64_t size) {
    if (size > capacity_) {
      const auto bytes = static_cast<std::size_t>(size) * sizeof(double);
      data_.reset(static_cast<double*>(::operator new(bytes, kAlignment)));
      capacity_ = size;
    }
    size_ = size;
  }
  void assign(std::int64_t size, double value) {
    resize(size);
    for (std::int64_t i = 0; i < size; ++i) data_.get()[i] = value;
  }
  double* data() noexcept { return data_.get(); }
  const double* data() const noexcept { return data_.get(); }
  std::int64_t size() const noexcept { return size_; }
  double& operator[](std::int64_t i) { return data_.get()[i]; }
  double operator[](std::int64_t i) const { return data_.get()[i]; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(double* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<double, Free> data_;
  std::int64_t capacity_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace segfuse::semicrf
