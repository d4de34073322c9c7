#pragma once
// How two values are added on a device, with the bits of add_values() (comm/add.h).

// The device's language under the names used here. For a host's compiler, the file that includes
// this defines them first.
#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#endif

namespace segfuse::comm::gpu {

struct __align__(16) FourWords {
  float word[4];
};

DEVICE bool is_nan(unsigned bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

/// left + right. A device makes one NaN of all; here the left one stays, and which NaN infinities
/// of both signs make is what a host's processor says.
DEVICE float sum_of(float left, float right) {
  const unsigned a = __float_as_uint(left);
  const unsigned b = __float_as_uint(right);
  if (is_nan(a)) return left;
  if (is_nan(b)) return __uint_as_float(b | 0x400000u);
  const float sum = left + right;
  return is_nan(__float_as_uint(sum)) ? __uint_as_float(0xffc00000u) : sum;
}

DEVICE FourWords sum_of(const FourWords& left, const FourWords& right) {
  FourWords sum;
  for (int i = 0; i < 4; ++i) sum.word[i] = sum_of(left.word[i], right.word[i]);
  return sum;
}

}  // namespace segfuse::comm::gpu
