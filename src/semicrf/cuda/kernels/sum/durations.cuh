#pragma once
// Expected counts of durations, of the rows in the linear domain.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"
#include "semicrf/cuda/kernels/sum/frames.cuh"
#include "semicrf/cuda/kernels/sum/transitions.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kEachDuration = 8;   ///< durations of one thread
constexpr int kCountSources = 32;  ///< sources staged at once
constexpr int kLargestSourceBits = 700;
constexpr int kMinGrown = 1023 - 1000;  ///< biased exponent of a product of frames to divide by

/// How a block's threads lie over (durations, classes); both are runtime sizes chosen by the host:
/// blockDim = (class tile, duration tiles of 8).
struct DurationTile {
  int class_tile, duration_tile, class_base, duration_base, c, k;
  DEVICE_MEMBER DurationTile() {
    class_tile = blockDim.x;
    duration_tile = blockDim.y * kEachDuration;
    class_base = blockIdx.y * class_tile;
    duration_base = blockIdx.z * duration_tile;
    c = class_base + threadIdx.x;
    k = duration_base + threadIdx.y * kEachDuration;
  }
};

/// A block's shared memory: (kCountSources, class tile) sources, (reach, class tile) targets and
/// frame factors, three scales a target, one word a class. reach = kCountSources + duration tile.
struct DurationStage {
  double* source;
  double* target;
  double* factor;
  double* scale;     ///< (3, reach): a target is worth beta scale[0] scale[1], its frame scale[2]
  unsigned* direct;  ///< bit i: source i is too large for the linear domain and staged as 0
  int reach;
  DEVICE_MEMBER DurationStage(double* memory, const DurationTile& tile) {
    reach = kCountSources + tile.duration_tile;
    source = memory;
    target = source + kCountSources * tile.class_tile;
    factor = target + reach * tile.class_tile;
    scale = factor + reach * tile.class_tile;
    direct = reinterpret_cast<unsigned*>(scale + 3 * reach);
  }
};

/// Power of two that puts frame t on the scale of the boundaries around it, so that products along
/// the best path stay near 1.
DEVICE double frame_scale(const int* forward_scale, int t) {
  return power_of_two(max(-1022, min(1022, forward_scale[t] - forward_scale[t + 1])));
}
DEVICE double scaled_factor(const Call& call, const int* forward_scale, int row, int t, int c) {
  return call.factors.emission[at_frame(call, row, t) + c] * frame_scale(forward_scale, t);
}

DEVICE void load_scales(const Posterior& posterior, double weight, int first_target, int length,
                        const DurationStage& stage) {
  const int* forward_scale = posterior.call.lattice.forward_scale + posterior.base;
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < stage.reach;
       i += blockDim.x * blockDim.y) {
    const int t = first_target + i;
    if (t > length) continue;
    const int shift = posterior.shift(t);
    const int half = shift / 2;
    stage.scale[i] = power_of_two(max(-1022, min(1022, half)));
    stage.scale[stage.reach + i] = power_of_two(max(-1022, min(1022, shift - half))) * weight *
                                   posterior.inverse * posterior.backward_ratio(t);
    stage.scale[2 * stage.reach + i] = frame_scale(forward_scale, t - 1);
  }
}

/// What one source or target is worth before the frames between them: all of a block's elements in
/// parallel.
DEVICE void load_durations(const Call& call, const Posterior& posterior, int begin, int end,
                           int length, const DurationTile& tile, const DurationStage& stage) {
  const int row = posterior.row;
  const int c = min(tile.c, call.sizes.classes - 1);
  const int first_target = begin + tile.duration_base + 1;
  const double* beta = call.lattice.beta + at_boundary(call, row, first_target) + c;
  const double* emission = call.factors.emission + at_frame(call, row, first_target - 1) + c;
  const double* leave = call.factors.end == nullptr
                            ? nullptr
                            : call.factors.end + at_frame(call, row, first_target - 1) + c;
  const int reached = length - first_target + 1;
#pragma unroll 4
  for (int i = threadIdx.y; i < stage.reach; i += blockDim.y) {
    double y = 0.0;
    double factor = 1.0;
    if (i < reached) {
      const int at = i * call.sizes.classes;
      factor = emission[at] * stage.scale[2 * stage.reach + i];
      y = beta[at] * stage.scale[i] * stage.scale[stage.reach + i];
      if (leave != nullptr) y *= leave[at];
    }
    stage.target[i * tile.class_tile + threadIdx.x] = y;
    stage.factor[i * tile.class_tile + threadIdx.x] = factor;
  }
#pragma unroll 4
  for (int i = threadIdx.y; i < kCountSources; i += blockDim.y) {
    const int s = begin + i;
    double x = 0.0;
    if (s < end) {
      x = call.lattice.gamma[at_boundary(call, row, s) + c] * posterior.forward_ratio(s);
      if (call.factors.start != nullptr) x *= call.factors.start[at_frame(call, row, s) + c];
    }
    stage.source[i * tile.class_tile + threadIdx.x] = x;
  }
}

/// Takes the frames from `begin` on into sources and targets: a segment (s, k+1, c) then has
/// probability source[s] * target[s + k + 1] * duration factor.
DEVICE void relate_durations(const Call& call, int row, int begin, int end, int length,
                             const DurationTile& tile, const DurationStage& stage) {
  const int* forward_scale =
      call.lattice.forward_scale + static_cast<long long>(row) * (call.sizes.frames + 1);
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int side = thread; side < 2 * tile.class_tile; side += blockDim.x * blockDim.y) {
    const int local = side % tile.class_tile;
    const int c = min(tile.class_base + local, call.sizes.classes - 1);
    double grown = 1.0;
    if (side >= tile.class_tile) {
      for (int t = begin; t < min(begin + tile.duration_base, length); ++t)
        grown *= scaled_factor(call, forward_scale, row, t, c);
#pragma unroll 4
      for (int i = 0; i < stage.reach; ++i) {
        grown *= stage.factor[i * tile.class_tile + local];
        double& y = stage.target[i * tile.class_tile + local];
        y = fmin(y * grown, 0x1p1000);
      }
      continue;
    }
    unsigned direct = 0;
#pragma unroll 4
    for (int i = 0; i < kCountSources; ++i) {
      double& x = stage.source[i * tile.class_tile + local];
      const int shrunk = exponent_bits(grown);
      if (shrunk < kMinGrown || exponent_bits(x) - shrunk > kLargestSourceBits) {
        direct |= x == 0.0 ? 0u : 1u << i;
        x = 0.0;
      } else if (x != 0.0) {
        x *= reciprocal(grown);
      }
      // The first frames are staged only for the first durations.
      if (tile.duration_base == 0)
        grown *= stage.factor[i * tile.class_tile + local];
      else if (begin + i < end)
        grown *= scaled_factor(call, forward_scale, row, begin + i, c);
    }
    stage.direct[local] = direct;
  }
}

/// Adds the probabilities of the segments (s, k+1 .. k+8, c), each formed in the log domain.
DEVICE void count_directly(const Call& call, const Posterior& posterior, double weight, int s,
                           int c, int k, int length, double* counts) {
  const int row = posterior.row;
  const long long here = at_boundary(call, row, s) + c;
  double bits = bits_of(call.scores.start, row, s, c);
  const long long scales = static_cast<long long>(row) * (call.sizes.frames + 1);
  if (posterior.exact)
    bits += call.lattice.gamma[here] - posterior.partition;
  else
    bits += log2(call.lattice.gamma[here] * posterior.forward_ratio(s)) +
            call.lattice.forward_scale[scales + s] - posterior.last_scale -
            log2(posterior.partition);
  const int last = min(min(k + kEachDuration, call.sizes.max_duration), length - s);
  for (int d = 1; d <= last; ++d) {
    const int frame = s + d - 1;
    bits += bits_of(call.scores.emission, row, frame, c);
    if (!posterior.exact)
      bits -= call.factors.frame_exponent[static_cast<long long>(row) * call.sizes.frames + frame];
    if (d <= k) continue;
    double all =
        bits + bits_of(call.scores.duration, d - 1, c, 0) + bits_of(call.scores.end, row, frame, c);
    const long long there = at_boundary(call, row, s + d) + c;
    if (posterior.exact)
      all += call.lattice.beta[there];
    else
      all += log2(call.lattice.beta[there] * posterior.backward_ratio(s + d)) +
             call.lattice.backward_scale[scales + s + d];
#pragma unroll
    for (int i = 0; i < kEachDuration; ++i)
      if (d - 1 - k == i) counts[i] += weight * exp2(all);
  }
}

/// grid (slots, class tiles, duration tiles); dynamic shared memory: DurationStage. Rows in the log
/// domain are left out (exact_counts).
KERNEL duration_counts(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, memory);
  const DurationTile tile;
  const DurationStage stage(memory, tile);
  const int classes = call.sizes.classes;
  double sum[kEachDuration] = {};
  double direct[kEachDuration] = {};
  const bool mine = tile.c < classes && tile.k < call.sizes.max_duration;
  const int slot = call.part.slice + static_cast<int>(blockIdx.x);
  for_units(call, slot, [&](const Unit& unit) {
    const int length = row_length(call, unit.row);
    const double weight = call.row_weight[unit.row];
    const Posterior posterior(call, unit.row);
    for (int begin = unit.begin; begin < unit.end && !posterior.exact; begin += kCountSources) {
      const int end = min(begin + kCountSources, unit.end);
      __syncthreads();
      load_scales(posterior, weight, begin + tile.duration_base + 1, length, stage);
      __syncthreads();
      load_durations(call, posterior, begin, end, length, tile, stage);
      __syncthreads();
      relate_durations(call, unit.row, begin, end, length, tile, stage);
      __syncthreads();
      const double* y = stage.target + threadIdx.y * kEachDuration * tile.class_tile + threadIdx.x;
      double ahead[kEachDuration];
#pragma unroll
      for (int i = 0; i < kEachDuration; ++i) ahead[i] = y[i * tile.class_tile];
      for (int s = 0; s < kCountSources; s += kEachDuration) {
#pragma unroll
        for (int u = 0; u < kEachDuration; ++u) {
          const double x = stage.source[(s + u) * tile.class_tile + threadIdx.x];
#pragma unroll
          for (int i = 0; i < kEachDuration; ++i)
            sum[i] = fma(x, ahead[(u + i) % kEachDuration], sum[i]);
          ahead[u] = y[(s + u + kEachDuration) * tile.class_tile];
        }
      }
      const unsigned mask = mine ? stage.direct[threadIdx.x] : 0u;
      for (int s = begin; s < end && mask != 0; ++s)
        if ((mask >> (s - begin) & 1u) != 0)
          count_directly(call, posterior, weight, s, tile.c, tile.k, length, direct);
    }
  });
  double* out =
      call.duration_partial + static_cast<long long>(slot) * call.sizes.max_duration * classes;
#pragma unroll
  for (int i = 0; i < kEachDuration; ++i) {
    const int k = tile.k + i;
    if (!mine || k >= call.sizes.max_duration) continue;
    const double factor = call.factors.duration[static_cast<long long>(k) * classes + tile.c];
    out[static_cast<long long>(k) * classes + tile.c] =
        (factor == 0.0 ? 0.0 : sum[i] * factor) + direct[i];
  }
}

}  // namespace segfuse::semicrf::gpu
