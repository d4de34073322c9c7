#pragma once
// Draws from p(y): one thread a draw, segments from the last to the first; and the packing of
// lists.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

/// The numbers of src/base/rng.h: Philox4x32-10 over (key, counter, stream).
struct Random {
  unsigned long long key, stream, counter = 0;
  unsigned block[4] = {0, 0, 0, 0};
  int left = 0;

  DEVICE_MEMBER Random(unsigned long long k, unsigned long long s) : key(k), stream(s) {}
  DEVICE_MEMBER void fill() {
    unsigned k0 = static_cast<unsigned>(key);
    unsigned k1 = static_cast<unsigned>(key >> 32);
    unsigned c0 = static_cast<unsigned>(counter);
    unsigned c1 = static_cast<unsigned>(counter >> 32);
    unsigned c2 = static_cast<unsigned>(stream);
    unsigned c3 = static_cast<unsigned>(stream >> 32);
    for (int round = 0; round < 10; ++round) {
      const unsigned long long p0 = 0xD2511F53ull * c0;
      const unsigned long long p1 = 0xCD9E8D57ull * c2;
      c0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<unsigned>(p1);
      c2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<unsigned>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    block[0] = c0, block[1] = c1, block[2] = c2, block[3] = c3;
    ++counter;
    left = 4;
  }
  DEVICE_MEMBER unsigned bits() {
    if (left == 0) fill();
    --left;
    return left == 3 ? block[3] : left == 2 ? block[2] : left == 1 ? block[1] : block[0];
  }
  /// In [0, 1), 53 bits.
  DEVICE_MEMBER double uniform() {
    const unsigned long long high = bits();
    const unsigned long long low = bits();
    return static_cast<double>(((high << 32) | low) >> 11) * 0x1p-53;
  }
};

/// A choice among options that are shown one by one, with logarithms that sum to `total`.
struct Choice {
  double total, left;
  int chosen = -1;
  DEVICE_MEMBER Choice(double t, Random& random) : total(t), left(random.uniform()) {}
  /// Whether to go on: false once an option is chosen.
  DEVICE_MEMBER bool offer(int option, double score) {
    if (score == minus_infinity()) return true;
    chosen = option;  // the last possible one, should rounding leave something at the end
    left -= exp(score - total);
    return left >= 0.0;
  }
};

/// Of a segment of at least K frames up to t: whether it had as many at t - 1 already.
DEVICE bool draw_goes_on(const ScopeRow& r, int t, int c, Random& random) {
  const double before = r.l.open[r.at(t - 1) + c];
  if (before == minus_infinity() || r.forced(t - 1)) return false;
  const double score =
      before + (r.l.base[t - 1] - r.l.base[t]) + r.x.tail[c] + r.emission(t - 1, c);
  return random.uniform() < exp(score - r.l.open[r.at(t) + c]);
}

/// The frames of a segment of label c that ends at t.
DEVICE int draw_duration(const ScopeRow& r, int t, int c, Random& random) {
  const bool tailed = r.x.tail != nullptr;
  Choice choice(r.l.value[r.at(t) + c] - r.end(t - 1, c), random);
  bool open = tailed;
  each_segment_ending(r, t, c, [&](int k, double score) {
    const bool goes_on = (tailed && k == r.longest) || choice.offer(k, score);
    open = open && goes_on;
    return goes_on;
  });
  if (open) choice.offer(r.longest, r.l.open[r.at(t) + c]);
  if (!tailed || choice.chosen < r.longest) return choice.chosen;
  int extra = 0;
  while (draw_goes_on(r, t - extra, c, random)) ++extra;
  return r.longest + extra;
}

/// Calls visit(first frame, frames, label) for the segments of a draw, the last first; their
/// number.
template <class Visit>
DEVICE int draw_segments(const ScopeRow& r, Random& random, Visit visit) {
  int t = r.length;
  int count = 0;
  Choice last(*r.z - r.l.base[t], random);
  for (int c = 0; c < r.classes; ++c)
    if (!last.offer(c, r.l.value[r.at(t) + c] + r.x.final[c])) break;
  for (int c = last.chosen; c >= 0;) {
    const int d = draw_duration(r, t, c, random);
    if (d < 1) return count;  // only where scores are faults
    t -= d;
    visit(t, d, c);
    ++count;
    if (t == 0) return count;
    const int k = min(d, r.longest);
    Choice before(entry(r, t, k, c) - r.start(t, c), random);
    for (int from = 0; from < r.classes; ++from)
      if (!before.offer(from, r.l.value[r.at(t) + from] + r.transition(k, from, c))) break;
    c = before.chosen;
  }
  return count;
}

/// Draw i of a row.
DEVICE Random random_of(const ScopeCall& call, int row, int i) {
  const auto stream = static_cast<unsigned long long>(call.first_row + row) << 32;
  return {call.seed, stream | static_cast<unsigned long long>(i)};
}

/// grid (n / blockDim, B): how many segments each draw has.
KERNEL count_draws(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const ScopeRow r(call, 0, row);
  const bool possible = *r.z > minus_infinity();
  if (i == 0) call.lists.made[row] = possible ? call.lists.each : 0;
  if (i >= call.lists.each || !possible) return;
  Random random = random_of(call, row, i);
  call.lists.count[static_cast<long long>(row) * call.lists.each + i] =
      r.length == 0 ? 0 : draw_segments(r, random, [](int, int, int) {});
}

/// Where list i of a row is packed: its number, and segments [first, last); false where there is no
/// room.
DEVICE bool place_of_list(const ListOutputs& y, int row, int i, long long& number, long long& first,
                          long long& last) {
  number = y.list_pointer[row] + i;
  first = y.row_pointer[number];
  last = y.row_pointer[number + 1];
  return last <= y.room;
}

DEVICE void put_segment(const ListOutputs& y, long long i, int start, int duration, int label) {
  y.start[i] = start;
  y.duration[i] = duration;
  y.label[i] = label;
}

/// grid (n / blockDim, B): the same draws again, written, with their scores.
KERNEL write_draws(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const ScopeRow r(call, 0, row);
  const ListOutputs& y = call.lists;
  if (i >= y.made[row]) return;
  long long number = 0, first = 0, last = 0;
  const bool fits = place_of_list(y, row, i, number, first, last);
  if (fits && r.length > 0) {
    Random random = random_of(call, row, i);
    long long next = last;
    draw_segments(r, random, [&](int start, int duration, int label) {
      put_segment(y, --next, start, duration, label);
    });
  }
  if (y.score != nullptr && fits) y.score[number] = score_of_segments(r, y, first, last);
}

/// One block: list and row pointers from counts.
KERNEL list_pointers(const __grid_constant__ ScopeCall call) {
  __shared__ long long lists[256];
  __shared__ long long segments[256];
  const ListOutputs& y = call.lists;
  const int rows = call.sizes.batch;
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (rows + 255) / 256;
  const int begin = min(rows, thread * each);
  const int end = min(rows, begin + each);
  long long made = 0;
  long long count = 0;
  for (int row = begin; row < end; ++row) {
    made += y.made[row];
    for (int i = 0; i < y.made[row]; ++i)
      count += y.count[static_cast<long long>(row) * y.each + i];
  }
  lists[thread] = made;
  segments[thread] = count;
  __syncthreads();
  long long list = 0;
  long long segment = 0;
  for (int i = 0; i < thread; ++i) list += lists[i], segment += segments[i];
  for (int row = begin; row < end; ++row) {
    y.list_pointer[row] = list;
    for (int i = 0; i < y.made[row]; ++i) {
      y.row_pointer[list++] = segment;
      segment += y.count[static_cast<long long>(row) * y.each + i];
    }
  }
  if (end != rows || (begin == rows && rows > 0)) return;
  y.list_pointer[rows] = list;
  y.row_pointer[list] = segment;
  if (segment > y.room) report_fault(call, kFaultRoom, segment);
}

}  // namespace segfuse::semicrf::gpu
