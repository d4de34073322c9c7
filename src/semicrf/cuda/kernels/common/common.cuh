#pragma once
// What all kernels share. INPUT is the type in which scores and gradients are stored.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/half.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;
constexpr unsigned kAllLanes = 0xffffffffu;

DEVICE double minus_infinity() { return __longlong_as_double(0xfff0000000000000ll); }
DEVICE bool is_nan_or_inf_above(double x) {
  return !(x < __longlong_as_double(0x7ff0000000000000ll));
}

DEVICE double to_double(INPUT x) { return static_cast<double>(x); }
DEVICE INPUT from_double(double x) { return static_cast<INPUT>(x); }

/// 1/x for normal x, to an ulp.
DEVICE double reciprocal(double x) {
  double y = approximate_reciprocal(x);
  y = fma(y, fma(-x, y, 1.0), y);
  y = fma(y, fma(-x, y, 1.0), y);
  return fma(y, fma(-x, y, 1.0), y);
}

/// Biased exponent, 0 for zero and subnormal numbers, 2047 for infinity and NaN.
DEVICE int exponent_bits(double x) { return (__double2hiint(x) >> 20) & 0x7ff; }

/// 2^n for -1022 <= n <= 1023.
DEVICE double power_of_two(int n) { return __hiloint2double((n + 1023) << 20, 0); }

/// x * 2^n for |n| up to 2044, underflow to zero.
DEVICE double scaled(double x, int n) {
  const int half = max(-1022, min(1022, n / 2));
  const int rest = max(-1022, min(1022, n - n / 2));
  return x * power_of_two(half) * power_of_two(rest);
}

DEVICE double load(const Strided& a, long long i, long long j, long long k) {
  const long long at = i * a.stride[0] + j * a.stride[1] + k * a.stride[2];
  return to_double(static_cast<const INPUT*>(a.data)[at]);
}

DEVICE void store(const StridedOut& a, long long i, long long j, long long k, double value) {
  if (a.data == nullptr) return;
  const long long at = i * a.stride[0] + j * a.stride[1] + k * a.stride[2];
  static_cast<INPUT*>(a.data)[at] = from_double(value);
}

DEVICE int row_length(const Call& call, int row) {
  long long n = call.sizes.frames;
  if (call.lengths.wide != nullptr) n = call.lengths.wide[row * call.lengths.stride];
  if (call.lengths.narrow != nullptr) n = call.lengths.narrow[row * call.lengths.stride];
  // A length out of range is a fault, reported at the next check; nothing is read out of bounds.
  return static_cast<int>(n < 0 ? 0 : (n > call.sizes.frames ? call.sizes.frames : n));
}

DEVICE void report(const Call& call, Fault fault, long long index) {
  atomicMin(&call.faults[fault], static_cast<unsigned long long>(index));
}

template <class T>
DEVICE void put(const RowOutput<T>& out, int row, T value) {
  if (out.data != nullptr) out.data[row * out.stride] = value;
}

DEVICE bool needs_exact(const Call& call, int row) {
  return call.sizes.by_duration != 0 || call.factors.exponents[2] != 0 ||
         (call.lattice.flags[row] & kNeedsExact) != 0;
}

/// Elements of the transition scores.
DEVICE long long all_transitions(const Sizes& n) {
  return static_cast<long long>(n.by_duration != 0 ? n.max_duration : 1) * n.classes * n.classes;
}

/// First element of (row, boundary) in a (B, T+1, C) array, of (row, frame) in a (B, T, C) one.
DEVICE long long at_boundary(const Call& call, int row, int t) {
  return (static_cast<long long>(row) * (call.sizes.frames + 1) + t) * call.sizes.classes;
}
DEVICE long long at_frame(const Call& call, int row, int t) {
  return (static_cast<long long>(row) * call.sizes.frames + t) * call.sizes.classes;
}

/// A score, 0 when the input is absent.
DEVICE double score_of(const Strided& scores, long long i, long long j, long long k) {
  return scores.data == nullptr ? 0.0 : load(scores, i, j, k);
}

struct Candidate {
  double score;
  int choice;
};

/// The larger score; the smaller choice among equals.
DEVICE Candidate better(Candidate a, Candidate b) {
  return b.score > a.score || (b.score == a.score && b.choice < a.choice) ? b : a;
}

/// The same for labels before a segment, whose own segments lasted durations[label]: the shorter
/// one among equals, then the smaller label.
DEVICE Candidate better_label(Candidate a, Candidate b, const int* durations) {
  if (a.score != b.score || a.score == minus_infinity()) return better(a, b);
  const int shorter = durations[b.choice] - durations[a.choice];
  return shorter < 0 || (shorter == 0 && b.choice < a.choice) ? b : a;
}

DEVICE double warp_max(double x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmax(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
DEVICE double warp_sum(double x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

/// Sum over the block in a fixed order; all threads get it. `scratch` has 32 elements.
DEVICE double block_sum(double x, double* scratch) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
  for (unsigned w = 0; w < (blockDim.x + 31) / 32; ++w) sum += scratch[w];
  return sum;
}

/// Of an expected score. A forbidden score is used with probability 0.
DEVICE double expected(double count, double score) {
  return score > minus_infinity() ? count * score : 0.0;
}

/// Whether the count of a label in frame t is what rounding left of 0 below a mask: counts of
/// labels are sums of differences.
DEVICE bool is_rounding(double count, double score, int t) {
  constexpr double kMask = -1e4;
  return score < kMask && count < 1e-14 * (1000 + t);
}

}  // namespace segfuse::semicrf::gpu
