#pragma once
// Joins the chunks of a pass. The recursion is linear and positive, so passes from different starts
// turn into multiples of each other (Birkhoff); a chunk has converged when the sources of its
// warm-up over the last K boundaries before its own are one multiple of those that the chunk before
// it found. They are all that later values depend on.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"

namespace segfuse::semicrf::gpu {

/// Ratios may differ by rounding, which grows with the steps of the warm-up as their root.
constexpr double kRatioTolerance = 1e-12;

/// Boundary and place in the lattice after `steps` steps of a pass.
DEVICE long long lattice_place(const Call& call, int row, bool forward, int length, int steps) {
  return at_boundary(call, row, forward ? steps : length - steps);
}
DEVICE int lattice_scale(const Call& call, int row, bool forward, int length, int steps) {
  const int* scales = forward ? call.lattice.forward_scale : call.lattice.backward_scale;
  return scales[static_cast<long long>(row) * (call.sizes.frames + 1) +
                (forward ? steps : length - steps)];
}

/// grid (chunks - 1, B, 2): the ratio of chunk x + 1, or a mark that the row has to be redone: with
/// a longer warm-up, and at last in one piece.
KERNEL compare_chunks(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int direction = blockIdx.z;
  const bool forward = direction == 0;
  const int chunk = chunk_of(call, forward, blockIdx.x + 1);
  const int length = row_length(call, row);
  const int own = chunk * chunk_steps(call, length);
  if (chunk < 0 || own >= length || !is_due(call, row, forward)) return;
  const int first = max(0, own - call.chunks.warm_up);
  const int classes = call.sizes.classes;
  const long long index = chunk_place(call, row, forward, chunk);
  const double* mine = call.chunks.source + index * (call.chunks.warm_up + 1) * classes;
  const int* my_scale = call.chunks.scale + index * (call.chunks.warm_up + 1);
  const double* sources = forward ? call.lattice.gamma : call.lattice.beta;

  // The ratio is read off the largest source at the boundary where the chunk begins.
  const long long here = lattice_place(call, row, forward, length, own);
  int best = 0;
  for (int c = 1; c < classes; ++c)
    if (sources[here + c] > sources[here + best]) best = c;
  const double numerator = sources[here + best];
  const double denominator = mine[static_cast<long long>(own - first) * classes + best];
  const double ratio = numerator / denominator;
  const int exponent = lattice_scale(call, row, forward, length, own) - my_scale[own - first];
  bool same = numerator > 0.0 && denominator > 0.0 && ratio < 0x1p1000 && ratio > 0x1p-1000;
  const int window = min(call.sizes.max_duration, own - first);
  for (int i = threadIdx.x; i < window * classes && same; i += blockDim.x) {
    const int steps = own - i / classes;
    const int c = i % classes;
    const double theirs = sources[lattice_place(call, row, forward, length, steps) + c];
    const int shift =
        lattice_scale(call, row, forward, length, steps) - my_scale[steps - first] - exponent;
    const double guess = mine[static_cast<long long>(steps - first) * classes + c] * ratio;
    const double truth = scaled(theirs, shift);
    same = fabs(truth - guess) <= kRatioTolerance * truth;
  }
  same = __syncthreads_and(same);
  if (threadIdx.x != 0) return;
  call.chunks.ratio[index] = ratio;
  call.chunks.ratio_exponent[index] = exponent;
  if (!same) atomicOr(&call.lattice.flags[row], redo_flag(forward, call.chunks.round));
}

/// A product of ratios, kept near 1 by powers of two.
struct Product {
  double ratio;
  int exponent;
  DEVICE_MEMBER void take(const Call& call, long long index) {
    ratio *= call.chunks.ratio[index];
    exponent += call.chunks.ratio_exponent[index];
    const int excess = exponent_bits(ratio) - 1023;
    ratio = scaled(ratio, -excess);
    exponent += excess;
  }
};

/// grid (1, B, 2), one thread: the products that join_chunks goes on from.
KERNEL carry_ratios(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int direction = blockIdx.z;
  const bool forward = direction == 0;
  if (!is_due(call, row, forward)) return;
  if ((call.lattice.flags[row] & redo_flag(forward, call.chunks.round)) != 0) return;
  const int length = row_length(call, row);
  const int first = call.part.chunk[direction];
  const int chunks = parts_of(length, chunk_steps(call, length));
  const int end = min(chunks, call.part.chunk_end[direction]);
  Product all{call.part.ratio[direction], call.part.ratio_exponent[direction]};
  const long long carries = (2ll * row + direction) * call.chunks.carries;
  for (int chunk = first + 1; chunk < end; ++chunk) {
    all.take(call, chunk_place(call, row, forward, chunk));
    if ((chunk - first) % kChunksOfCarry != 0) continue;
    call.chunks.carry[carries + (chunk - first) / kChunksOfCarry] = all.ratio;
    call.chunks.carry_exponent[carries + (chunk - first) / kChunksOfCarry] = all.exponent;
  }
}

/// grid (chunks, B, 2): what a chunk lacks, the product of all ratios up to it, at its boundaries.
KERNEL join_chunks(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int direction = blockIdx.z;
  const bool forward = direction == 0;
  const int chunk = chunk_of(call, forward, blockIdx.x);
  const int length = row_length(call, row);
  const int own = chunk * chunk_steps(call, length);
  if (chunk < 0 || (own >= length && chunk > 0) || !is_due(call, row, forward)) return;
  const bool redo = (call.lattice.flags[row] & redo_flag(forward, call.chunks.round)) != 0;
  Product all{1.0, 0};
  if (!redo) {
    const int from = call.part.chunk[direction];
    const int carried = call.chunks.carries > 0 ? (chunk - from) / kChunksOfCarry : 0;
    const long long carry = (2ll * row + direction) * call.chunks.carries + carried;
    all = carried > 0 ? Product{call.chunks.carry[carry], call.chunks.carry_exponent[carry]}
                      : Product{call.part.ratio[direction], call.part.ratio_exponent[direction]};
    for (int i = from + carried * kChunksOfCarry + 1; i <= chunk; ++i)
      all.take(call, chunk_place(call, row, forward, i));
  }
  const int stop = min(length, own + chunk_steps(call, length));
  const long long base = static_cast<long long>(row) * (call.sizes.frames + 1);
  int* scale = (forward ? call.lattice.forward_scale : call.lattice.backward_scale) + base;
  double* ratios = (forward ? call.lattice.forward_ratio : call.lattice.backward_ratio) + base;
  for (int steps = own + (chunk > 0 ? 1 : 0) + threadIdx.x; steps <= stop; steps += blockDim.x) {
    scale[forward ? steps : length - steps] += all.exponent;
    ratios[forward ? steps : length - steps] = all.ratio;
  }
}

}  // namespace segfuse::semicrf::gpu
