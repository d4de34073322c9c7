#pragma once
// What the kernels of CudaInference share. Scores are dense doubles here, natural logarithms.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"

namespace segfuse::semicrf::gpu {

DEVICE int length_of(const RowLengths& lengths, int frames, int row) {
  long long n = frames;
  if (lengths.wide != nullptr) n = lengths.wide[row * lengths.stride];
  if (lengths.narrow != nullptr) n = lengths.narrow[row * lengths.stride];
  return static_cast<int>(n < 0 ? 0 : (n > frames ? frames : n));
}

DEVICE void report_fault(const ScopeCall& call, Fault fault, long long index) {
  atomicMin(&call.faults[fault], static_cast<unsigned long long>(index));
}

template <class T>
DEVICE T* offset(T* data, long long n) {
  return data == nullptr ? nullptr : data + n;
}

/// One row under one of the models: scores, lattice and counts.
struct ScopeRow {
  int length = 0;
  int classes = 0;
  int longest = 0;
  bool by_duration = false;
  Loaded x{};
  LogLattice l{};
  RowCounts n{};
  double* z = nullptr;  ///< log-partition

  ScopeRow() = default;
  DEVICE_MEMBER ScopeRow(const ScopeCall& call, int which, int row)
      : length(length_of(call.lengths[which], call.sizes.frames, row)),
        classes(call.sizes.classes),
        longest(call.sizes.max_duration),
        by_duration(call.sizes.by_duration != 0),
        x(call.loaded[which]),
        l(call.lattice[which]),
        n(call.counts[which]) {
    const long long frames = static_cast<long long>(row) * call.sizes.frames;
    const long long cells = frames * classes;
    const long long boundaries = static_cast<long long>(row) * (call.sizes.frames + 1);
    const long long window = static_cast<long long>(row) * longest * classes;
    x.emission = offset(x.emission, cells);
    x.start = offset(x.start, cells);
    x.end = offset(x.end, cells);
    x.forced = offset(x.forced, frames);
    l.value = offset(l.value, boundaries * classes);
    l.open = offset(l.open, boundaries * classes);
    l.sink = offset(l.sink, boundaries * classes);
    l.open_rest = offset(l.open_rest, boundaries * classes);
    l.source = offset(l.source, cells);
    l.base = offset(l.base, boundaries);
    l.rest_base = offset(l.rest_base, boundaries);
    l.content = offset(l.content, window);
    l.terms = offset(l.terms, window);
    l.entered = offset(l.entered, window);
    const long long labels = static_cast<long long>(row) * classes;
    l.inner = offset(l.inner, labels);
    l.rest = offset(l.rest, labels);
    z = offset(l.log_partition, row);
    n.label = offset(n.label, cells);
    n.start = offset(n.start, cells);
    n.end = offset(n.end, cells);
    n.tail = offset(n.tail, labels);
    n.covered = offset(n.covered, labels);
    n.transition = offset(n.transition, row * slices() * classes * classes);
    n.duration = offset(n.duration, window);
  }
  DEVICE_MEMBER long long slices() const { return by_duration ? longest : 1; }
  DEVICE_MEMBER bool forced(int t) const { return x.forced != nullptr && x.forced[t] != 0; }
  DEVICE_MEMBER double start(int t, int c) const {
    return x.start == nullptr ? 0.0 : x.start[static_cast<long long>(t) * classes + c];
  }
  DEVICE_MEMBER double end(int t, int c) const {
    return x.end == nullptr ? 0.0 : x.end[static_cast<long long>(t) * classes + c];
  }
  DEVICE_MEMBER double emission(int t, int c) const {
    return x.emission[static_cast<long long>(t) * classes + c];
  }
  DEVICE_MEMBER double duration(int k, int c) const {
    return x.duration[static_cast<long long>(k - 1) * classes + c];
  }
  /// Into a segment of k frames, 1 <= k <= K.
  DEVICE_MEMBER double transition(int k, int from, int to) const {
    const long long slice = by_duration ? k - 1 : 0;
    return x.transition[(slice * classes + from) * classes + to];
  }
  DEVICE_MEMBER long long at(int t) const { return static_cast<long long>(t) * classes; }
};

/// A sum of exponentials, term by term.
struct LogSum {
  double most = minus_infinity();
  double sum = 0.0;
  DEVICE_MEMBER void add(double x) {
    if (x == minus_infinity()) return;
    if (x <= most) {
      sum += exp(x - most);
    } else {
      sum = sum * exp(most - x) + 1.0;
      most = x;
    }
  }
  DEVICE_MEMBER double value() const { return most == minus_infinity() ? most : most + log(sum); }
};

/// The largest, instead of a sum.
struct Largest {
  double most = minus_infinity();
  DEVICE_MEMBER void add(double x) { most = fmax(most, x); }
  DEVICE_MEMBER double value() const { return most; }
};

/// Over the lanes of a warp; all of them get it.
DEVICE double over_warp(const LogSum& x) {
  const double most = warp_max(x.most);
  if (most == minus_infinity()) return most;
  return most + log(warp_sum(x.sum * exp(x.most - most)));
}
DEVICE double over_warp(const Largest& x) { return warp_max(x.most); }

/// Prefixes that a segment (s, k, c) may follow, its start score included: a warp's work.
template <class Sum>
DEVICE double entry_by_warp(const ScopeRow& r, int s, int k, int c) {
  const int lane = threadIdx.x % 32;
  if (s == 0) return r.x.initial[c] + r.start(0, c);
  Sum sum;
  for (int from = lane; from < r.classes; from += 32)
    sum.add(r.l.value[r.at(s) + from] + r.transition(k, from, c));
  return over_warp(sum) + r.start(s, c);
}

/// The same by one thread, from what is stored.
DEVICE double entry(const ScopeRow& r, int s, int k, int c) {
  if (!r.by_duration) return r.l.source[r.at(s) + c];
  if (s == 0) return r.x.initial[c] + r.start(0, c);
  double most = minus_infinity();
  for (int from = 0; from < r.classes; ++from)
    most = fmax(most, r.l.value[r.at(s) + from] + r.transition(k, from, c));
  if (most == minus_infinity()) return most;
  double sum = 0.0;
  for (int from = 0; from < r.classes; ++from)
    sum += exp(r.l.value[r.at(s) + from] + r.transition(k, from, c) - most);
  return most + log(sum) + r.start(s, c);
}

/// Calls visit(k, score) for segments of k = 1, 2, ... table frames of label c that end at t: the
/// prefixes up to the segment's end, without its end score, relative to base[t]. Stops where a
/// frame forbids the label or must start a segment, and when visit returns false.
template <class Visit>
DEVICE void each_segment_ending(const ScopeRow& r, int t, int c, Visit visit) {
  double content = 0.0;
  for (int k = 1; k <= min(r.longest, t); ++k) {
    const int s = t - k;
    content += r.emission(s, c);
    if (content == minus_infinity()) return;
    const double before = entry(r, s, k, c) + (r.l.base[s] - r.l.base[t]);
    if (!visit(k, before + (content + r.duration(k, c))) || r.forced(s)) return;
  }
}

/// Score of packed segments [first, last) as one segmentation of the row, tail included.
DEVICE double score_of_segments(const ScopeRow& r, const ListOutputs& y, long long first,
                                long long last) {
  double score = 0.0;
  for (long long i = first; i < last; ++i) {
    const int c = y.label[i];
    const int begin = y.start[i];
    const int frames = y.duration[i];
    const int k = min(r.longest, frames);
    double segment = r.duration(k, c);
    for (int t = begin; t < begin + frames; ++t) segment += r.emission(t, c);
    segment += r.start(begin, c) + r.end(begin + frames - 1, c);
    segment += i == first ? r.x.initial[c] : r.transition(k, y.label[i - 1], c);
    if (frames > r.longest) segment += static_cast<double>(frames - r.longest) * r.x.tail[c];
    score += segment;
  }
  return last > first ? score + r.x.final[y.label[last - 1]] : score;
}

}  // namespace segfuse::semicrf::gpu
