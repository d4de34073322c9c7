#pragma once
// The passes in the linear domain for sizes whose state does not fit the registers of one
// multiprocessor: the recursion and the checks of scan.cuh, the classes dealt out to the blocks of
// a team. A block keeps its classes' part of the matrix, durations and pending sums in shared
// memory where they fit. Sums are formed in an order that does not depend on the number of blocks.
//
// pending[t mod K] sums what the sources before boundary t give to it, over the factors' product
// `grown` since they were last multiplied by it; the common scale moves by changing `grown`.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"
#include "semicrf/cuda/kernels/common/range.cuh"
#include "semicrf/cuda/kernels/common/team.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kFarGrown = 100;   ///< exponent of `grown` at which pending absorbs it
constexpr int kLostGrown = 600;  ///< and at which it is given up
constexpr int kScaleSteps = 4;

/// Transposed matrix of factors: row c holds what leads into c. Grid-stride.
KERNEL transpose_factors(const __grid_constant__ Call call) {
  const long long classes = call.sizes.classes;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
       i < classes * classes; i += static_cast<long long>(gridDim.x) * blockDim.x)
    call.team.into[i] = call.factors.transition[i % classes * classes + i / classes];
}

/// A block's share of a pass.
struct WidePass {
  int row, length, classes, longest;
  int begin, own;  ///< classes [begin, begin + own)
  bool forward;
  double* values;  ///< (C) of the boundary at hand, in shared memory; from here on where it fits
  double* source;  ///< (own) and so on
  double* grown;
  double* joining;  ///< sources as they join pending
  double* factor;
  double* enter;
  double* leave;
  int* absorb;           ///< (own) pending is to absorb grown; [own]: any is
  const double* matrix;  ///< (own, C) factors that lead into (out of, backward) a class
  const double* tap;     ///< of class i and duration k: tap[i * tap_class + (k - 1) * tap_step]
  long long tap_class, tap_step;
  double* pending;  ///< (own, K)
  unsigned bad = 0;

  DEVICE_MEMBER double tap_of(int i, int k) const {
    return tap[i * tap_class + (k - 1) * tap_step];
  }
  DEVICE_MEMBER void check(double x) {
    if (x != 0.0 && out_of_range(x)) bad = 1;
  }
  DEVICE_MEMBER int boundary(int steps) const { return forward ? steps : length - steps; }

  DEVICE_MEMBER void lay_out(const Call& call, double* shared) {
    row = blockIdx.y;
    forward = blockIdx.z == 0;
    length = row_length(call, row);
    classes = call.sizes.classes;
    longest = call.sizes.max_duration;
    begin = blockIdx.x * call.team.per_member;
    own = min(call.team.per_member, classes - begin);
    const int threads = blockDim.x;
    const int thread = threadIdx.x;
    values = shared;
    double* rest = values + classes;
    const long long state = 6 * call.team.per_member + call.team.per_member / 2 + 1;
    if (call.team.state_shared != 0) {
      source = rest;
      rest += state;
    } else {
      const int team = 2 * row + (forward ? 0 : 1);
      source =
          call.team.state + (static_cast<long long>(team) * call.team.members + blockIdx.x) * state;
    }
    grown = source + own;
    joining = grown + own;
    factor = joining + own;
    enter = factor + own;
    leave = enter + own;
    absorb = reinterpret_cast<int*>(leave + own);
    const double* rows = (forward ? call.team.into : call.factors.transition) +
                         static_cast<long long>(begin) * classes;
    matrix = rows;
    if (call.team.matrix_shared != 0) {
      for (int i = thread; i < own * classes; i += threads) rest[i] = rows[i];
      matrix = rest;
      rest += static_cast<long long>(own) * classes;
    }
    tap = call.factors.duration + begin;
    tap_class = 1;
    tap_step = classes;
    pending = call.pending + (2ll * row + (forward ? 0 : 1)) * longest * classes +
              static_cast<long long>(begin) * longest;
    if (call.team.window_shared != 0) {
      for (int i = thread; i < own * longest; i += threads) rest[i] = tap_of(i % own, i / own + 1);
      // (k, own), as they were read
      tap = rest;
      tap_step = own;
      pending = rest + static_cast<long long>(own) * longest;
    }
    for (int i = thread; i < own * longest; i += threads) pending[i] = 0.0;
    for (int i = thread; i < own; i += threads) {
      source[i] = (forward ? call.factors.initial : call.factors.final)[begin + i];
      (forward ? call.lattice.gamma
               : call.lattice.beta)[at_boundary(call, row, boundary(0)) + begin + i] = source[i];
      grown[i] = 1.0;
      absorb[i] = 0;
    }
    if (thread == 0) absorb[own] = 0;
    load_frame(call, 0);
  }

  /// Factors of the pass's step i.
  DEVICE_MEMBER void load_frame(const Call& call, int i) {
    if (i >= length) return;
    const long long at = at_frame(call, row, forward ? i : length - 1 - i) + begin;
    const double* enters = forward ? call.factors.start : call.factors.end;
    const double* leaves = forward ? call.factors.end : call.factors.start;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      factor[j] = call.factors.emission[at + j];
      enter[j] = enters != nullptr ? enters[at + j] : 1.0;
      leave[j] = leaves != nullptr ? leaves[at + j] : 1.0;
    }
  }

  /// Values of the boundary after step i, to `out` and the lattice.
  DEVICE_MEMBER void close(const Call& call, int i, double* out) {
    double* lattice = (forward ? call.lattice.alpha : call.lattice.delta) +
                      at_boundary(call, row, boundary(i + 1));
    const int slot = (i + 1) % longest;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      const double w = source[j] * enter[j] / grown[j];
      const double known = longest > 1 ? pending[static_cast<long long>(j) * longest + slot] : 0.0;
      const double before = fma(w, tap_of(j, 1), known);
      const double now = grown[j] * factor[j];
      const double value = before * (now * leave[j]);
      check(source[j]);
      check(w);
      check(value);
      if (value == 0.0 && before != 0.0 && factor[j] != 0.0 && leave[j] != 0.0) bad = 1;
      joining[j] = w;
      grown[j] = now;
      const int far = exponent_bits(now) - 1023;
      if (far > kFarGrown || far < -kFarGrown) absorb[j] = absorb[own] = 1;
      out[begin + j] = value;
      lattice[begin + j] = value;
    }
  }

  /// The sources of step i join pending for all longer durations.
  DEVICE_MEMBER void push(int i) {
    const int others = longest - 1;
    const int newest = i % longest;
    for (int e = threadIdx.x; e < own * others; e += blockDim.x) {
      const int j = e / others;
      const int k = e % others + 2;
      const int slot = newest + k < longest ? newest + k : newest + k - longest;
      double& sum = pending[static_cast<long long>(j) * longest + slot];
      sum = fma(joining[j], tap_of(j, k), k == longest ? 0.0 : sum);
    }
  }

  DEVICE_MEMBER void absorb_grown() {
    __syncthreads();
    for (int e = threadIdx.x; e < own * longest; e += blockDim.x) {
      const int j = e / longest;
      if (absorb[j] == 0 || pending[e] == 0.0) continue;
      pending[e] *= grown[j];
      if (grown[j] != 0.0 && out_of_range(pending[e])) bad = 1;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      if (absorb[j] != 0) grown[j] = 1.0;
      absorb[j] = 0;
    }
    if (threadIdx.x == 0) absorb[own] = 0;
  }

  /// Sources of the boundary after step i, one warp a class; `shift` moves the scale behind it.
  DEVICE_MEMBER void link(const Call& call, int i, int shift) {
    double* lattice = (forward ? call.lattice.gamma : call.lattice.beta) +
                      at_boundary(call, row, boundary(i + 1));
    const int lane = threadIdx.x % 32;
    for (int j = threadIdx.x / 32; j < own; j += blockDim.x / 32) {
      const double* into = matrix + static_cast<long long>(j) * classes;
      double sum = 0.0;
#pragma unroll 8
      for (int other = lane; other < classes; other += 32)
        sum = fma(values[other], into[other], sum);
      sum = warp_sum(sum);
      if (lane != 0) continue;
      lattice[begin + j] = sum;
      source[j] = sum * power_of_two(shift);
      grown[j] *= power_of_two(shift);
      const int far = exponent_bits(grown[j]) - 1023;
      if (far > kLostGrown || far < -kLostGrown) bad = 1;
    }
  }

  /// By how much the scale moves after a step: the largest value goes back to 2^kTarget.
  DEVICE_MEMBER int next_shift(int i) const {
    if (i % kScaleSteps != kScaleSteps - 1 || i + 1 == length) return 0;
    int largest = 0;
    for (int c = threadIdx.x % 32; c < classes; c += 32)
      largest = max(largest, exponent_bits(values[c]));
    largest = __reduce_max_sync(kAllLanes, largest);
    return largest == 0 ? 0 : max(-1000, min(1000, 1023 + kTarget - largest));
  }
};

/// grid (members, B, directions). Dynamic shared memory as lay_out takes it.
KERNEL __launch_bounds__(512, 1) wide_pass(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, shared);
  if (call.factors.exponents[2] != 0) return;  // the exact path does all rows
  WidePass pass;
  pass.lay_out(call, shared);
  const int team = 2 * pass.row + (pass.forward ? 0 : 1);
  TeamBarrier barrier{call.team.counter + team, call.team.members};
  double* exchange = call.team.exchange + 2ll * team * pass.classes;
  int* scales = (pass.forward ? call.lattice.forward_scale : call.lattice.backward_scale) +
                static_cast<long long>(pass.row) * (call.sizes.frames + 1);
  const bool keeps_scale = blockIdx.x == 0 && threadIdx.x == 0;
  int scale = 0;
  if (keeps_scale) scales[pass.boundary(0)] = 0;
  __syncthreads();
  for (int i = 0; i < pass.length; ++i) {
    double* given = exchange + i % 2 * pass.classes;
    pass.close(call, i, given);
    barrier.arrive();
    pass.push(i);
    pass.load_frame(call, i + 1);
    if (pass.absorb[pass.own] != 0) pass.absorb_grown();
    barrier.wait();
    for (int c = threadIdx.x; c < pass.classes; c += blockDim.x) pass.values[c] = given[c];
    __syncthreads();
    if (keeps_scale) scales[pass.boundary(i + 1)] = scale;
    const int shift = pass.next_shift(i);
    pass.link(call, i, shift);
    scale -= shift;
    __syncthreads();
  }
  if (pass.bad != 0) atomicOr(&call.lattice.flags[pass.row], static_cast<int>(kNeedsExact));
}

}  // namespace segfuse::semicrf::gpu
