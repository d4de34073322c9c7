#pragma once
// Scores into factors, once per call and in parallel, so that the passes need no exponential.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// A finite score beyond this many bits takes the exact path; so does an emission that is that much
/// below the best of its frame.
constexpr double kLargestBits = 289.0;
constexpr double kSmallestEmissionBits = -1000.0;

/// Factor of a score that is not normalised; sets `exact` if it leaves the linear range.
DEVICE double plain_factor(double score, bool& exact) {
  const double bits = score * kLog2E;
  if (bits == minus_infinity()) return 0.0;
  if (fabs(bits) > kLargestBits) exact = true;
  return exp2(fmax(fmin(bits, kLargestBits), -kLargestBits));
}

/// blockDim (lanes of a frame, frames of a block), the lanes a power of two within a warp; grid
/// (blocks, B).
KERNEL prepare_frames(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int lanes = blockDim.x;
  const int lane = threadIdx.x;
  const int t = call.part.frame + static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const bool mine = t < min(row_length(call, row), call.part.frame_end);
  const int classes = mine ? call.sizes.classes : 0;
  const long long base = at_frame(call, row, t);
  bool exact = false;
  double best = minus_infinity();
  for (int c = lane; c < classes; c += lanes) {
    const double score = load(call.scores.emission, row, t, c);
    if (is_nan_or_inf_above(score)) report(call, kFaultEmission, base + c);
    best = fmax(best, score);
  }
  for (int other = lanes / 2; other > 0; other /= 2)
    best = fmax(best, __shfl_xor_sync(kAllLanes, best, other));
  best *= kLog2E;
  const bool reachable = best > minus_infinity() && best < 1e9;
  if (best <= -1e9 && best > minus_infinity()) exact = true;
  const int exponent = reachable && !exact ? static_cast<int>(floor(best)) : 0;
  for (int c = lane; c < classes; c += lanes) {
    const double bits = load(call.scores.emission, row, t, c) * kLog2E - exponent;
    if (bits < kSmallestEmissionBits && bits > minus_infinity()) exact = true;
    call.factors.emission[base + c] = bits > kSmallestEmissionBits ? exp2(bits) : 0.0;
    if (call.scores.start.data != nullptr) {
      const double score = load(call.scores.start, row, t, c);
      if (is_nan_or_inf_above(score)) report(call, kFaultStart, base + c);
      call.factors.start[base + c] = plain_factor(score, exact);
    }
    if (call.scores.end.data != nullptr) {
      const double score = load(call.scores.end, row, t, c);
      if (is_nan_or_inf_above(score)) report(call, kFaultEnd, base + c);
      call.factors.end[base + c] = plain_factor(score, exact);
    }
  }
  if (mine && lane == 0)
    call.factors.frame_exponent[static_cast<long long>(row) * call.sizes.frames + t] = exponent;
  if (exact) atomicOr(&call.lattice.flags[row], static_cast<int>(kNeedsExact));
}

/// Transition and duration, element by element; grid-stride.
KERNEL prepare_shared(const __grid_constant__ Call call) {
  const Sizes& n = call.sizes;
  const long long transitions = all_transitions(n);
  const long long durations = static_cast<long long>(n.max_duration) * n.classes;
  bool exact_pair = false;
  bool exact = false;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
       i < transitions + durations; i += static_cast<long long>(gridDim.x) * blockDim.x) {
    if (i < transitions) {
      const double score = load(call.scores.transition, i / n.classes / n.classes,
                                i / n.classes % n.classes, i % n.classes);
      if (is_nan_or_inf_above(score)) report(call, kFaultTransition, i);
      call.factors.transition[i] = plain_factor(score, exact_pair);
    } else {
      const long long j = i - transitions;
      const double score = load(call.scores.duration, j / n.classes, j % n.classes, 0);
      if (is_nan_or_inf_above(score)) report(call, kFaultDuration, j);
      call.factors.duration[j] = plain_factor(score, exact);
    }
  }
  if (exact_pair) atomicOr(&call.factors.exponents[3], 1);
  if (exact || exact_pair) atomicOr(&call.factors.exponents[2], 1);
}

/// Initial (block 0) and final (block 1) scores, normalised by a power of two, or 1 when absent;
/// one warp each. Block 2 checks the rows' lengths.
KERNEL prepare_ends(const __grid_constant__ Call call) {
  if (blockIdx.x == 2) {
    for (int row = threadIdx.x; row < call.sizes.batch; row += 32) {
      long long n = 0;
      if (call.lengths.wide != nullptr) n = call.lengths.wide[row * call.lengths.stride];
      if (call.lengths.narrow != nullptr) n = call.lengths.narrow[row * call.lengths.stride];
      if (n < 0 || n > call.sizes.frames) report(call, kFaultLength, row);
    }
    return;
  }
  const Strided& scores = blockIdx.x == 0 ? call.scores.initial : call.scores.final;
  double* out = blockIdx.x == 0 ? call.factors.initial : call.factors.final;
  const Fault fault = blockIdx.x == 0 ? kFaultInitial : kFaultFinal;
  double best = minus_infinity();
  for (int c = threadIdx.x; c < call.sizes.classes; c += 32) {
    const double score = scores.data == nullptr ? 0.0 : load(scores, c, 0, 0);
    if (is_nan_or_inf_above(score)) report(call, fault, c);
    best = fmax(best, score * kLog2E);
  }
  best = warp_max(best);
  bool exact = fabs(best) > 1e9 && best > minus_infinity();
  const int exponent = !exact && best > minus_infinity() ? static_cast<int>(floor(best)) : 0;
  for (int c = threadIdx.x; c < call.sizes.classes; c += 32) {
    const double bits = scores.data == nullptr ? 0.0 : load(scores, c, 0, 0) * kLog2E - exponent;
    if (bits < -kLargestBits && bits > minus_infinity()) exact = true;
    out[c] = bits >= -kLargestBits ? exp2(fmin(bits, kLargestBits)) : 0.0;
  }
  if (threadIdx.x == 0) call.factors.exponents[blockIdx.x] = exponent;
  if (exact) atomicOr(&call.factors.exponents[2], 1);
}

}  // namespace segfuse::semicrf::gpu
