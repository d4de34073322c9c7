#pragma once
// The passes in the log domain, for rows whose scores leave the range of the linear one: one block
// per (row, direction), any number of classes and durations. Slower by an exponential per (k, c)
// and per pair of classes; values are log2, absolute.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kExactLanes = 8;  ///< lanes that share a class

DEVICE double group_max(double x) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2)
    x = fmax(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
DEVICE double group_sum(double x) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

/// log2 of the sum over n terms term(i), shared by a group of lanes; all lanes of a warp call it.
template <class Term>
DEVICE double log_sum(int n, Term term) {
  const int lane = threadIdx.x % kExactLanes;
  double largest = minus_infinity();
  for (int i = lane; i < n; i += kExactLanes) largest = fmax(largest, term(i));
  largest = group_max(largest);
  double sum = 0.0;
  if (largest > minus_infinity())
    for (int i = lane; i < n; i += kExactLanes) sum += exp2(term(i) - largest);
  sum = group_sum(sum);
  return largest > minus_infinity() ? largest + log2(sum) : largest;
}

/// A frame or boundary score in bits, 0 when the input is absent.
DEVICE double bits_of(const Strided& scores, long long i, long long j, long long k) {
  return scores.data == nullptr ? 0.0 : load(scores, i, j, k) * kLog2E;
}

/// A sum of products below this may have lost terms that underflow.
constexpr double kTrustedLink = 0x1p-900;

/// linear[c] = 2^(values[c] - largest); returns the largest, 0 if nothing is finite. The whole
/// block calls it and may read `linear` afterwards.
DEVICE double to_linear(const double* values, int classes, double* linear) {
  double largest = minus_infinity();
  for (int c = threadIdx.x % 32; c < classes; c += 32) largest = fmax(largest, values[c]);
  largest = warp_max(largest);
  if (largest == minus_infinity()) largest = 0.0;
  for (int c = threadIdx.x; c < classes; c += blockDim.x) linear[c] = exp2(values[c] - largest);
  __syncthreads();
  return largest;
}

/// Product of the values with the matrix for one class, shared by a group of lanes.
DEVICE double link_linear(const Call& call, bool forward, const double* linear, int c) {
  const long long classes = call.sizes.classes;
  const double* factors = call.factors.transition + (forward ? c : c * classes);
  const long long step = forward ? classes : 1;
  double sum = 0.0;
#pragma unroll 4
  for (int other = threadIdx.x % kExactLanes; other < classes; other += kExactLanes)
    sum = fma(linear[other], factors[other * step], sum);
  return group_sum(sum);
}

/// Dynamic shared memory: C doubles.
KERNEL exact_pass(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, linear);
  const int row = blockIdx.x;
  if (!needs_exact(call, row) || call.sizes.by_duration != 0) return;
  const bool forward = blockIdx.y == 0;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  const int lane = threadIdx.x % kExactLanes;
  const int group = threadIdx.x / kExactLanes;
  const int groups = blockDim.x / kExactLanes;
  const int rounds = (classes + groups - 1) / groups;
  const bool linked = call.factors.exponents[2] == 0;  // the matrix has factors
  const Strided& enter = forward ? call.scores.start : call.scores.end;
  const Strided& leave = forward ? call.scores.end : call.scores.start;
  const Strided& first = forward ? call.scores.initial : call.scores.final;
  double* source = (forward ? call.lattice.gamma : call.lattice.beta);
  double* value = (forward ? call.lattice.alpha : call.lattice.delta);
  double* ring = call.pending + (2ll * row + blockIdx.y) * longest * classes;

  const long long origin = at_boundary(call, row, forward ? 0 : length);
  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    source[origin + c] = bits_of(first, c, 0, 0);
  __syncthreads();
  for (int i = 0; i < length; ++i) {
    const int frame = forward ? i : length - 1 - i;
    const long long here = at_boundary(call, row, forward ? i : length - i);
    const long long next = at_boundary(call, row, forward ? i + 1 : length - i - 1);
    const int known = min(longest, i + 1);
    const int newest = i % longest;
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const bool mine = round * groups + group < classes;
      const double frame_bits = bits_of(call.scores.emission, row, frame, c);
      // Ages are handed out to lanes by slot, so that a slot stays with its lane.
      for (int j = lane; mine && j < known; j += kExactLanes) {
        double* slot = ring + static_cast<long long>(j) * classes + c;
        const double before =
            j == newest ? source[here + c] + bits_of(enter, row, frame, c) : *slot;
        *slot = before + frame_bits;
      }
      const double sum = log_sum(mine ? known : 0, [&](int j) {
        const int age = (newest - j + longest) % longest;
        return ring[static_cast<long long>(j) * classes + c] +
               load(call.scores.duration, age, c, 0) * kLog2E;
      });
      if (mine && lane == 0) value[next + c] = sum + bits_of(leave, row, frame, c);
    }
    __syncthreads();
    const double largest = to_linear(value + next, classes, linear);
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const double sum = linked ? link_linear(call, forward, linear, c) : 0.0;
      double bits = log2(sum) + largest;
      // Too small to be trusted, or no factors: formed again from logarithms. A warp's lanes agree.
      if (__any_sync(kAllLanes, !(sum > kTrustedLink)))
        bits = log_sum(classes, [&](int other) {
          const double score = forward ? load(call.scores.transition, 0, other, c)
                                       : load(call.scores.transition, 0, c, other);
          return value[next + other] + score * kLog2E;
        });
      if (round * groups + group < classes && lane == 0) source[next + c] = bits;
    }
    __syncthreads();
  }
}

}  // namespace segfuse::semicrf::gpu
