#pragma once
// The sum of nodes in the order of the tree, with the bits of add_values() (comm/add.h).

#include "comm/nccl/kernels/arguments.h"
#include "comm/nccl/kernels/values.cuh"

namespace segfuse::comm::gpu {

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
