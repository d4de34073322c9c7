#pragma once
// The passes of pass.cuh by teams of blocks. Durations are dealt out to kLinkParts parts,
// parts to blocks; a block keeps the matrices of its durations in shared memory where they fit. Per
// boundary every part gives its share of each sum, relative to the part's largest term, and every
// block adds all shares in order: bits do not depend on the number of blocks. What blocks compute
// alike they also write alike.

#include "semicrf/cuda/kernels/by_duration/pass.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"
#include "semicrf/cuda/kernels/common/team.cuh"
#include "semicrf/cuda/kernels/sum/exact.cuh"

namespace segfuse::semicrf::gpu {

struct DurationTeam {
  int row, length, classes, longest;
  int parts;  ///< of this block
  int each;   ///< durations of a part, at most
  bool forward, direct;
  int thread;
  // In shared memory:
  double* frame;    ///< (2, 3, C) bits of emission, start, end; by turns
  double* shares;   ///< (2, kLinkParts, C) largest and sum of all parts
  double* values;   ///< (C) of the newest boundary
  double* largest;  ///< (parts)
  int* doubt;       ///< some sum is to be formed from logarithms
  // There or in the workspace:
  double* cells;           ///< (parts, each, C)
  double* durations;       ///< (parts, each, C) bits
  double* ring;            ///< (K, C) by source (backward: target): all but what depends on k alone
  double* weights;         ///< forward: 2^(alpha - peak)
  bool weights_in_ring;    ///< weights are (K, C), by boundary mod K; else (T+1, C)
  const double* matrices;  ///< (parts, each, C, C) or null
  double* exchange;        ///< (3, 2, kLinkParts, C)

  DEVICE_MEMBER int part_of(int own) const { return blockIdx.x * parts + own; }
  DEVICE_MEMBER int duration_of(int cell) const {
    return part_of(cell / each) + 1 + cell % each * kLinkParts;
  }
  DEVICE_MEMBER double* weight_at(int s) const {
    return weights + static_cast<long long>(weights_in_ring ? s % longest : s) * classes;
  }
  DEVICE_MEMBER double* slot(int boundary) const {
    return ring + static_cast<long long>(boundary % longest) * classes;
  }
  DEVICE_MEMBER const double* matrix(const Call& call, int cell) const {
    return matrices != nullptr ? matrices + static_cast<long long>(cell) * classes * classes
                               : slice_of(call, duration_of(cell));
  }

  DEVICE_MEMBER void lay_out(const Call& call, double* shared) {
    row = blockIdx.y;
    forward = blockIdx.z == 0;
    length = row_length(call, row);
    classes = call.sizes.classes;
    longest = call.sizes.max_duration;
    parts = call.team.per_member;
    each = (longest + kLinkParts - 1) / kLinkParts;
    direct = call.by_duration.direct != 0 || call.factors.exponents[3] != 0;
    thread = threadIdx.y * kLinkLanes + threadIdx.x;
    const int threads = kLinkLanes * kLinkParts;
    const int own = parts * each;
    frame = shared;
    shares = frame + 6 * classes;
    values = shares + 2 * kLinkParts * classes;
    largest = values + classes;
    doubt = reinterpret_cast<int*>(largest + kLinkParts);
    double* rest = largest + kLinkParts + 1;
    const int team = 2 * row + (forward ? 0 : 1);
    const long long state = 2ll * own * classes;
    if (call.team.state_shared != 0) {
      cells = rest;
      rest += state;
    } else {
      cells =
          call.team.state + (static_cast<long long>(team) * call.team.members + blockIdx.x) * state;
    }
    durations = cells + own * classes;
    exchange = call.team.exchange + 6ll * team * kLinkParts * classes;
    ring = call.pending +
           (static_cast<long long>(team) * call.team.members + blockIdx.x) * longest * classes;
    weights = call.by_duration.weight + at_boundary(call, row, 0);
    weights_in_ring = call.team.window_shared != 0;
    if (weights_in_ring) {
      ring = rest;
      weights = rest + static_cast<long long>(longest) * classes;
      rest = weights + static_cast<long long>(longest) * classes;
    }
    matrices = nullptr;
    if (call.team.matrix_shared != 0) {
      for (int cell = 0; cell < own; ++cell)
        for (int i = thread; i < classes * classes && duration_of(cell) <= longest; i += threads)
          rest[static_cast<long long>(cell) * classes * classes + i] =
              slice_of(call, duration_of(cell))[i];
      matrices = rest;
    }
    for (int i = thread; i < own * classes; i += threads) {
      const int k = duration_of(i / classes);
      durations[i] =
          k <= longest ? bits_of(call.scores.duration, k - 1, i % classes, 0) : minus_infinity();
    }
    for (int c = thread; c < classes; c += threads)
      values[c] = bits_of(forward ? call.scores.initial : call.scores.final, c, 0, 0);
    load_frame(call, forward ? 0 : length - 1);
    __syncthreads();
  }

  DEVICE_MEMBER double* frame_of(int t) const { return frame + (t & 1) * 3 * classes; }
  DEVICE_MEMBER void load_frame(const Call& call, int t) {
    if (t < 0 || t >= length) return;
    double* to = frame_of(t);
    for (int c = thread; c < classes; c += kLinkLanes * kLinkParts) {
      to[c] = bits_of(call.scores.emission, row, t, c);
      to[classes + c] = bits_of(call.scores.start, row, t, c);
      to[2 * classes + c] = bits_of(call.scores.end, row, t, c);
    }
  }

  /// The frame joins the ring's `known` newest slots; the newest one, `newest`, begins with it.
  DEVICE_MEMBER void extend_ring(int newest, int known, int step, const double* emission,
                                 const double* entering, double base) {
    for (int i = thread; i < known * classes; i += kLinkLanes * kLinkParts) {
      const int c = i % classes;
      double& x = slot(newest + i / classes * step)[c];
      x = (i < classes ? entering[c] + (forward && newest > 0 ? base : values[c]) : x) +
          emission[c];
    }
  }

  DEVICE_MEMBER void give(int buffer, int part, int c, double most, double sum) {
    double* to = exchange + 2ll * buffer * kLinkParts * classes;
    to[part * classes + c] = most;
    to[(kLinkParts + part) * classes + c] = sum;
  }

  /// The sum of all shares for class c, relative to `most`.
  DEVICE_MEMBER double sum_of_shares(int c, double& most) const {
    most = minus_infinity();
    for (int part = 0; part < kLinkParts; ++part) most = fmax(most, shares[part * classes + c]);
    double sum = 0.0;
    for (int part = 0; part < kLinkParts && most > minus_infinity(); ++part)
      sum = fma(exp2(shares[part * classes + c] - most), shares[(kLinkParts + part) * classes + c],
                sum);
    return sum;
  }

  /// Logarithms of all sums from the blocks' shares, to values; those to be formed again are left
  /// NaN and `doubt` is set. The second time none is.
  DEVICE_MEMBER void collect(TeamBarrier& barrier, int buffer, bool again) {
    barrier.wait();
    const double* given = exchange + 2ll * buffer * kLinkParts * classes;
    for (int i = thread; i < 2 * kLinkParts * classes; i += kLinkLanes * kLinkParts)
      shares[i] = given[i];
    if (thread == 0 && !again) *doubt = 0;
    __syncthreads();
    for (int c = thread; c < classes; c += kLinkLanes * kLinkParts) {
      if (again && values[c] == values[c]) continue;
      double most;
      const double sum = sum_of_shares(c, most);
      const bool trusted =
          again || most == minus_infinity() || (sum >= kMinSum && sum < 0x1p1000 && !direct);
      values[c] = most == minus_infinity() ? most : most + log2(sum);
      if (trusted) continue;
      values[c] = minus_infinity() - minus_infinity();
      *doubt = 1;
    }
    __syncthreads();
  }

  /// This block's shares of the forward sums at boundary t.
  DEVICE_MEMBER void give_prefixes(const Call& call, int t) {
    const int tiles = (classes + kLinkLanes - 1) / kLinkLanes;
    for (int task = threadIdx.y; task < parts * each * tiles; task += kLinkParts) {
      const int cell = task / tiles;
      const int c = task % tiles * kLinkLanes + threadIdx.x;
      const int s = t - duration_of(cell);
      if (duration_of(cell) > longest || s < 0 || c >= classes) continue;
      cells[cell * classes + c] =
          s == 0 ? 1.0 : link_sum(weight_at(s), matrix(call, cell), classes, c);
    }
    __syncthreads();
    for (int i = thread; i < parts * classes; i += kLinkLanes * kLinkParts) {
      const int own = i / classes;
      const int c = i % classes;
      double most = minus_infinity();
      for (int j = own * each; j < (own + 1) * each; ++j)
        if (duration_of(j) <= min(longest, t))
          most = fmax(most, slot(t - duration_of(j))[c] + durations[j * classes + c]);
      double sum = 0.0;
      for (int j = own * each; j < (own + 1) * each; ++j) {
        if (duration_of(j) > min(longest, t)) continue;
        const double bits = slot(t - duration_of(j))[c] + durations[j * classes + c] - most;
        if (bits > -1100.0) sum = fma(exp2(bits), cells[j * classes + c], sum);
      }
      give(t & 1, part_of(own), c, most, sum);
    }
  }

  /// The same from logarithms.
  DEVICE_MEMBER void give_exact_prefixes(const Call& call, int t) {
    Link link(call);
    for (int i = thread; i < parts * classes; i += kLinkLanes * kLinkParts) {
      link.part = part_of(i / classes);
      const int c = i % classes;
      double most = minus_infinity();
      each_prefix(call, link, row, t, c, ring, [&](double x) { most = fmax(most, x); });
      double sum = 0.0;
      if (most > minus_infinity())
        each_prefix(call, link, row, t, c, ring, [&](double x) { sum += exp2(x - most); });
      give(2, link.part, c, most, sum);
    }
  }

  DEVICE_MEMBER void run_forward(const Call& call, TeamBarrier& barrier) {
    double peak = 0.0;
    for (int t = 1; t <= length; ++t) {
      const double* now = frame_of(t - 1);
      extend_ring(t - 1, min(longest, t), -1, now, now + classes, peak);
      __syncthreads();
      give_prefixes(call, t);
      barrier.arrive();
      load_frame(call, t);
      collect(barrier, t & 1, false);
      if (*doubt != 0) {
        give_exact_prefixes(call, t);
        barrier.arrive();
        collect(barrier, 2, true);
      }
      const long long here = at_boundary(call, row, t);
      peak = minus_infinity();
      for (int c = threadIdx.x; c < classes; c += kLinkLanes)
        peak = fmax(peak, values[c] + now[2 * classes + c]);
      peak = warp_max(peak);
      for (int c = thread; c < classes; c += kLinkLanes * kLinkParts) {
        const double alpha = values[c] + now[2 * classes + c];
        const double weight = peak > minus_infinity() ? exp2(alpha - peak) : 0.0;
        call.lattice.alpha[here + c] = alpha;
        call.by_duration.weight[here + c] = weight;
        weight_at(t)[c] = weight;
      }
      if (thread == 0) peak_of(call, row)[t] = peak;
      __syncthreads();
    }
  }

  /// Bits of the segment of a cell from boundary s on, -inf where there is none.
  DEVICE_MEMBER double segment_bits(int cell, int c, int s, const double* start) const {
    const int k = duration_of(cell);
    if (k > min(longest, length - s)) return minus_infinity();
    return slot(s + k)[c] + durations[cell * classes + c] + start[c];
  }

  /// This block's shares of the backward sums at boundary s.
  DEVICE_MEMBER void give_suffixes(const Call& call, int s, const double* start) {
    const int size = each * classes;
    for (int own = threadIdx.y; own < parts; own += kLinkParts) {
      double most = minus_infinity();
      for (int i = threadIdx.x; i < size; i += kLinkLanes)
        most = fmax(most, segment_bits(own * each + i / classes, i % classes, s, start));
      most = warp_max(most);
      for (int i = threadIdx.x; i < size; i += kLinkLanes)
        cells[own * size + i] =
            most > minus_infinity()
                ? exp2(segment_bits(own * each + i / classes, i % classes, s, start) - most)
                : 0.0;
      if (threadIdx.x == 0) largest[own] = most;
    }
    __syncthreads();
    for (int task = threadIdx.y; task < parts * classes; task += kLinkParts) {
      const int own = task / classes;
      const int from = task % classes;
      double sum = 0.0;
      for (int j = own * each; j < (own + 1) * each && duration_of(j) <= longest; ++j) {
        const double* into = matrix(call, j) + static_cast<long long>(from) * classes;
        for (int c = threadIdx.x; c < classes; c += kLinkLanes)
          sum = fma(into[c], cells[j * classes + c], sum);
      }
      sum = warp_sum(sum);
      if (threadIdx.x == 0) give(s & 1, part_of(own), from, largest[own], sum);
    }
  }

  DEVICE_MEMBER void give_exact_suffixes(const Call& call, int s, const double* start) {
    const int size = each * classes;
    for (int task = threadIdx.y; task < parts * classes; task += kLinkParts) {
      const int first = task / classes * each;
      const int from = task % classes;
      const auto term = [&](int i) {
        const double bits = segment_bits(first + i / classes, i % classes, s, start);
        return bits > minus_infinity()
                   ? bits + pair_bits(call, duration_of(first + i / classes), from, i % classes)
                   : bits;
      };
      double most = minus_infinity();
      for (int i = threadIdx.x; i < size; i += kLinkLanes) most = fmax(most, term(i));
      most = warp_max(most);
      double sum = 0.0;
      for (int i = threadIdx.x; i < size && most > minus_infinity(); i += kLinkLanes)
        sum += exp2(term(i) - most);
      sum = warp_sum(sum);
      if (threadIdx.x == 0) give(2, part_of(task / classes), from, most, sum);
    }
  }

  DEVICE_MEMBER void run_backward(const Call& call, TeamBarrier& barrier) {
    for (int s = length - 1; s > 0; --s) {
      const double* now = frame_of(s);
      extend_ring(s + 1, min(longest, length - s), 1, now, now + 2 * classes, 0.0);
      __syncthreads();
      give_suffixes(call, s, now + classes);
      barrier.arrive();
      load_frame(call, s - 1);
      collect(barrier, s & 1, false);
      if (*doubt != 0) {
        give_exact_suffixes(call, s, now + classes);
        barrier.arrive();
        collect(barrier, 2, true);
      }
      const long long here = at_boundary(call, row, s);
      for (int c = thread; c < classes; c += kLinkLanes * kLinkParts)
        call.lattice.beta[here + c] = values[c];
      __syncthreads();
    }
  }
};

/// grid (members, B, directions), block (kLinkLanes, kLinkParts): alpha and beta. Dynamic shared
/// memory as lay_out takes it.
KERNEL __launch_bounds__(512, 1) team_by_duration(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, shared);
  DurationTeam team;
  team.lay_out(call, shared);
  if (!team.forward || gridDim.z == 1) {
    const long long last = at_boundary(call, team.row, team.length);
    for (int c = team.thread; c < team.classes; c += kLinkLanes * kLinkParts)
      call.lattice.beta[last + c] = bits_of(call.scores.final, c, 0, 0);
  }
  TeamBarrier barrier{call.team.counter + 2 * team.row + (team.forward ? 0 : 1), call.team.members};
  if (team.forward)
    team.run_forward(call, barrier);
  else
    team.run_backward(call, barrier);
}

}  // namespace segfuse::semicrf::gpu
