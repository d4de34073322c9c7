#include "base/half.h"

namespace segfuse {

float half_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude =
        mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000) ? -magnitude : magnitude;
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < std::ldexp(1.0F, -14))  // subnormal: multiples of 2^-24, nearbyint rounds to even
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto mantissa =
      static_cast<int>(std::nearbyint(std::ldexp(fraction, 11)));  // in [1024, 2048]
  return static_cast<std::uint16_t>(sign + ((exponent + 14) << 10) + (mantissa - 1024));
}

}  // namespace segfuse
