#pragma once
// The two passes over a row in the log domain: one block a row and model, a warp a class. The same
// sums as src/semicrf/exact/lattice.cpp, any sizes.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kScopeThreads = 384;  ///< 168 registers each

/// This thread's place in its block.
struct Warp {
  int index, count, lane;
  DEVICE_MEMBER Warp()
      : index(static_cast<int>(threadIdx.x) / 32),
        count(static_cast<int>(blockDim.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}
};

/// A slot of the window: frames of a segment of c whose far boundary is `far`.
DEVICE double* content_of(const ScopeRow& r, int far, int c) {
  return r.l.content + static_cast<long long>(far % r.longest) * r.classes + c;
}

/// Takes a whole number off some vectors of C values, and returns it. The whole block calls it.
DEVICE double rebase(const ScopeRow& r, double* a, double* b, double* c) {
  double most = minus_infinity();
  for (int i = threadIdx.x % 32; i < r.classes; i += 32) {
    most = fmax(most, a[i]);
    if (b != nullptr) most = fmax(most, b[i]);
    if (c != nullptr) most = fmax(most, c[i]);
  }
  most = warp_max(most);
  const double shift = most == minus_infinity() ? 0.0 : rint(most);
  __syncthreads();
  for (int i = threadIdx.x; i < r.classes; i += blockDim.x) {
    a[i] -= shift;
    if (b != nullptr) b[i] -= shift;
    if (c != nullptr) c[i] -= shift;
  }
  return shift;
}

/// source[t].
template <class Sum>
DEVICE void leave_boundary(const ScopeRow& r, int t) {
  const Warp w;
  for (int c = w.index; c < r.classes && !r.by_duration; c += w.count) {
    const double entered = entry_by_warp<Sum>(r, t, 1, c);
    if (w.lane == 0) r.l.source[r.at(t) + c] = entered;
  }
  __syncthreads();
}

/// Prefixes inside a segment of c that has at least K frames at t: those that had them at t - 1,
/// and one that has just reached K.
template <class Sum>
DEVICE double open_at(const ScopeRow& r, int t, int c, double reached) {
  Sum sum;
  sum.add(reached);
  if (!r.forced(t - 1)) sum.add(r.l.open[r.at(t - 1) + c] + r.x.tail[c] + r.emission(t - 1, c));
  return sum.value();
}

/// value[t] and base[t], from n table durations that fit.
template <class Sum>
DEVICE void arrive_at_boundary(const ScopeRow& r, int t, int n) {
  const Warp w;
  const double* base = r.l.base;
  for (int i = w.index; r.by_duration && i < n * r.classes; i += w.count) {
    const double entered =
        entry_by_warp<Sum>(r, t - i / r.classes - 1, i / r.classes + 1, i % r.classes);
    if (w.lane == 0) r.l.entered[i] = entered;
  }
  if (r.by_duration) __syncthreads();
  const bool tailed = r.x.tail != nullptr;
  for (int c = w.index; c < r.classes; c += w.count) {
    const double frame = r.emission(t - 1, c);
    Sum sum;
    double reached = minus_infinity();
    for (int k = 1 + w.lane; k <= n; k += 32) {
      double* slot = content_of(r, t - k, c);
      const double inside = k == 1 ? frame : *slot + frame;
      *slot = inside;
      const double entered =
          r.by_duration ? r.l.entered[(k - 1) * r.classes + c] : r.l.source[r.at(t - k) + c];
      const double term = (entered + (base[t - k] - base[t - 1])) + (inside + r.duration(k, c));
      if (tailed && k == r.longest)
        reached = term;
      else
        sum.add(term);
    }
    if (tailed) {
      const double opened = open_at<Sum>(r, t, c, warp_max(reached));
      if (w.lane == 0) {
        r.l.open[r.at(t) + c] = opened;
        sum.add(opened);
      }
    }
    const double value = over_warp(sum);
    if (w.lane == 0) r.l.value[r.at(t) + c] = value + r.end(t - 1, c);
  }
  __syncthreads();
  const double shift =
      rebase(r, r.l.value + r.at(t), tailed ? r.l.open + r.at(t) : nullptr, nullptr);
  if (threadIdx.x == 0) r.l.base[t] = r.l.base[t - 1] + shift;
  __syncthreads();
}

/// grid (B, models): values of all boundaries, and the log-partition.
KERNEL __launch_bounds__(kScopeThreads) scope_forward(const __grid_constant__ ScopeCall call) {
  const ScopeRow r(call, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  for (int c = threadIdx.x; c < r.classes && r.x.tail != nullptr; c += blockDim.x)
    r.l.open[c] = minus_infinity();
  if (threadIdx.x == 0) r.l.base[0] = 0.0;
  __syncthreads();
  int forced = 0;
  for (int t = 1; t <= r.length; ++t) {
    leave_boundary<LogSum>(r, t - 1);
    if (r.forced(t - 1)) forced = t - 1;
    arrive_at_boundary<LogSum>(r, t, min(r.longest, t - forced));
  }
  if (threadIdx.x >= 32) return;
  LogSum sum;
  for (int c = threadIdx.x; c < r.classes && r.length > 0; c += 32)
    sum.add(r.l.value[r.at(r.length) + c] + r.x.final[c]);
  const double z = over_warp(sum) + r.l.base[r.length];
  if (threadIdx.x == 0) *r.z = r.length == 0 ? 0.0 : z;
}

/// One boundary of the backward pass.
struct BackStep {
  int s, n;       ///< boundary, and table durations that fit
  double scalar;  ///< what makes a product of prefix and suffix a probability
};

/// Terms of the segments that start at s, relative to rest_base[s+1], and their sum.
DEVICE void leave_backwards(const ScopeRow& r, const BackStep& at) {
  const Warp w;
  const int s = at.s;
  for (int c = w.index; c < r.classes; c += w.count) {
    const double frame = r.emission(s, c);
    LogSum sum;
    for (int k = 1 + w.lane; k <= at.n; k += 32) {
      double* slot = content_of(r, s + k, c);
      const double inside = k == 1 ? frame : *slot + frame;
      *slot = inside;
      const bool goes_on = r.x.tail != nullptr && k == r.longest;
      const double beyond = (goes_on ? r.l.open_rest : r.l.sink)[r.at(s + k) + c];
      const double term =
          (beyond + (r.l.rest_base[s + k] - r.l.rest_base[s + 1])) + (inside + r.duration(k, c));
      r.l.terms[(k - 1) * r.classes + c] = term;
      sum.add(term);
    }
    const double inner = over_warp(sum);
    if (w.lane == 0) r.l.inner[c] = inner;
  }
}

/// Expected segments that start at s, by label, duration and label before.
DEVICE void count_starts(const ScopeRow& r, const BackStep& at) {
  const Warp w;
  for (int i = w.index; r.by_duration && i < at.n * r.classes; i += w.count) {
    const double entered = entry_by_warp<LogSum>(r, at.s, i / r.classes + 1, i % r.classes);
    if (w.lane == 0) r.l.entered[i] = entered;
  }
  __syncthreads();
  for (int c = w.index; c < r.classes; c += w.count) {
    double starts = 0.0;
    for (int k = 1 + w.lane; k <= at.n && (r.by_duration || r.n.duration != nullptr); k += 32) {
      const int i = (k - 1) * r.classes + c;
      const double entered = r.by_duration ? r.l.entered[i] : r.l.source[r.at(at.s) + c];
      const double p = exp(r.l.terms[i] + entered + at.scalar);
      starts += p;
      if (r.n.duration != nullptr) r.n.duration[i] += p;
    }
    starts = warp_sum(starts);
    if (!r.by_duration) starts = exp(r.l.inner[c] + r.l.source[r.at(at.s) + c] + at.scalar);
    if (w.lane == 0) r.n.start[r.at(at.s) + c] = starts;
  }
  if (r.n.transition == nullptr || at.s == 0) return;
  const long long square = static_cast<long long>(r.classes) * r.classes;
  const long long pairs = r.by_duration ? at.n * square : square;
  const double* value = r.l.value + r.at(at.s);
  for (long long i = threadIdx.x; i < pairs; i += blockDim.x) {
    const int c = static_cast<int>(i % r.classes);
    const int from = static_cast<int>(i / r.classes % r.classes);
    const double rest = r.by_duration ? r.l.terms[i / square * r.classes + c] : r.l.inner[c];
    r.n.transition[i] +=
        exp(value[from] + r.x.transition[i] + (rest + r.start(at.s, c)) + at.scalar);
  }
}

/// rest[s]: all that may follow a segment that ends at s, relative to rest_base[s+1].
DEVICE void link_backwards(const ScopeRow& r, const BackStep& at) {
  const Warp w;
  for (int from = w.index; from < r.classes; from += w.count) {
    LogSum sum;
    const int cells = r.by_duration ? at.n * r.classes : r.classes;
    for (int i = w.lane; i < cells; i += 32) {
      const int c = i % r.classes;
      const double rest = r.by_duration ? r.l.terms[i] : r.l.inner[c];
      sum.add(rest + r.start(at.s, c) + r.transition(i / r.classes + 1, from, c));
    }
    const double rest = over_warp(sum);
    if (w.lane == 0) r.l.rest[from] = rest;
  }
}

/// sink[t] and open_rest[t] from rest, and P(frame t - 1 is the last of a segment of c).
DEVICE void finish_backwards(const ScopeRow& r, int t, double scalar, bool counted) {
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) {
    const double rest = r.l.rest[c];
    const double sink = rest + r.end(t - 1, c);
    r.l.sink[r.at(t) + c] = sink;
    if (counted) r.n.end[r.at(t - 1) + c] = exp(r.l.value[r.at(t) + c] + rest + scalar);
    if (r.x.tail == nullptr) continue;
    LogSum sum;
    sum.add(sink);
    if (t < r.length && !r.forced(t)) {
      const double goes_on = r.x.tail[c] + r.emission(t, c) + r.l.open_rest[r.at(t + 1) + c];
      sum.add(goes_on);
      if (counted) r.n.tail[c] += exp(r.l.open[r.at(t) + c] + goes_on + scalar);
    }
    r.l.open_rest[r.at(t) + c] = sum.value();
  }
}

/// P(frame s has label c), a running sum of ends less starts from the right. A forbidden frame is
/// exactly 0, and no rounding is negative.
DEVICE void count_labels(const ScopeRow& r, int s) {
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) {
    const long long i = r.at(s) + c;
    const double covered = r.n.covered[c] + r.n.end[i];
    r.n.label[i] = r.x.emission[i] == minus_infinity() ? 0.0 : fmax(0.0, covered);
    r.n.covered[c] = covered - r.n.start[i];
  }
}

DEVICE void clear_counts(const ScopeRow& r) {
  const long long square = static_cast<long long>(r.classes) * r.classes;
  for (long long i = threadIdx.x; r.n.transition != nullptr && i < r.slices() * square;
       i += blockDim.x)
    r.n.transition[i] = 0.0;
  const long long durations = static_cast<long long>(r.longest) * r.classes;
  for (long long i = threadIdx.x; r.n.duration != nullptr && i < durations; i += blockDim.x)
    r.n.duration[i] = 0.0;
  for (int c = threadIdx.x; c < r.classes && r.n.start != nullptr; c += blockDim.x)
    r.n.covered[c] = r.n.tail[c] = 0.0;
}

/// grid (B, models): suffixes of all boundaries, and the expected counts, of rows with a path.
KERNEL __launch_bounds__(kScopeThreads) scope_backward(const __grid_constant__ ScopeCall call) {
  const ScopeRow r(call, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const double z = *r.z;
  const bool counted = r.n.start != nullptr;
  clear_counts(r);
  if (z == minus_infinity() || r.length == 0) return;
  for (int c = threadIdx.x; c < r.classes; c += blockDim.x) r.l.rest[c] = r.x.final[c];
  if (threadIdx.x == 0) r.l.rest_base[r.length] = 0.0;
  __syncthreads();
  finish_backwards(r, r.length, r.l.base[r.length] - z, counted);
  __syncthreads();
  int forced = r.length;
  for (int s = r.length - 1; s >= 0; --s) {
    const BackStep at{s, min(r.longest, forced - s), r.l.base[s] + r.l.rest_base[s + 1] - z};
    if (r.forced(s)) forced = s;
    leave_backwards(r, at);
    __syncthreads();
    if (counted) {
      count_starts(r, at);
      __syncthreads();
      count_labels(r, s);
    }
    if (s == 0) return;
    link_backwards(r, at);
    __syncthreads();
    finish_backwards(r, s, at.scalar, counted);
    __syncthreads();
    const double shift = rebase(r, r.l.rest, r.l.sink + r.at(s),
                                r.x.tail == nullptr ? nullptr : r.l.open_rest + r.at(s));
    if (threadIdx.x == 0) r.l.rest_base[s] = r.l.rest_base[s + 1] + shift;
    __syncthreads();
  }
}

/// One thread a row: log-partition and loss, status, and the weight of its counts.
KERNEL scope_rows(const __grid_constant__ ScopeCall call) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= call.sizes.batch) return;
  const double inside = call.lattice[0].log_partition[row];
  const double all = call.models == 1 ? inside : call.lattice[1].log_partition[row];
  int status = 0;
  if (all == minus_infinity())
    status = 1;
  else if (inside == minus_infinity())
    status = 2;
  const double weight = call.weights == nullptr ? 1.0 : call.weights[row * call.weight_stride];
  const int length = length_of(call.lengths[0], call.sizes.frames, row);
  call.row_weight[row] = status != 0 || length == 0 ? 0.0 : weight;
  // The constrained sum is part of the whole; only rounding can put it above.
  put(call.rows.loss, row, status == 0 ? fmax(0.0, all - inside) : -minus_infinity());
  put(call.rows.log_partition, row, all);
  put(call.rows.score, row, inside);
  put(call.rows.status, row, static_cast<unsigned char>(status));
  put(call.model_status, row, static_cast<unsigned char>(inside == minus_infinity() ? 1 : 0));
  if (status != 0 || length == 0) put(call.rows.entropy, row, 0.0);
}

}  // namespace segfuse::semicrf::gpu
