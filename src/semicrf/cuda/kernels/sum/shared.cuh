#pragma once
// Shared counts, what remains: rows in the log domain, the gold segments, the sum over the slots.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/durations.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"
#include "semicrf/cuda/kernels/sum/frames.cuh"
#include "semicrf/cuda/kernels/sum/transitions.cuh"

namespace segfuse::semicrf::gpu {

/// grid (slots): adds the counts of rows in the log domain to the slot's sums.
KERNEL exact_counts(const __grid_constant__ Call call) {
  const int classes = call.sizes.classes;
  const long long pairs = static_cast<long long>(classes) * classes;
  const int longest = call.sizes.max_duration;
  const int blocks = (longest + kEachDuration - 1) / kEachDuration;
  for_units(call, blockIdx.x, [&](const Unit& unit) {
    const Posterior posterior(call, unit.row);
    if (!posterior.exact) return;
    const double weight = call.row_weight[unit.row];
    const int length = row_length(call, unit.row);
    for (long long i = threadIdx.x; i < pairs && call.transition_partial != nullptr;
         i += blockDim.x) {
      const int a = static_cast<int>(i / classes);
      const int b = static_cast<int>(i % classes);
      const double bits = bits_of(call.scores.transition, 0, a, b) - posterior.partition;
      double sum = 0.0;
      for (int s = max(unit.begin, 1); s < unit.end; ++s) {
        const long long at = at_boundary(call, unit.row, s);
        sum += exp2(call.lattice.alpha[at + a] + call.lattice.delta[at + b] + bits);
      }
      call.transition_partial[blockIdx.x * pairs + i] += weight * sum;
    }
    for (long long i = threadIdx.x;
         i < static_cast<long long>(blocks) * classes && call.duration_partial != nullptr;
         i += blockDim.x) {
      const int c = static_cast<int>(i % classes);
      const int k = static_cast<int>(i / classes) * kEachDuration;
      double sum[kEachDuration] = {};
      for (int s = unit.begin; s < unit.end; ++s)
        count_directly(call, posterior, weight, s, c, k, length, sum);
      double* out =
          call.duration_partial + (static_cast<long long>(blockIdx.x) * longest + k) * classes + c;
#pragma unroll
      for (int j = 0; j < kEachDuration; ++j)
        if (k + j < longest) out[static_cast<long long>(j) * classes] += sum[j];
    }
  });
}

/// grid (groups of slots): takes the gold segments of the group's rows off the sums of its first
/// slot. A row's segments all weigh the same, so the order in which they are taken off changes no
/// bit.
KERNEL gold_counts(const __grid_constant__ Call call) {
  const Sizes& n = call.sizes;
  double* transition = call.transition_partial + blockIdx.x * all_transitions(n);
  double* duration =
      call.duration_partial + static_cast<long long>(blockIdx.x) * n.max_duration * n.classes;
  const int end = first_row(call, blockIdx.x + 1);
  for (int row = first_row(call, blockIdx.x); row < end; ++row) {
    const double weight = call.row_weight[row];
    if (weight == 0.0) continue;
    const long long first = call.gold.row_pointer[row];
    const long long last = call.gold.row_pointer[row + 1];
    for (long long i = first + threadIdx.x; i < last; i += blockDim.x) {
      const int c = call.gold.label[i];
      const long long slice = n.by_duration != 0 ? call.gold.duration[i] - 1 : 0;
      if (call.duration_partial != nullptr)
        atomicAdd(&duration[static_cast<long long>(call.gold.duration[i] - 1) * n.classes + c],
                  -weight);
      if (call.transition_partial != nullptr && i > first)
        atomicAdd(&transition[(slice * n.classes + call.gold.label[i - 1]) * n.classes + c],
                  -weight);
    }
    __syncthreads();
  }
}

constexpr int kReduceElements = 32;
constexpr int kReduceParts = 8;

/// Sums the slots of transition and duration counts: every kReduceParts-th in order, then these
/// sums in order. Blocks of (32, 8) threads over elements.
KERNEL reduce_shared(const __grid_constant__ Call call) {
  __shared__ double sums[kReduceParts][kReduceElements];
  const long long transitions = all_transitions(call.sizes);
  const long long durations = static_cast<long long>(call.sizes.max_duration) * call.sizes.classes;
  const long long i = static_cast<long long>(blockIdx.x) * kReduceElements + threadIdx.x;
  const bool pair = i < transitions;
  const long long at = pair ? i : i - transitions;
  const long long size = pair ? transitions : durations;
  const double* partial = pair ? call.transition_partial : call.duration_partial;
  double sum = 0.0;
  if (i < transitions + durations && partial != nullptr) {
#pragma unroll 8
    for (int slot = threadIdx.y; slot < call.slots; slot += kReduceParts)
      sum += partial[slot * size + at];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= transitions + durations || partial == nullptr) return;
  for (int part = 1; part < kReduceParts; ++part) sum += sums[part][threadIdx.x];
  if (pair)
    store(call.gradients.transition, at / call.sizes.classes / call.sizes.classes,
          at / call.sizes.classes % call.sizes.classes, at % call.sizes.classes, sum);
  else
    store(call.gradients.duration, at / call.sizes.classes, at % call.sizes.classes, 0, sum);
}

}  // namespace segfuse::semicrf::gpu
