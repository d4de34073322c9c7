#pragma once
// The n best segmentations: every state keeps its n best ways, merged from the lists of the states
// before it. One block a row, a warp a class. Scores are added up along the path, as
// best/pass.cuh does.

#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/scope/arguments.h"
#include "semicrf/cuda/kernels/scope/pass.cuh"
#include "semicrf/cuda/kernels/scope/sample.cuh"
#include "semicrf/cuda/kernels/scope/scope.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kListThreads = 256;

/// The next way of one choice into a state.
struct NextWay {
  double score = minus_infinity();
  int duration = 0;  ///< of the last segment
  int before = 0;    ///< of the segment before it, where that is not settled by the choice
  int label = 0;
  int rank = 0;
  int choice = -1;
};

/// Order of the ways into a state: score, then the documented ties. Ways of one choice come in
/// order. Without branches: the merges below are nested deeply as it is.
DEVICE bool comes_first(const NextWay& a, const NextWay& b) {
  const bool label = (a.before < b.before) | ((a.before == b.before) & (a.label < b.label));
  const bool tie = (a.duration < b.duration) | ((a.duration == b.duration) & label);
  return (a.score > b.score) | ((a.score == b.score) & tie);
}

DEVICE NextWay first_of_warp(NextWay x) {
  for (int lane = 16; lane > 0; lane /= 2) {
    NextWay other;
    other.score = __shfl_xor_sync(kAllLanes, x.score, lane);
    other.duration = __shfl_xor_sync(kAllLanes, x.duration, lane);
    other.before = __shfl_xor_sync(kAllLanes, x.before, lane);
    other.label = __shfl_xor_sync(kAllLanes, x.label, lane);
    other.rank = __shfl_xor_sync(kAllLanes, x.rank, lane);
    other.choice = __shfl_xor_sync(kAllLanes, x.choice, lane);
    if (comes_first(other, x)) x = other;
  }
  return x;
}

/// The first of this lane's choices.
template <class Fetch>
DEVICE NextWay first_of_lane(int choices, const int* heads, Fetch fetch) {
  NextWay best;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < choices; i += 32) {
    NextWay way;
    if (!fetch(i, heads[i], way)) way.score = minus_infinity();
    way.choice = i;
    if (comes_first(way, best)) best = way;
  }
  return best;
}

/// Merges the choices' lists into `out`, at most `each` ways; how many. fetch(choice, rank, way)
/// gives an element of a choice's list, or false at its end. A warp's work.
template <class Fetch>
DEVICE int merge_ways(int choices, int each, int* heads, Way* out, Fetch fetch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = lane; i < choices; i += 32) heads[i] = 0;
  NextWay mine;
  bool stale = true;  // this lane's first way was taken
  int count = 0;
  while (true) {
    if (stale) mine = first_of_lane(choices, heads, fetch);
    __syncwarp();
    const NextWay top = first_of_warp(mine);
    // A vote tells the compiler that the lanes agree.
    if (__any_sync(kAllLanes, count == each || top.score == minus_infinity())) return count;
    if (lane == 0) out[count] = {top.score, top.duration, top.label, top.rank, 0};
    ++count;
    stale = top.choice % 32 == lane;
    if (stale) ++heads[top.choice];
  }
}

/// The lists of one row.
struct RowLists {
  int each, classes, longest;
  BestLists b;
  DEVICE_MEMBER RowLists(const ScopeCall& call, int row)
      : each(call.best.each),
        classes(call.sizes.classes),
        longest(call.sizes.max_duration),
        b(call.best) {
    const long long states = static_cast<long long>(row) * (call.sizes.frames + 1) * classes;
    const long long window = static_cast<long long>(row) * longest * classes;
    b.arrive = offset(b.arrive, states * each);
    b.arrived = offset(b.arrived, states);
    b.enter = offset(b.enter, window * each);
    b.entered = offset(b.entered, window);
    b.open = offset(b.open, 2ll * row * classes * each);
    b.opened = offset(b.opened, 2ll * row * classes);
    b.last = offset(b.last, static_cast<long long>(row) * each);
    b.heads = offset(b.heads, static_cast<long long>(row) * classes * b.choices);
    b.content = offset(b.content, window);
  }
  DEVICE_MEMBER long long state(int t, int c) const {
    return static_cast<long long>(t) * classes + c;
  }
  DEVICE_MEMBER long long entry(int t, int c) const { return state(t % longest, c); }
  DEVICE_MEMBER long long opening(int t, int c) const { return state(t % 2, c); }
  DEVICE_MEMBER int* heads(int c) const { return b.heads + static_cast<long long>(c) * b.choices; }
};

DEVICE long long link_of(const ScopeRow& r, int k, int from, int c) {
  return (static_cast<long long>(k - 1) * r.classes + from) * r.classes + c;
}

/// Way `rank` into a segment (s, k, c), its start score included; `from` is a label before where
/// transitions depend on durations.
template <bool kByDuration>
DEVICE bool fetch_entry(const ScopeRow& r, const RowLists& y, int s, int k, int from, int c,
                        int rank, NextWay& way) {
  way.duration = k;
  if (kByDuration) {
    const long long state = y.state(s, from);
    const Way& before = y.b.arrive[state * y.each + min(rank, y.each - 1)];
    // At 0 there is one way into everything, which stands under label 0.
    const double* link = s == 0 ? r.x.initial + c : r.x.transition + link_of(r, k, from, c);
    way.score = before.score + *link + r.start(s, c);
    way.before = before.duration;
    way.label = from;
    way.rank = rank;
    return rank < y.b.arrived[state];
  }
  const long long state = y.entry(s, c);
  const Way& before = y.b.enter[state * y.each + min(rank, y.each - 1)];
  way.score = before.score;
  way.label = before.label;
  way.rank = before.rank;
  return rank < y.b.entered[state];
}

/// The same with the segment's frames and duration score.
template <bool kByDuration>
DEVICE bool fetch_segment(const ScopeRow& r, const RowLists& y, int t, int k, int from, int c,
                          int rank, NextWay& way) {
  const bool found = fetch_entry<kByDuration>(r, y, t - k, k, from, c, rank, way);
  way.score += y.b.content[y.entry(t - k, c)];
  way.score += r.duration(k, c);
  return found;
}

/// Segments of c with at least K frames at t; n table durations fit.
template <bool kByDuration>
DEVICE void open_ways(const ScopeRow& r, const RowLists& y, int t, int n, int c) {
  const int reaching = n < r.longest ? 0 : (kByDuration ? r.classes : 1);
  const long long before = y.opening(t - 1, c);
  const int going_on = r.forced(t - 1) ? 0 : y.b.opened[before];
  const auto fetch = [&](int choice, int rank, NextWay& way) {
    if (choice < reaching)
      return fetch_segment<kByDuration>(r, y, t, r.longest, choice, c, rank, way);
    if (rank >= going_on) return false;
    const Way& x = y.b.open[before * y.each + rank];
    way.score = x.score + r.emission(t - 1, c) + r.x.tail[c];
    way.duration = x.duration + 1;
    way.label = x.label;
    way.rank = x.rank;
    return true;
  };
  const long long state = y.opening(t, c);
  const int count = merge_ways(reaching + 1, y.each, y.heads(c), y.b.open + state * y.each, fetch);
  if (threadIdx.x % 32 == 0) y.b.opened[state] = count;
}

/// Segments of c that end at t.
template <bool kByDuration>
DEVICE void arrive_ways(const ScopeRow& r, const RowLists& y, int t, int n, int c) {
  const bool tailed = r.x.tail != nullptr;
  const int closed = tailed ? min(n, r.longest - 1) : n;
  const int per_duration = kByDuration ? r.classes : 1;
  const int choices = closed * per_duration;
  const double end = r.end(t - 1, c);
  const long long opened = y.opening(t, c);
  const auto fetch = [&](int choice, int rank, NextWay& way) {
    if (choice < choices) {
      const bool found = fetch_segment<kByDuration>(r, y, t, choice / per_duration + 1,
                                                    choice % per_duration, c, rank, way);
      way.score += end;
      return found;
    }
    if (rank >= y.b.opened[opened]) return false;
    const Way& x = y.b.open[opened * y.each + rank];
    way.score = x.score + end;
    way.duration = x.duration;
    way.label = x.label;
    way.rank = x.rank;
    return true;
  };
  const long long state = y.state(t, c);
  const int count = merge_ways(choices + (tailed ? 1 : 0), y.each, y.heads(c),
                               y.b.arrive + state * y.each, fetch);
  if (threadIdx.x % 32 == 0) y.b.arrived[state] = count;
}

/// Way `rank` to the end of a segment of label c at t, and on with a score.
DEVICE bool fetch_arrival(const RowLists& y, int t, int c, double score, int rank, NextWay& way) {
  const long long state = y.state(t, c);
  if (rank >= y.b.arrived[state]) return false;
  const Way& before = y.b.arrive[state * y.each + rank];
  way.score = before.score + score;
  way.duration = before.duration;
  way.label = c;
  way.rank = rank;
  return true;
}

/// Segments of c that start at t.
DEVICE void enter_ways(const ScopeRow& r, const RowLists& y, int t, int c) {
  const long long state = y.entry(t, c);
  if (t == 0) {
    if (threadIdx.x % 32 != 0) return;
    const double score = r.x.initial[c] + r.start(0, c);
    y.b.enter[state * y.each] = {score, 0, -1, 0, 0};
    y.b.entered[state] = score == minus_infinity() ? 0 : 1;
    return;
  }
  const int count = merge_ways(r.classes, y.each, y.heads(c), y.b.enter + state * y.each,
                               [&](int from, int rank, NextWay& way) {
                                 const double link = r.transition(1, from, c);
                                 const bool found = fetch_arrival(y, t, from, link, rank, way);
                                 way.score += r.start(t, c);
                                 return found;
                               });
  if (threadIdx.x % 32 == 0) y.b.entered[state] = count;
}

/// Frame t - 1 joins the contents of all segments in the window.
DEVICE void extend_contents(const ScopeRow& r, const RowLists& y, int t, int n) {
  for (int i = threadIdx.x; i < n * r.classes; i += blockDim.x) {
    const int k = i / r.classes + 1;
    const int c = i % r.classes;
    double& content = y.b.content[y.entry(t - k, c)];
    content = (k == 1 ? 0.0 : content) + r.emission(t - 1, c);
  }
}

/// The lists of all states of a row.
template <bool kByDuration>
DEVICE void best_lists_of(const ScopeCall& call, int row) {
  const ScopeRow r(call, 0, row);
  const RowLists y(call, row);
  const Warp w;
  for (int c = threadIdx.x; c < r.classes && r.x.tail != nullptr; c += blockDim.x)
    y.b.opened[y.opening(0, c)] = 0;
  for (int c = threadIdx.x; c < r.classes && kByDuration; c += blockDim.x) {
    y.b.arrived[y.state(0, c)] = c == 0 ? 1 : 0;
    if (c == 0) y.b.arrive[0] = {0.0, 0, -1, 0, 0};
  }
  if (kByDuration) __syncthreads();
  int forced = 0;
  for (int t = 1; t <= r.length; ++t) {
    for (int c = w.index; __any_sync(kAllLanes, c < r.classes && !kByDuration); c += w.count)
      enter_ways(r, y, t - 1, c);
    if (r.forced(t - 1)) forced = t - 1;
    const int n = min(r.longest, t - forced);
    extend_contents(r, y, t, n);
    __syncthreads();
    if (r.x.tail != nullptr) {
      for (int c = w.index; __any_sync(kAllLanes, c < r.classes); c += w.count)
        open_ways<kByDuration>(r, y, t, n, c);
      __syncthreads();
    }
    for (int c = w.index; __any_sync(kAllLanes, c < r.classes); c += w.count)
      arrive_ways<kByDuration>(r, y, t, n, c);
    __syncthreads();
  }
}

/// grid (B).
KERNEL __launch_bounds__(kListThreads) best_lists(const __grid_constant__ ScopeCall call) {
  best_lists_of<false>(call, static_cast<int>(blockIdx.x));
}

/// The same where transitions depend on durations.
KERNEL __launch_bounds__(kListThreads)
    best_lists_by_duration(const __grid_constant__ ScopeCall call) {
  best_lists_of<true>(call, static_cast<int>(blockIdx.x));
}

/// grid (B), a warp: the lists of whole segmentations.
KERNEL best_last(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.x;
  const ScopeRow r(call, 0, row);
  const RowLists y(call, row);
  int count = 1;
  if (r.length > 0)
    count = merge_ways(r.classes, y.each, y.heads(0), y.b.last, [&](int c, int rank, NextWay& way) {
      return fetch_arrival(y, r.length, c, r.x.final[c], rank, way);
    });
  else if (threadIdx.x == 0)
    y.b.last[0] = {0.0, 0, -1, 0, 0};
  if (threadIdx.x == 0) call.lists.made[row] = count;
}

/// Calls visit(first frame, frames, label) for the segments of one listed way, the last first;
/// their number.
template <class Visit>
DEVICE int follow_way(const RowLists& y, int length, int i, Visit visit) {
  int count = 0;
  Way way = y.b.last[i];
  for (int t = length; t > 0; ++count) {
    const int c = way.label;
    way = y.b.arrive[y.state(t, c) * y.each + way.rank];
    t -= way.duration;
    visit(t, way.duration, c);
  }
  return count;
}

/// grid (n / blockDim, B).
KERNEL count_best(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= call.lists.made[row]) return;
  const int length = length_of(call.lengths[0], call.sizes.frames, row);
  call.lists.count[static_cast<long long>(row) * call.lists.each + i] =
      follow_way(RowLists(call, row), length, i, [](int, int, int) {});
}

/// The same, after the pointers.
KERNEL write_best(const __grid_constant__ ScopeCall call) {
  const int row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const ListOutputs& y = call.lists;
  if (i >= y.made[row]) return;
  long long number = 0, first = 0, last = 0;
  if (!place_of_list(y, row, i, number, first, last)) return;
  const RowLists lists(call, row);
  const int length = length_of(call.lengths[0], call.sizes.frames, row);
  follow_way(lists, length, i, [&](int start, int duration, int label) {
    put_segment(y, --last, start, duration, label);
  });
  if (y.score != nullptr) y.score[number] = lists.b.last[i].score;
}

}  // namespace segfuse::semicrf::gpu
