#pragma once
// The range of the linear domain: what every nonzero value of a pass is checked to lie in.

#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kTarget = 200;  ///< exponent to which the common scale brings the largest value
constexpr int kMin = 1023 - 700;
constexpr int kMax = 1023 + 600;

DEVICE bool out_of_range(double x) {
  return static_cast<unsigned>(exponent_bits(x) - kMin) > static_cast<unsigned>(kMax - kMin);
}

}  // namespace segfuse::semicrf::gpu
