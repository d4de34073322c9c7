#pragma once
// The best segmentation where transitions depend on the new segment's duration, by the rules of
// best/pass.cuh.

#include "semicrf/cuda/kernels/by_duration/pass.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

/// The best label before a segment of k frames that begins at s: the shorter last segment among
/// equal scores, then the smaller label.
DEVICE Candidate best_before(const Call& call, int row, int s, int k, int c) {
  if (s == 0) return {score_of(call.scores.initial, c, 0, 0), 0};
  const long long here = at_boundary(call, row, s);
  Candidate best{minus_infinity(), 0};
  for (int from = 0; from < call.sizes.classes; ++from) {
    const double score =
        call.lattice.alpha[here + from] + load(call.scores.transition, k - 1, from, c);
    const bool shorter = call.best.duration[here + from] < call.best.duration[here + best.choice];
    if (score > best.score || (score == best.score && shorter)) best = {score, from};
  }
  return best;
}

/// grid (B), block (kLinkLanes, kLinkParts). best.label[t, c] is the label before the segment that
/// ends at t.
KERNEL best_pass_by_duration(const __grid_constant__ Call call) {
  __shared__ double scratch[kLinkParts][kLinkLanes];
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  double* ring = call.pending + 2ll * row * longest * classes;  // enter and content by source
  for (int t = 1; t <= length; ++t) {
    const long long here = at_boundary(call, row, t);
    for (int base = 0; base < classes; base += kLinkLanes) {
      const int c = min(base + static_cast<int>(threadIdx.x), classes - 1);
      const bool mine = base + static_cast<int>(threadIdx.x) < classes;
      Candidate best{minus_infinity(), longest + 1};
      int label = 0;
      for (int k = 1 + threadIdx.y; mine && k <= min(longest, t); k += kLinkParts) {
        double& slot = ring[static_cast<long long>((t - k) % longest) * classes + c];
        if (k == 1) slot = score_of(call.scores.start, row, t - 1, c);
        slot += load(call.scores.emission, row, t - 1, c);
        const double segment = slot + load(call.scores.duration, k - 1, c, 0);
        if (segment == minus_infinity()) continue;
        const Candidate before = best_before(call, row, t - k, k, c);
        if (before.score + segment > best.score) {
          best = {before.score + segment, k};
          label = before.choice;
        }
      }
      const double score = max_of_parts(best.score, scratch);
      const bool wins = best.score == score && score > minus_infinity();
      const double k = -max_of_parts(wins ? -best.choice : -longest - 1.0, scratch);
      // Where nothing is possible, any pointer inside the row does.
      const bool chosen =
          score > minus_infinity() ? best.choice == static_cast<int>(k) : threadIdx.y == 0;
      if (!mine || !chosen) continue;
      call.lattice.alpha[here + c] = score + score_of(call.scores.end, row, t - 1, c);
      call.best.duration[here + c] = score > minus_infinity() ? best.choice : 1;
      call.best.label[here + c] = label;
    }
    __syncthreads();
  }
}

}  // namespace segfuse::semicrf::gpu
