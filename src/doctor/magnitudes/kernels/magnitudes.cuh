#pragma once
// The largest magnitudes of many tensors, each read once. Without its sign a floating-point number
// is larger than another one if its bits are, and NaN is larger than infinity: so maxima of
// integers do, in any order.

#include "doctor/magnitudes/kernels/arguments.h"

namespace segfuse::doctor::gpu {

typedef unsigned long long Wide;

static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return a < b ? b : a; }
static __device__ __forceinline__ Wide larger(Wide a, Wide b) { return a < b ? b : a; }

/// The bits of a float that is not smaller; finite if the number is.
static __device__ __forceinline__ unsigned from_half(unsigned bits) {
  const unsigned exponent = bits >> 10;
  const unsigned fraction = bits & 0x3ffu;
  if (exponent == 31) return 0x7f800000u | fraction << 13;
  if (exponent == 0) return __float_as_uint(static_cast<float>(fraction) * 5.9604644775390625e-8f);
  return (exponent + 112) << 23 | fraction << 13;
}

static __device__ __forceinline__ unsigned from_double(Wide bits) {
  if (bits > 0x7ff0000000000000ull) return 0x7fc00000u;
  if (bits == 0x7ff0000000000000ull) return 0x7f800000u;
  const double value = __longlong_as_double(static_cast<long long>(bits));
  return value > 3.4028234663852886e38 ? 0x7f7fffffu : __float_as_uint(static_cast<float>(value));
}

/// Of two numbers of 16 bits each, lane by lane.
static __device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b) {
  return __vmaxu2(a, b & 0x7fff7fffu);
}

static __device__ __forceinline__ unsigned of_16(const Numbers& t, Wide first, Wide stride) {
  const auto* const data = static_cast<const unsigned short*>(t.data);
  const Wide misplaced = (16 - (reinterpret_cast<Wide>(t.data) & 15)) % 16 / 2;
  const Wide head = misplaced < t.count ? misplaced : t.count;
  const Wide eights = (t.count - head) / 8;
  const auto* const whole = reinterpret_cast<const uint4*>(data + head);
  unsigned best = 0;
#pragma unroll 4
  for (Wide i = first; i < eights; i += stride) {
    const uint4 v = __ldcs(whole + i);
    best = larger_pair(larger_pair(larger_pair(larger_pair(best, v.x), v.y), v.z), v.w);
  }
  for (Wide i = first; i < head; i += stride) best = larger_pair(best, data[i]);
  for (Wide i = head + eights * 8 + first; i < t.count; i += stride)
    best = larger_pair(best, data[i]);
  const unsigned bits = larger(best & 0xffffu, best >> 16);
  return t.kind == kHalf ? from_half(bits) : bits << 16;
}

static __device__ __forceinline__ unsigned of_32(const Numbers& t, Wide first, Wide stride) {
  const auto* const data = static_cast<const unsigned*>(t.data);
  const Wide misplaced = (16 - (reinterpret_cast<Wide>(t.data) & 15)) % 16 / 4;
  const Wide head = misplaced < t.count ? misplaced : t.count;
  const Wide fours = (t.count - head) / 4;
  const auto* const whole = reinterpret_cast<const uint4*>(data + head);
  unsigned best = 0;
#pragma unroll 4
  for (Wide i = first; i < fours; i += stride) {
    const uint4 v = __ldcs(whole + i);
    best = larger(larger(best, v.x & 0x7fffffffu), v.y & 0x7fffffffu);
    best = larger(larger(best, v.z & 0x7fffffffu), v.w & 0x7fffffffu);
  }
  for (Wide i = first; i < head; i += stride) best = larger(best, data[i] & 0x7fffffffu);
  for (Wide i = head + fours * 4 + first; i < t.count; i += stride)
    best = larger(best, data[i] & 0x7fffffffu);
  return best;
}

static __device__ __forceinline__ unsigned of_64(const Numbers& t, Wide first, Wide stride) {
  const auto* const data = static_cast<const Wide*>(t.data);
  Wide best = 0;
  for (Wide i = first; i < t.count; i += stride)
    best = larger(best, data[i] & 0x7fffffffffffffffull);
  return from_double(best);
}

/// A row of blocks for each tensor.
extern "C" __global__ void magnitudes(const MagnitudeArguments arguments) {
  if (arguments.only_if_broken != 0 && *arguments.broken == 0.0f) return;
  const Numbers& t = arguments.tensors[blockIdx.y];
  const Wide first = static_cast<Wide>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Wide stride = static_cast<Wide>(gridDim.x) * blockDim.x;
  unsigned best = 0;
  if (t.kind == kFloat)
    best = of_32(t, first, stride);
  else if (t.kind == kDouble)
    best = of_64(t, first, stride);
  else
    best = of_16(t, first, stride);
  for (int lane = 16; lane > 0; lane /= 2)
    best = larger(best, __shfl_xor_sync(0xffffffffu, best, lane));
  if (threadIdx.x % 32 != 0 || best == 0) return;
  atomicMax(reinterpret_cast<unsigned*>(t.largest), best);
  if (best > t.most) *arguments.broken = 1.0f;
}

}  // namespace segfuse::doctor::gpu
