#pragma once
// What is read off a row's expected counts: entropy and divergences, boundaries within a tolerance,
// most probable labels.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

/// This thread's part of the first model's expected score under the scores of row x.
DEVICE double expected_score_part(const ScopeRow& p, const ScopeRow& x) {
  const RowCounts& n = p.n;
  double sum = 0.0;
  for (long long i = threadIdx.x; i < p.at(p.length); i += blockDim.x) {
    if (!is_rounding(n.label[i], x.x.emission[i], static_cast<int>(i / p.classes)))
      sum += expected(n.label[i], x.x.emission[i]);
    if (x.x.start != nullptr) sum += expected(n.start[i], x.x.start[i]);
    if (x.x.end != nullptr) sum += expected(n.end[i], x.x.end[i]);
  }
  const long long pairs = p.slices() * p.classes * p.classes;
  for (long long i = threadIdx.x; i < pairs; i += blockDim.x)
    sum += expected(n.transition[i], x.x.transition[i]);
  const long long durations = static_cast<long long>(p.longest) * p.classes;
  for (long long i = threadIdx.x; i < durations; i += blockDim.x)
    sum += expected(n.duration[i], x.x.duration[i]);
  for (int c = threadIdx.x; c < p.classes; c += blockDim.x) {
    sum += expected(n.start[c], x.x.initial[c]);
    sum += expected(n.end[p.at(p.length - 1) + c], x.x.final[c]);
    if (x.x.tail != nullptr) sum += expected(n.tail[c], x.x.tail[c]);
  }
  return sum;
}

/// grid (B), block 256: the entropy of the first model; with two, the divergence of the second.
KERNEL expected_scores(const __grid_constant__ ScopeCall call) {
  __shared__ double scratch[32];
  const int row = blockIdx.x;
  const ScopeRow p(call, 0, row);
  const double z = *p.z;
  if (z == minus_infinity() || p.length == 0) {
    if (threadIdx.x != 0) return;
    put(call.rows.entropy, row, 0.0);
    put(call.cross_entropy, row, 0.0);
    put(call.divergence, row, 0.0);
    return;
  }
  const double entropy = z - block_sum(expected_score_part(p, p), scratch);
  // An entropy is not negative; only rounding can make the difference so.
  if (threadIdx.x == 0) put(call.rows.entropy, row, fmax(0.0, entropy));
  if (call.models == 1) return;
  const ScopeRow q(call, 1, row);
  double cross = *q.z - block_sum(expected_score_part(p, q), scratch);
  if (*q.z == minus_infinity() || call.forbidden[row] != 0) cross = -minus_infinity();
  if (threadIdx.x != 0) return;
  put(call.cross_entropy, row, fmax(0.0, cross));
  put(call.divergence, row, fmax(0.0, cross - entropy));
}

/// Whether q forbids some way into segment (s, k, c) that p allows.
DEVICE bool forbids_entry(const ScopeRow& p, const ScopeRow& q, int s, int k, int c) {
  if (q.start(s, c) == minus_infinity()) return true;
  if (s == 0) return q.x.initial[c] == minus_infinity();
  for (int from = 0; from < p.classes; ++from)
    if (p.l.value[p.at(s) + from] > minus_infinity() &&
        p.transition(k, from, c) > minus_infinity() && q.transition(k, from, c) == minus_infinity())
      return true;
  return false;
}

/// Whether q forbids a segmentation that p allows, for segments of label c from s on. Sums of
/// finite logarithms are finite, so what p allows is what its lattice gives a finite value.
DEVICE bool forbids_from(const ScopeRow& p, const ScopeRow& q, int s, int c) {
  bool content = false;
  for (int k = 1; k <= min(p.longest, p.length - s); ++k) {
    const int t = s + k - 1;
    if (p.emission(t, c) == minus_infinity()) return false;
    content = content || q.emission(t, c) == minus_infinity();
    if (p.duration(k, c) == minus_infinity() || p.l.sink[p.at(t + 1) + c] == minus_infinity() ||
        entry(p, s, k, c) == minus_infinity())
      continue;
    if (content || q.duration(k, c) == minus_infinity() || forbids_entry(p, q, s, k, c) ||
        q.end(t, c) == minus_infinity() || (t + 1 == p.length && q.x.final[c] == minus_infinity()))
      return true;
  }
  return false;
}

/// grid (T C / blockDim, B); `forbidden` is cleared before.
KERNEL find_forbidden(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const ScopeRow p(call, 0, row);
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (*p.z == minus_infinity() || i >= p.at(p.length)) return;
  const ScopeRow q(call, 1, row);
  if (forbids_from(p, q, static_cast<int>(i / p.classes), static_cast<int>(i % p.classes)))
    atomicOr(&call.forbidden[row], 1);
}

/// P(segment (s, d), any label) for d = 1 .. most. One warp a first frame; blockDim (32, warps),
/// grid (frames / warps, B).
KERNEL short_segments(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int s = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const ScopeRow r(call, 0, row);
  if (s >= r.length || *r.z == minus_infinity()) return;
  const int most = call.marginals.most;
  double* out =
      call.marginals.segments + (static_cast<long long>(row) * call.sizes.frames + s) * most;
  if (threadIdx.x == 0)
    for (int d = 0; d < most; ++d) out[d] = 0.0;
  for (int first = 0; first < r.classes; first += 32) {
    const int c = min(first + static_cast<int>(threadIdx.x), r.classes - 1);
    const bool mine = first + static_cast<int>(threadIdx.x) < r.classes;
    double content = 0.0;
    for (int d = 1; d <= min(most, r.length - s); ++d) {
      const int k = min(d, r.longest);
      if ((d > 1 && r.forced(s + d - 1)) || (d > k && r.x.tail == nullptr)) break;
      content += r.emission(s + d - 1, c);
      double bits = content + r.duration(k, c) + r.l.sink[r.at(s + d) + c];
      if (d > k) bits += static_cast<double>(d - k) * r.x.tail[c];
      const double scalar = r.l.base[s] + r.l.rest_base[s + d] - *r.z;
      const double p = warp_sum(mine ? exp(bits + entry(r, s, k, c) + scalar) : 0.0);
      if (threadIdx.x == 0) out[d - 1] += p;
    }
  }
}

/// Segments of more than `most` frames by their first frame, and by the frame after their last;
/// grid ((T + 1) / blockDim, B).
KERNEL long_segments(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const ScopeRow r(call, 0, row);
  if (t > r.length || *r.z == minus_infinity()) return;
  const MarginalOutputs& m = call.marginals;
  const double* segments = m.segments + static_cast<long long>(row) * call.sizes.frames * m.most;
  double from = 0.0;
  double until = 0.0;
  for (int c = 0; c < r.classes; ++c) {
    if (t < r.length) from += r.n.start[r.at(t) + c];
    if (t > 0) until += r.n.end[r.at(t - 1) + c];
  }
  for (int d = 1; d <= m.most; ++d) {
    if (t + d <= r.length) from -= segments[static_cast<long long>(t) * m.most + d - 1];
    if (t >= d) until -= segments[static_cast<long long>(t - d) * m.most + d - 1];
  }
  const long long at = static_cast<long long>(row) * (call.sizes.frames + 1) + t;
  m.from[at] = from;
  m.until[at] = until;
}

/// P(a segment starts in [t - w, t + w]) for every frame. A window is missed when one segment
/// covers it and the frame x before it: a segment of more than m = 2w + 1 frames that starts at x
/// or before and has not ended by x + m. One thread a row.
KERNEL starts_within(const __grid_constant__ ScopeCall call) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= call.sizes.batch) return;
  const ScopeRow r(call, 0, row);
  if (*r.z == minus_infinity()) return;
  const int length = r.length;
  const MarginalOutputs& x = call.marginals;
  const int w = min(x.tolerance, length);
  const int m = min(2 * w + 1, length);
  const long long boundaries = static_cast<long long>(row) * (call.sizes.frames + 1);
  const double* from = x.from + boundaries;
  const double* until = x.until + boundaries;
  const double* segments = x.segments + static_cast<long long>(row) * call.sizes.frames * x.most;
  double* out = x.within + static_cast<long long>(row) * call.sizes.frames;
  for (int t = 0; t < length; ++t) out[t] = 1.0;
  double covered = 0.0;
  for (int t = 0; t < m; ++t) covered -= until[t];
  for (int t = w + 1; t + w < length; ++t) {
    const int before = t - w - 1;
    covered += from[before] - until[before + m];
    out[t] = fmax(0.0, fmin(1.0, 1.0 - covered));  // only rounding is beyond
  }
  // Windows that reach the end contain a start when the last segment starts in them.
  double last = 0.0;
  int counted = length;
  for (int t = length - 1; t > w && t + w >= length; --t) {
    while (counted > t - w) {
      --counted;
      last += segments[static_cast<long long>(counted) * x.most + length - counted - 1];
    }
    out[t] = fmin(1.0, last);
  }
}

/// The most probable label of each frame; grid (T / blockDim, B).
KERNEL likeliest_labels(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= call.sizes.frames) return;
  const ScopeRow r(call, 0, row);
  int best = call.marginals.ignore;
  if (t < r.length && *r.z > minus_infinity()) {
    best = 0;
    for (int c = 1; c < r.classes; ++c)
      if (r.n.label[r.at(t) + c] > r.n.label[r.at(t) + best]) best = c;
  }
  const long long* stride = call.marginals.label_stride;
  call.marginals.label[row * stride[0] + t * stride[1]] = best;
}

}  // namespace segfuse::semicrf::gpu
