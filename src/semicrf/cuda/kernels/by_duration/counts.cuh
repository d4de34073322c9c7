#pragma once
// Transitions by duration, after the passes: start posteriors and expected counts, parallel over
// time.
//
//   P(segment (s, k, c) after c') = 2^(alpha_s(c') - peak_s) 2^M_k[c', c] 2^y,
//   y = peak_s + enter + content + D[k] + leave + beta_{s+k}(c) - log2 Z

#include "semicrf/cuda/kernels/by_duration/pass.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"
#include "semicrf/cuda/kernels/sum/transitions.cuh"

namespace segfuse::semicrf::gpu {

/// y for one source and class and k = 1, 2, .. in turn.
struct SegmentBits {
  const Call& call;
  int row, s, c, length;
  double bits;  ///< without what depends on the end

  DEVICE_MEMBER SegmentBits(const Call& all, int r, int source, int label)
      : call(all), row(r), s(source), c(label), length(row_length(all, r)) {
    bits = bits_of(call.scores.start, row, s, c) - call.lattice.partition[row] +
           (s == 0 ? bits_of(call.scores.initial, c, 0, 0) : peak_of(call, row)[s]);
  }
  DEVICE_MEMBER double next(int k) {
    const int frame = s + k - 1;
    bits += bits_of(call.scores.emission, row, frame, c);
    return bits + bits_of(call.scores.duration, k - 1, c, 0) +
           bits_of(call.scores.end, row, frame, c) +
           call.lattice.beta[at_boundary(call, row, frame + 1) + c];
  }
};

/// P(segment (s, k, c) after `from`) from logarithms.
DEVICE double probability_after(const Call& call, int row, int s, int k, int from, int c,
                                double bits) {
  const double alpha = call.lattice.alpha[at_boundary(call, row, s) + from];
  return exp2(alpha - peak_of(call, row)[s] + pair_bits(call, k, from, c) + bits);
}

/// grid (T / warps, B), block (32, warps): delta_s(c) = P(a segment of c starts at s).
KERNEL starts_by_duration(const __grid_constant__ Call call) {
  const Link x(call);
  const int row = blockIdx.y;
  const int s = blockIdx.x * blockDim.y + threadIdx.y;
  const int length = row_length(call, row);
  if (s >= length || call.row_weight[row] == 0.0) return;
  const long long here = at_boundary(call, row, s);
  const double limit = x.direct ? minus_infinity() : kMaxBits;
  for (int c = x.lane; c < x.classes; c += kLinkLanes) {
    SegmentBits segment(call, row, s, c);
    double sum = 0.0;
    for (int k = 1; k <= min(x.longest, length - s); ++k) {
      const double bits = segment.next(k);
      if (!(bits > (x.direct ? minus_infinity() : -1100.0 - kMaxBits))) continue;
      if (s == 0) {
        sum += exp2(bits);
      } else if (bits <= limit) {
        sum = fma(exp2(bits),
                  link_sum(call.by_duration.weight + here, slice_of(call, k), x.classes, c), sum);
      } else {
        for (int from = 0; from < x.classes; ++from)
          sum += probability_after(call, row, s, k, from, c, bits);
      }
    }
    call.lattice.delta[here + c] = sum;
  }
}

constexpr int kCountParts = 8;
constexpr int kCountEach = 4;  ///< sources of one thread
constexpr int kCountedSources = kCountParts * kCountEach;

/// A block's sources against one tile of classes, for one duration.
struct CountStage {
  double factor[kCountedSources][kLinkLanes];  ///< weight 2^y; 0 if y is too large
  double bits[kCountedSources][kLinkLanes];    ///< y
};

/// Adds the segments of k frames from the staged sources to the slot's counts.
DEVICE void add_pairs(const Call& call, const Link& x, const CountStage& stage, int row, int begin,
                      int end, int k, int c, double weight, double limit, bool all_linear,
                      double* counts) {
  const double* before = call.by_duration.weight + at_boundary(call, row, begin);
  const double* slice = slice_of(call, k);
  for (int from = x.part; from < x.classes; from += kCountParts) {
    double sum = 0.0;
    for (int i = 0; i < end - begin; ++i)
      if (begin + i > 0) sum = fma(before[i * x.classes + from], stage.factor[i][x.lane], sum);
    sum = x.direct ? 0.0 : sum * slice[from * x.classes + c];
    for (int i = 0; i < end - begin && !all_linear; ++i)
      if (stage.bits[i][x.lane] > limit)
        sum += weight * probability_after(call, row, begin + i, k, from, c, stage.bits[i][x.lane]);
    counts[(static_cast<long long>(k - 1) * x.classes + from) * x.classes + c] += sum;
  }
}

/// Counts of the segments that begin in [begin, end); the first segments go to `first` (K, C).
DEVICE void count_sources(const Call& call, const Link& x, CountStage& stage, int row, int begin,
                          int end, int c, bool mine, double* counts, double* first) {
  const int length = row_length(call, row);
  const double weight = call.row_weight[row];
  const double limit = x.direct ? minus_infinity() : kMaxBits;
  double reached[kCountEach];  // content so far, by source
#pragma unroll
  for (int j = 0; j < kCountEach; ++j)
    reached[j] = SegmentBits(call, row, min(begin + x.part + j * kCountParts, end - 1), c).bits;
  for (int k = 1; k <= min(x.longest, length - begin); ++k) {
    bool linear = true;
#pragma unroll
    for (int j = 0; j < kCountEach; ++j) {
      const int i = x.part + j * kCountParts;
      const int s = begin + i;
      double bits = minus_infinity();
      if (s < end && s + k <= length) {
        SegmentBits segment(call, row, s, c);
        segment.bits = reached[j];
        bits = segment.next(k);
        reached[j] = segment.bits;
        if (s == 0 && first != nullptr && mine)
          first[static_cast<long long>(k - 1) * x.classes + c] += weight * exp2(bits);
        if (s == 0) bits = minus_infinity();
      }
      linear = linear && bits <= limit;
      stage.factor[i][x.lane] = bits <= limit ? weight * exp2(bits) : 0.0;
      stage.bits[i][x.lane] = bits;
    }
    const bool all_linear = __syncthreads_and(linear);
    if (mine) add_pairs(call, x, stage, row, begin, end, k, c, weight, limit, all_linear, counts);
    __syncthreads();
  }
}

/// grid (slots, class tiles), block (kLinkLanes, kCountParts): transitions, and durations as their
/// sums with the first segments.
KERNEL counts_by_duration(const __grid_constant__ Call call) {
  __shared__ CountStage stage;
  const Link x(call);
  const int c = min(static_cast<int>(blockIdx.y) * kLinkLanes + x.lane, x.classes - 1);
  const bool mine = static_cast<int>(blockIdx.y) * kLinkLanes + x.lane < x.classes;
  const long long durations = static_cast<long long>(x.longest) * x.classes;
  double* counts = call.transition_partial + blockIdx.x * durations * x.classes;
  double* first =
      call.duration_partial == nullptr ? nullptr : call.duration_partial + blockIdx.x * durations;
  for (int k = 0; k < x.longest && mine; ++k) {
    for (int from = x.part; from < x.classes; from += kCountParts)
      counts[(static_cast<long long>(k) * x.classes + from) * x.classes + c] = 0.0;
    if (x.part == 0 && first != nullptr) first[static_cast<long long>(k) * x.classes + c] = 0.0;
  }
  for_units(call, blockIdx.x, [&](const Unit& unit) {
    for (int begin = unit.begin; begin < unit.end; begin += kCountedSources)
      count_sources(call, x, stage, unit.row, begin, min(begin + kCountedSources, unit.end), c,
                    mine, counts, first);
  });
  __syncthreads();
  for (int k = x.part; k < x.longest && mine && first != nullptr; k += kCountParts) {
    double& sum = first[static_cast<long long>(k) * x.classes + c];
    for (int from = 0; from < x.classes; ++from)
      sum += counts[(static_cast<long long>(k) * x.classes + from) * x.classes + c];
  }
}

}  // namespace segfuse::semicrf::gpu
