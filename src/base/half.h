#pragma once
// Conversions between float and the 16-bit formats, round to nearest even; and the integer
// conversion used everywhere.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace segfuse {

inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);

/// Toward zero with the last bit set when inexact: rounded to 16 bits, it is rounded once.
inline float narrowed(double value) {
  const auto nearest = static_cast<float>(value);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  if (static_cast<double>(nearest) != value) bits |= 1U;
  return std::bit_cast<float>(bits);
}
inline std::uint16_t double_to_half(double value) { return float_to_half(narrowed(value)); }
inline std::uint16_t double_to_bfloat16(double value) { return float_to_bfloat16(narrowed(value)); }

/// Truncates toward zero; values outside the range go to its nearest end, NaN to 0.
template <class Int>
Int saturate_cast(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<Int>::min()))
    return std::numeric_limits<Int>::min();
  if (value >= static_cast<double>(std::numeric_limits<Int>::max()))
    return std::numeric_limits<Int>::max();
  return static_cast<Int>(value);
}

}  // namespace segfuse
