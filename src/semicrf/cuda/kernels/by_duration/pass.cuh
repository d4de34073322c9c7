#pragma once
// Transitions that depend on the new segment's duration: nothing factors, a step costs K C^2.
// Lattice values are log2, absolute; alpha and beta as elsewhere, delta holds P(a segment starts).
//
//   alpha_t(c) = leave + log sum_{k, c'} 2^(alpha_{t-k}(c') + M_k[c', c] + enter + content + D[k])
//   beta_s(c') = log sum_{k, c} 2^(M_k[c', c] + enter + content + D[k] + leave + beta_{s+k}(c))
//
// The sums are formed in the linear domain: 2^M once per call, 2^(alpha - its largest) once per
// boundary, 2^(the rest - its largest) once per (k, c). What underflows there is below
// 2^-700; a sum below kMinSum is formed again from logarithms.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kLinkLanes = 32;  ///< classes side by side
constexpr int kLinkParts = 16;  ///< parts into which durations are dealt out
constexpr double kMinSum = 0x1p-300;
constexpr double kMaxBits = 300.0;  ///< of a factor that multiplies a linear sum

/// A tile of classes and a part of the durations: this thread's.
struct Link {
  int lane, part, classes, longest;
  bool direct;  ///< no linear sums: transitions leave the range of factors
  DEVICE_MEMBER explicit Link(const Call& call)
      : lane(threadIdx.x),
        part(threadIdx.y),
        classes(call.sizes.classes),
        longest(call.sizes.max_duration),
        direct(call.by_duration.direct != 0 || call.factors.exponents[3] != 0) {}
};

DEVICE double pair_bits(const Call& call, int k, int from, int to) {
  return load(call.scores.transition, k - 1, from, to) * kLog2E;
}
DEVICE const double* slice_of(const Call& call, int k) {
  return call.factors.transition +
         static_cast<long long>(k - 1) * call.sizes.classes * call.sizes.classes;
}
/// Largest alpha at boundary t, and 2^(alpha - it).
DEVICE double* peak_of(const Call& call, int row) {
  return call.by_duration.peak + static_cast<long long>(row) * (call.sizes.frames + 1);
}

/// Over the parts, in order: every thread gets the result of its lane.
template <class Combine>
DEVICE double combine_parts(double x, double (&scratch)[kLinkParts][kLinkLanes], Combine combine) {
  __syncthreads();
  scratch[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  double all = scratch[0][threadIdx.x];
  for (int part = 1; part < kLinkParts; ++part) all = combine(all, scratch[part][threadIdx.x]);
  return all;
}
DEVICE double max_of_parts(double x, double (&scratch)[kLinkParts][kLinkLanes]) {
  return combine_parts(x, scratch, [](double a, double b) { return fmax(a, b); });
}
DEVICE double sum_of_parts(double x, double (&scratch)[kLinkParts][kLinkLanes]) {
  return combine_parts(x, scratch, [](double a, double b) { return a + b; });
}

/// sum_c' 2^(alpha_s(c') - peak_s) 2^M_k[c', c].
DEVICE double link_sum(const double* weight, const double* slice, int classes, int c) {
  double sum[2] = {0.0, 0.0};
  int from = 0;
  for (; from + 1 < classes; from += 2) {
    sum[0] = fma(weight[from], slice[from * classes + c], sum[0]);
    sum[1] = fma(weight[from + 1], slice[(from + 1) * classes + c], sum[1]);
  }
  if (from < classes) sum[0] = fma(weight[from], slice[from * classes + c], sum[0]);
  return sum[0] + sum[1];
}

/// Visits the logarithms of all terms of alpha_t(c) that are this part's.
template <class Visit>
DEVICE void each_prefix(const Call& call, const Link& x, int row, int t, int c, const double* ring,
                        Visit visit) {
  for (int k = 1 + x.part; k <= min(x.longest, t); k += kLinkParts) {
    const int s = t - k;
    const double segment = ring[static_cast<long long>(s % x.longest) * x.classes + c] +
                           bits_of(call.scores.duration, k - 1, c, 0);
    if (segment == minus_infinity()) continue;
    if (s == 0) {
      visit(segment);
      continue;
    }
    const double* alpha = call.lattice.alpha + at_boundary(call, row, s);
    const double peak = peak_of(call, row)[s];
    for (int from = 0; from < x.classes; ++from)
      visit(segment + (alpha[from] - peak) + pair_bits(call, k, from, c));
  }
}

/// The same sum from logarithms; all threads of the block call it.
DEVICE double prefix_from_logarithms(const Call& call, const Link& x, int row, int t, int c,
                                     const double* ring,
                                     double (&scratch)[kLinkParts][kLinkLanes]) {
  double largest = minus_infinity();
  each_prefix(call, x, row, t, c, ring, [&](double term) { largest = fmax(largest, term); });
  largest = max_of_parts(largest, scratch);
  double sum = 0.0;
  if (largest > minus_infinity())
    each_prefix(call, x, row, t, c, ring, [&](double term) { sum += exp2(term - largest); });
  sum = sum_of_parts(sum, scratch);
  return largest > minus_infinity() ? largest + log2(sum) : largest;
}

/// log2 of alpha_t(c) without its leave score. The ring holds, by source and class, the source's
/// peak, enter and content.
DEVICE double prefix_sum(const Call& call, const Link& x, int row, int t, int c, double* ring,
                         double (&scratch)[kLinkParts][kLinkLanes]) {
  const double* weight = call.by_duration.weight + at_boundary(call, row, 0);
  const double emission = bits_of(call.scores.emission, row, t - 1, c);
  double largest = minus_infinity();
  for (int k = 1 + x.part; k <= min(x.longest, t); k += kLinkParts) {
    double& slot = ring[static_cast<long long>((t - k) % x.longest) * x.classes + c];
    if (k == 1) {
      slot = bits_of(call.scores.start, row, t - 1, c) +
             (t == 1 ? bits_of(call.scores.initial, c, 0, 0) : peak_of(call, row)[t - 1]);
    }
    slot += emission;
    largest = fmax(largest, slot + bits_of(call.scores.duration, k - 1, c, 0));
  }
  largest = max_of_parts(largest, scratch);
  double sum = 0.0;
  for (int k = 1 + x.part; k <= min(x.longest, t); k += kLinkParts) {
    const int s = t - k;
    const double bits = ring[static_cast<long long>(s % x.longest) * x.classes + c] +
                        bits_of(call.scores.duration, k - 1, c, 0) - largest;
    if (!(bits > -1100.0)) continue;  // NaN where nothing is possible
    const double* at = weight + static_cast<long long>(s) * x.classes;
    const double before = s == 0 ? 1.0 : link_sum(at, slice_of(call, k), x.classes, c);
    sum = fma(exp2(bits), before, sum);
  }
  sum = sum_of_parts(sum, scratch);
  const bool trusted =
      largest == minus_infinity() || (sum >= kMinSum && !x.direct && sum < 0x1p1000);
  const double linear = largest == minus_infinity() ? largest : largest + log2(sum);
  if (__syncthreads_and(trusted)) return linear;
  const double exact = prefix_from_logarithms(call, x, row, t, c, ring, scratch);
  return trusted ? linear : exact;
}

DEVICE void forward_by_duration(const Call& call, int row,
                                double (&scratch)[kLinkParts][kLinkLanes]) {
  const Link x(call);
  const int length = row_length(call, row);
  double* ring = call.pending + 2ll * row * x.longest * x.classes;
  double* peaks = peak_of(call, row);
  const int thread = x.part * kLinkLanes + x.lane;
  for (int t = 1; t <= length; ++t) {
    const long long here = at_boundary(call, row, t);
    for (int base = 0; base < x.classes; base += kLinkLanes) {
      const int c = min(base + x.lane, x.classes - 1);
      const bool mine = base + x.lane < x.classes;
      // Lanes beyond the classes hold no slot.
      Link own = x;
      if (!mine) own.part = x.longest;
      const double sum = prefix_sum(call, own, row, t, c, ring, scratch);
      if (mine && x.part == 0)
        call.lattice.alpha[here + c] = sum + bits_of(call.scores.end, row, t - 1, c);
    }
    __syncthreads();
    double peak = minus_infinity();
    for (int c = x.lane; c < x.classes; c += kLinkLanes)
      peak = fmax(peak, call.lattice.alpha[here + c]);
    peak = warp_max(peak);
    if (thread == 0) peaks[t] = peak;
    for (int c = thread; c < x.classes; c += kLinkLanes * kLinkParts)
      call.by_duration.weight[here + c] =
          peak > minus_infinity() ? exp2(call.lattice.alpha[here + c] - peak) : 0.0;
    __syncthreads();
  }
}

/// log2 of beta_s(from), by one warp. `factors` are 2^(segment - largest) by (k, c), from k = 1 on;
/// segment is what the direct sum needs.
template <class Segment>
DEVICE double suffix_sum(const Call& call, const Link& x, int known, int from, double largest,
                         const double* factors, Segment segment) {
  if (largest == minus_infinity()) return largest;
  double sum = 0.0;
  const int cells = known * x.classes;
  int k = 1;
  int c = x.lane;
  while (c >= x.classes) c -= x.classes, ++k;
  for (int i = x.lane; i < cells && !x.direct; i += kLinkLanes) {
    sum = fma(slice_of(call, k)[from * x.classes + c], factors[i], sum);
    c += kLinkLanes;
    while (c >= x.classes) c -= x.classes, ++k;
  }
  sum = warp_sum(sum);
  if (sum >= kMinSum && !x.direct) return largest + log2(sum);
  double most = minus_infinity();
  for (int i = x.lane; i < cells; i += kLinkLanes) {
    const int d = i / x.classes + 1;
    most = fmax(most, segment(d, i % x.classes) + pair_bits(call, d, from, i % x.classes));
  }
  most = warp_max(most);
  if (most == minus_infinity()) return most;
  sum = 0.0;
  for (int i = x.lane; i < cells; i += kLinkLanes) {
    const int d = i / x.classes + 1;
    sum += exp2(segment(d, i % x.classes) + pair_bits(call, d, from, i % x.classes) - most);
  }
  return most + log2(warp_sum(sum));
}

/// The ring holds, by target and class, beta, leave and content.
DEVICE void backward_by_duration(const Call& call, int row, double* scratch) {
  const Link x(call);
  const int length = row_length(call, row);
  const long long cells = static_cast<long long>(x.longest) * x.classes;
  double* ring = call.pending + (2ll * row + 1) * cells;
  double* factors = call.by_duration.factors + row * cells;
  const int thread = x.part * kLinkLanes + x.lane;
  constexpr int kThreads = kLinkLanes * kLinkParts;
  for (int s = length - 1; s > 0; --s) {
    const int known = min(x.longest, length - s);
    const double* beta = call.lattice.beta + at_boundary(call, row, s + 1);
    const auto segment = [&](int k, int c) {
      return ring[static_cast<long long>((s + k) % x.longest) * x.classes + c] +
             bits_of(call.scores.duration, k - 1, c, 0) + bits_of(call.scores.start, row, s, c);
    };
    double largest = minus_infinity();
    for (int i = thread; i < known * x.classes; i += kThreads) {
      const int k = i / x.classes + 1;
      const int c = i % x.classes;
      double& slot = ring[static_cast<long long>((s + k) % x.longest) * x.classes + c];
      if (k == 1) slot = beta[c] + bits_of(call.scores.end, row, s, c);
      slot += bits_of(call.scores.emission, row, s, c);
      factors[i] = segment(k, c);
      largest = fmax(largest, factors[i]);
    }
    largest = warp_max(largest);
    __syncthreads();
    if (x.lane == 0) scratch[x.part] = largest;
    __syncthreads();
    for (int part = 0; part < kLinkParts; ++part) largest = fmax(largest, scratch[part]);
    for (int i = thread; i < known * x.classes && largest > minus_infinity(); i += kThreads)
      factors[i] = exp2(factors[i] - largest);
    __syncthreads();
    for (int from = x.part; from < x.classes; from += kLinkParts) {
      const double sum = suffix_sum(call, x, known, from, largest, factors, segment);
      if (x.lane == 0) call.lattice.beta[at_boundary(call, row, s) + from] = sum;
    }
    __syncthreads();
  }
}

/// grid (B, directions), block (kLinkLanes, kLinkParts): alpha and beta.
KERNEL pass_by_duration(const __grid_constant__ Call call) {
  __shared__ double scratch[kLinkParts][kLinkLanes];
  const int row = blockIdx.x;
  const bool forward = blockIdx.y == 0;
  if (!forward || gridDim.y == 1) {
    const long long last = at_boundary(call, row, row_length(call, row));
    for (int c = threadIdx.y * kLinkLanes + threadIdx.x; c < call.sizes.classes;
         c += kLinkLanes * kLinkParts)
      call.lattice.beta[last + c] = bits_of(call.scores.final, c, 0, 0);
    __syncthreads();
  }
  if (forward)
    forward_by_duration(call, row, scratch);
  else
    backward_by_duration(call, row, &scratch[0][0]);
}

}  // namespace segfuse::semicrf::gpu
