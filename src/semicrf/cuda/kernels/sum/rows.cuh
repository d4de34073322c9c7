#pragma once
// Per row: the gold path, the log-partition, the loss, and what a row's gradient is worth.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"

namespace segfuse::semicrf::gpu {

/// Score of segment i of a row without its frames; false in `fits` if it is out of place.
DEVICE double gold_segment(const Call& call, int row, int length, long long first, long long last,
                           long long i, bool& fits) {
  const Sizes& n = call.sizes;
  const int s = call.gold.start[i];
  const int d = call.gold.duration[i];
  const int c = call.gold.label[i];
  const int expected = i == first ? 0 : call.gold.start[i - 1] + call.gold.duration[i - 1];
  fits = s == expected && d >= 1 && d <= n.max_duration && s >= 0 && d <= length - s && c >= 0 &&
         c < n.classes && (i + 1 < last || s + d == length);
  if (!fits) return 0.0;
  double sum = load(call.scores.duration, d - 1, c, 0);
  if (call.scores.start.data != nullptr) sum += load(call.scores.start, row, s, c);
  if (call.scores.end.data != nullptr) sum += load(call.scores.end, row, s + d - 1, c);
  if (i == first && call.scores.initial.data != nullptr) sum += load(call.scores.initial, c, 0, 0);
  if (i + 1 == last && call.scores.final.data != nullptr) sum += load(call.scores.final, c, 0, 0);
  const int previous = i == first ? -1 : call.gold.label[i - 1];
  if (previous >= 0 && previous < n.classes)
    sum += load(call.scores.transition, n.by_duration != 0 ? d - 1 : 0, previous, c);
  return sum;
}

/// grid (gold_parts, B), a warp a segment: checks the gold segments, spreads them over gold_frames
/// and sums their scores.
KERNEL gold_path(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const int row = blockIdx.y;
  const int length = row_length(call, row);
  const int parts = gold_parts(length);
  if (static_cast<int>(blockIdx.x) >= parts) return;
  const long long first = call.gold.row_pointer[row];
  const long long last = call.gold.row_pointer[row + 1];
  int* frames = call.gold_frames + static_cast<long long>(row) * call.sizes.frames;
  const bool packed =
      first >= 0 && last >= first && last <= call.gold.count && (last == first) == (length == 0);
  if (!packed && threadIdx.x == 0) report(call, kFaultGold, max(first, 0ll));
  const int warps = parts * static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  double sum = 0.0;
  bool valid = packed;
  for (long long i = first + warp; packed && i < last; i += warps) {
    bool fits = true;
    const double score = gold_segment(call, row, length, first, last, i, fits);
    if (lane == 0) sum += score;
    if (!fits && lane == 0) report(call, kFaultGold, i);
    valid = valid && fits;
    if (!fits) continue;
    const int s = call.gold.start[i];
    const int stop = s + call.gold.duration[i];
    const int c = call.gold.label[i];
    for (int t = s + lane; t < stop; t += 32) {
      sum += load(call.scores.emission, row, t, c);
      frames[t] = c | (t == s ? kGoldStart : 0) | (t == stop - 1 ? kGoldEnd : 0);
    }
  }
  sum = block_sum(sum, scratch);
  valid = __syncthreads_and(valid);
  if (threadIdx.x == 0)
    call.gold_score[static_cast<long long>(row) * call.gold_parts + blockIdx.x] =
        valid ? sum : minus_infinity();
}

/// Sum of the exponents of a row's frames, those of this part's slices: whole numbers, exact in any
/// order while they add up to less than 2^53.
DEVICE double exponent_sum(const Call& call, int row, int length, double* scratch) {
  const long long frames = slice_frames(length);
  const long long end = min(frames * call.part.slice_end, static_cast<long long>(length));
  const int* exponents =
      call.factors.frame_exponent + static_cast<long long>(row) * call.sizes.frames;
  double sum = 0.0;
#pragma unroll 8
  for (long long t = frames * call.part.slice + threadIdx.x; t < end; t += blockDim.x)
    sum += exponents[t];
  return block_sum(sum, scratch);
}

/// What this part of a row adds to part.shift of the others, where the partition will be.
KERNEL part_exponents(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const double sum = exponent_sum(call, 0, row_length(call, 0), scratch);
  if (threadIdx.x == 0) call.lattice.partition[0] = sum;
}

/// A part of a row learns what is known of the whole.
KERNEL adopt_row(const __grid_constant__ Call call) {
  call.lattice.partition[0] = call.part.partition;
  call.lattice.last_scale[0] = call.part.last_scale;
  call.lattice.flags[0] = call.part.flags;
  call.row_weight[0] = call.part.weight;
}

/// One block a row, after the passes: the outputs per row, and row_weight.
KERNEL finish_rows(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const Sizes& n = call.sizes;
  const bool exact = needs_exact(call, row);
  const long long last = at_boundary(call, row, length);
  double log_partition = 0.0;
  double partition = 0.0;
  if (length > 0 && exact) {
    double largest = minus_infinity();
    for (int c = 0; c < n.classes; ++c)
      largest = fmax(largest, call.lattice.alpha[last + c] + call.lattice.beta[last + c]);
    double sum = 0.0;
    for (int c = threadIdx.x; c < n.classes && largest > minus_infinity(); c += blockDim.x)
      sum += exp2(call.lattice.alpha[last + c] + call.lattice.beta[last + c] - largest);
    sum = block_sum(sum, scratch);
    partition = largest > minus_infinity() ? largest + log2(sum) : largest;
    log_partition = partition * kLn2;
  } else if (length > 0) {
    double sum = 0.0;
    for (int c = threadIdx.x; c < n.classes; c += blockDim.x)
      sum += call.lattice.alpha[last + c] * call.factors.final[c];
    partition = block_sum(sum, scratch);
    const long long at = static_cast<long long>(row) * (n.frames + 1) + length;
    if (call.lattice.forward_ratio != nullptr) partition *= call.lattice.forward_ratio[at];
    double shift = call.part.shift + exponent_sum(call, row, length, scratch);
    shift += call.lattice.forward_scale[at];
    shift += call.factors.exponents[0] + call.factors.exponents[1];
    log_partition = partition > 0.0 ? shift * kLn2 + log(partition) : minus_infinity();
  }
  if (threadIdx.x != 0) return;
  call.lattice.partition[row] = partition;
  const long long scales = static_cast<long long>(row) * (n.frames + 1);
  call.lattice.last_scale[row] = exact ? 0 : call.lattice.forward_scale[scales + length];
  int status = log_partition > minus_infinity() ? 0 : 1;
  if (call.gold.row_pointer != nullptr) {
    double score = 0.0;
    for (int part = 0; part < gold_parts(length); ++part)
      score += call.gold_score[static_cast<long long>(row) * call.gold_parts + part];
    if (status == 0 && !(score > minus_infinity())) status = 2;
    put(call.rows.score, row, score);
    // The gold score is one of the terms of the partition; only rounding can put it above.
    put(call.rows.loss, row, status == 0 ? fmax(0.0, log_partition - score) : -minus_infinity());
  }
  put(call.rows.log_partition, row, log_partition);
  put(call.rows.status, row, static_cast<unsigned char>(status));
  const double weight = call.weights == nullptr ? 1.0 : call.weights[row * call.weight_stride];
  call.row_weight[row] = status == 0 && length > 0 ? weight : 0.0;
}

}  // namespace segfuse::semicrf::gpu
