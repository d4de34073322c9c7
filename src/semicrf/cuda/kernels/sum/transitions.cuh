#pragma once
// Expected counts of transitions and durations: sums over all rows and boundaries, in partial sums
// whose number and order depend on the problem alone. Here: units, and the transitions.
//
// A unit is a time slice of a row. Rows are dealt out to groups in runs, and a group has some
// slots; slot j of a group takes every so manieth unit of its rows from the j-th on, in order.
// Slots are numbered first by j, so that slots without units are the last ones, and adding them
// changes no bit: how many there are may follow the longest row that may come.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/sum/frames.cuh"

namespace segfuse::semicrf::gpu {

/// The boundaries or sources of one unit.
struct Unit {
  int row;
  int begin;
  int end;
};

/// Groups of slots, and how many of them each has.
DEVICE int slots_of_group(const Call& call) { return call.slots / call.slot_groups; }
DEVICE int first_row(const Call& call, int group) {
  return static_cast<int>(static_cast<long long>(call.sizes.batch) * group / call.slot_groups);
}

/// Slots that a row deals its units out to, where it has slots of its own.
DEVICE int slots_of_row(const Call& call, int length) {
  return call.slot_frames == 0 ? slots_of_group(call)
                               : max(1, min(parts_of(length, call.slot_frames), kMaxSlices));
}

/// Calls body(unit) for each unit of a slot.
template <class Body>
DEVICE void for_units(const Call& call, int slot, Body body) {
  const int group = slot % call.slot_groups;
  const int last = first_row(call, group + 1);
  for (int row = first_row(call, group); row < last; ++row) {
    const int length = call.row_weight[row] == 0.0 ? 0 : row_length(call, row);
    const int frames = slice_frames(length);
    const int hop = slots_of_row(call, length);
    const int first = slot / call.slot_groups;
    if (first >= hop) continue;
    for (int begin = first * frames; begin < length; begin += hop * frames)
      body(Unit{row, begin, min(begin + frames, length)});
  }
}

constexpr int kCountSide = 16;        ///< threads along either side of a tile of class pairs
constexpr int kCountBoundaries = 16;  ///< boundaries staged at once

/// Part of a unit's boundaries as two sets of vectors whose outer products are summed. A thread
/// carries kEach elements of either from memory to the block.
template <int kEach>
struct Staged {
  static constexpr int kSide = kCountSide * kEach;
  double from[kCountBoundaries][kSide];
  double to[kCountBoundaries][kSide];
};

template <int kEach>
struct Carried {
  double from[kEach];
  double to[kEach];

  DEVICE_MEMBER void load(const Call& call, const Posterior& posterior, double weight, int begin,
                          int end, int first_from, int first_to) {
    constexpr int kSide = Staged<kEach>::kSide;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int element = i * kCountSide * kCountSide + static_cast<int>(threadIdx.x);
      const int s = begin + element / kSide;
      const int a = first_from + element % kSide;
      const int b = first_to + element % kSide;
      from[i] = to[i] = 0.0;
      if (s < end) {
        const Place at = posterior.place(s);
        const int half = at.shift / 2;
        const long long here = at_boundary(call, posterior.row, s);
        if (a < call.sizes.classes) from[i] = scaled(call.lattice.alpha[here + a], half);
        if (b < call.sizes.classes)
          to[i] = scaled(call.lattice.delta[here + b], at.shift - half) * (weight * at.factor);
      }
    }
  }
  DEVICE_MEMBER void store(Staged<kEach>& staged) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int element = i * kCountSide * kCountSide + static_cast<int>(threadIdx.x);
      (&staged.from[0][0])[element] = from[i];
      (&staged.to[0][0])[element] = to[i];
    }
  }
};

/// grid (slots, tiles, tiles), kCountSide^2 threads; a thread sums kEach x kEach pairs, kCountSide
/// apart. Rows in the log domain are left out (exact_counts).
template <int kEach>
DEVICE void transition_counts(const Call& call) {
  constexpr int kSide = Staged<kEach>::kSide;
  __shared__ Staged<kEach> staged;
  const int classes = call.sizes.classes;
  const int from = blockIdx.y * kSide;
  const int to = blockIdx.z * kSide;
  const int x = threadIdx.x / kCountSide;
  const int y = threadIdx.x % kCountSide;
  double sum[kEach][kEach] = {};
  const int slot = call.part.slice + static_cast<int>(blockIdx.x);
  for_units(call, slot, [&](const Unit& unit) {
    const double weight = call.row_weight[unit.row];
    const Posterior posterior(call, unit.row);
    if (posterior.exact) return;
    Carried<kEach> next;
    const int first = max(unit.begin, 1);
    next.load(call, posterior, weight, first, unit.end, from, to);
    for (int base = first; base < unit.end; base += kCountBoundaries) {
      __syncthreads();
      next.store(staged);
      __syncthreads();
      next.load(call, posterior, weight, base + kCountBoundaries, unit.end, from, to);
#pragma unroll 4
      for (int s = 0; s < kCountBoundaries; ++s)
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j)
            sum[i][j] = fma(staged.from[s][x + i * kCountSide], staged.to[s][y + j * kCountSide],
                            sum[i][j]);
    }
  });
  double* out = call.transition_partial + static_cast<long long>(slot) * classes * classes;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int a = from + x + i * kCountSide;
      const int b = to + y + j * kCountSide;
      if (a >= classes || b >= classes) continue;
      const double factor = call.factors.transition[a * classes + b];
      out[a * classes + b] = factor == 0.0 ? 0.0 : sum[i][j] * factor;
    }
  }
}

KERNEL transition_counts_1(const __grid_constant__ Call call) { transition_counts<1>(call); }
KERNEL transition_counts_2(const __grid_constant__ Call call) { transition_counts<2>(call); }
KERNEL transition_counts_3(const __grid_constant__ Call call) { transition_counts<3>(call); }
KERNEL transition_counts_4(const __grid_constant__ Call call) { transition_counts<4>(call); }

}  // namespace segfuse::semicrf::gpu
