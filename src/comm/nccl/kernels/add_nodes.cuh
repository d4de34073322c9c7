#pragma once
// The sum of nodes in the order of the tree, with the bits of add_values() (comm/add.h).

#include "comm/nccl/kernels/arguments.h"

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

template <class Words>
DEVICE void add_at(const AddArguments& a, long long at) {
  Words held[kMaxHeld];
  int depth = 0;
  for (int node = 0; node < a.count; ++node) {
    Words value = reinterpret_cast<const Words*>(a.nodes[node])[at];
    for (int left = a.additions[node]; left > 0; --left) value = sum_of(held[--depth], value);
    held[depth++] = value;
  }
  reinterpret_cast<Words*>(a.sum)[at] = held[0];
}

KERNEL __launch_bounds__(256) add_nodes(const __grid_constant__ AddArguments a) {
  const long long first = blockIdx.x * 256ll + threadIdx.x;
  const long long step = gridDim.x * 256ll;
  const long long fours = a.by_four != 0 ? a.words / 4 : 0;
  for (long long i = first; i < fours; i += step) add_at<FourWords>(a, i);
  for (long long i = 4 * fours + first; i < a.words; i += step) add_at<float>(a, i);
}

}  // namespace segfuse::comm::gpu
