#pragma once
// Scores stored in 16 bits, by plain bit conversions, rounded to nearest even by way of a float:
// the same bits as on the CPU.

#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// IEEE half precision.
struct Half {
  unsigned short bits;
  Half() = default;
  DEVICE_MEMBER explicit Half(double value) {
    const unsigned x = __float_as_uint(static_cast<float>(value));
    const unsigned magnitude = x & 0x7fffffffu;
    unsigned y = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    if (magnitude > 0x7f800000u)
      y = 0x7e00u;  // NaN
    else if (magnitude >= 0x477ff000u)
      y = 0x7c00u;  // from 65520 on
    else if (magnitude < 0x38800000u)
      // Below 2^-14 halves are multiples of 2^-24, as floats in [0.5, 1) are.
      y = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    bits = static_cast<unsigned short>((x >> 16 & 0x8000u) | y);
  }
  DEVICE_MEMBER explicit operator double() const {
    const unsigned magnitude = (bits & 0x7fffu) << 13;
    const bool finite = (bits & 0x7c00u) != 0x7c00u;
    const float value =
        finite ? __uint_as_float(magnitude) * 0x1p112f : __uint_as_float(magnitude | 0x7f800000u);
    return (bits & 0x8000u) != 0 ? -value : value;
  }
};

/// The upper 16 bits of a float.
struct BFloat16 {
  unsigned short bits;
  BFloat16() = default;
  DEVICE_MEMBER explicit BFloat16(double value) {
    const unsigned x = __float_as_uint(static_cast<float>(value));
    const bool nan = (x & 0x7fffffffu) > 0x7f800000u;
    const unsigned rounded = nan ? x | 0x400000u : x + 0x7fffu + (x >> 16 & 1u);
    bits = static_cast<unsigned short>(rounded >> 16);
  }
  DEVICE_MEMBER explicit operator double() const {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
};

}  // namespace segfuse::semicrf::gpu
