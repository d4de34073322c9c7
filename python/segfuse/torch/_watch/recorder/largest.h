// The largest magnitude of numbers on the host. Without its sign a floating-point number is larger
// than another one if its bits are, and NaN is larger than infinity.

#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <bit>
#include <cstdint>
#include <limits>

namespace recorder {

template <class Bits>
__attribute__((optimize("O3"))) inline Bits largest_bits(const void* data, int64_t count) {
  const auto* const numbers = static_cast<const Bits*>(data);
  constexpr Bits without_sign = std::numeric_limits<Bits>::max();
  Bits best = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = Bits(numbers[i] & without_sign);
    best = best < bits ? bits : best;
  }
  return best;
}

inline double largest_on_host(const void* data, int64_t count, at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return double(
          c10::Half(uint16_t(largest_bits<int16_t>(data, count)), c10::Half::from_bits()));
    case at::kBFloat16:
      return double(
          c10::BFloat16(uint16_t(largest_bits<int16_t>(data, count)), c10::BFloat16::from_bits()));
    case at::kFloat: return double(std::bit_cast<float>(largest_bits<int32_t>(data, count)));
    default: return std::bit_cast<double>(largest_bits<int64_t>(data, count));
  }
}

}  // namespace recorder
