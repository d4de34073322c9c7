#pragma once
// Short ways to write tensors and to compare them.

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <vector>

#include "base/rng.h"
#include "segfuse/tensor.h"

namespace segfuse::testing {

inline Tensor tensor(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor result(dtype, shape);
  EXPECT_EQ(static_cast<std::size_t>(result.size()), values.size());
  for (std::int64_t i = 0; i < result.size(); ++i)
    result.set(i, values[static_cast<std::size_t>(i)]);
  return result;
}

/// A one-axis tensor.
inline Tensor row(const std::vector<double>& values, DType dtype = DType::kF64) {
  return tensor(dtype, {static_cast<std::int64_t>(values.size())}, values);
}

inline Tensor scalar(double value, DType dtype = DType::kF64) { return tensor(dtype, {}, {value}); }

/// 0, 1, 2, ... in the given shape.
inline Tensor counting(const Shape& shape, DType dtype = DType::kF64) {
  Tensor result(dtype, shape);
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, static_cast<double>(i));
  return result;
}

/// Uniform in [low, high).
inline Tensor uniform(Rng& rng, DType dtype, const Shape& shape, double low = -2, double high = 2) {
  Tensor result(dtype, shape);
  for (std::int64_t i = 0; i < result.size(); ++i)
    result.set(i, low + (high - low) * rng.uniform());
  return result;
}

inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < tensor.size(); ++i) all.push_back(tensor.at(i));
  return all;
}

/// Equal, or both NaN, or within tolerance * max(1, |b|).
inline bool near(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b));
}

inline void expect_values(const Tensor& found, const std::vector<double>& expected,
                          double tolerance = 1e-12) {
  ASSERT_EQ(static_cast<std::size_t>(found.size()), expected.size()) << to_string(found.shape());
  for (std::int64_t i = 0; i < found.size(); ++i)
    EXPECT_PRED3(near, found.at(i), expected[static_cast<std::size_t>(i)], tolerance)
        << "element " << i;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const auto* x = static_cast<const unsigned char*>(a.data());
  const auto* y = static_cast<const unsigned char*>(b.data());
  return std::equal(x, x + a.bytes(), y);
}

}  // namespace segfuse::testing
