#pragma once
// The passes in the linear domain for sizes whose state does not fit the registers of one
// multiprocessor: the recursion, the checks and the cuts in time of scan.cuh, the classes dealt out
// to the blocks of a team. A block keeps its classes' part of the matrix, durations and pending
// sums in shared memory where they fit. Sums are formed in an order that does not depend on the
// number of blocks.
//
// pending[t mod K] sums what the sources so far give to boundary t, with the factors of all frames
// so far.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"
#include "semicrf/cuda/kernels/common/prelude.cuh"
#include "semicrf/cuda/kernels/common/range.cuh"
#include "semicrf/cuda/kernels/common/team.cuh"
#include "semicrf/cuda/kernels/sum/output.cuh"

namespace segfuse::semicrf::gpu {

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
  int member, chunk;
  int first, settled, stop;  ///< steps [first, stop), of which those before `settled` warm up
  long long team;            ///< which of all passes this is
  bool forward;
  PassOutput out;  ///< from class `begin` on
  TeamValues given;
  double* values;   ///< (C) of the boundary at hand, in shared memory; from here on where it fits
  double* source;   ///< (own) and so on
  double* joining;  ///< sources as they join pending
  double* factor;   ///< (2, own) of steps by turns
  double* enter;
  double* leave;
  const double* matrix;  ///< (own, C) factors that lead into (out of, backward) a class
  const double* tap;     ///< of class i and duration k: tap[i * tap_class + (k - 1) * tap_step]
  long long tap_class, tap_step;
  double* pending;     ///< (own, K)
  int newest;          ///< step modulo K
  double moved = 1.0;  ///< by what the scale has moved since pending was last written
  unsigned bad = 0;
  double next_factor, next_enter,
      next_leave;  ///< of the step after the next, of this thread's class

  DEVICE_MEMBER double tap_of(int i, int k) const {
    return tap[i * tap_class + (k - 1) * tap_step];
  }
  DEVICE_MEMBER void check(double x) {
    if (x != 0.0 && out_of_range(x)) bad = 1;
  }
  /// A pending sum in today's scale, which must not make it nothing.
  DEVICE_MEMBER double moved_here(double sum) {
    if (moved == 1.0) return sum;
    const double here = sum * moved;
    if (sum != 0.0 && out_of_range(here)) bad = 1;
    return here;
  }

  /// False where the row has no such chunk, or is not to be done again.
  DEVICE_MEMBER bool cut(const Call& call) {
    row = blockIdx.y;
    forward = blockIdx.z == 0;
    chunk = chunk_of(call, forward, blockIdx.x / call.team.members);
    if (chunk < 0) return false;
    member = blockIdx.x % call.team.members;
    team = chunk_place(call, row, forward, chunk);
    length = row_length(call, row);
    if (!is_due(call, row, forward)) return false;
    const int steps = chunk_steps(call, length);
    settled = chunk * steps;
    stop = min(length, settled + steps);
    first = max(0, settled - call.chunks.warm_up);
    return chunk == 0 || settled < length;
  }

  DEVICE_MEMBER void lay_out(const Call& call, double* shared) {
    classes = call.sizes.classes;
    longest = call.sizes.max_duration;
    begin = member * call.team.per_member;
    own = min(call.team.per_member, classes - begin);
    const int threads = blockDim.x;
    const int thread = threadIdx.x;
    newest = first % longest;
    given = {reinterpret_cast<unsigned long long*>(call.team.exchange) +
                 team * 2 * classes * TeamValues::kWords,
             classes};
    values = shared;
    double* rest = values + classes;
    const long long state = 6ll * call.team.per_member;
    if (call.team.state_shared != 0) {
      source = rest;
      rest += state;
    } else {
      source = call.team.state + (team * call.team.members + member) * state;
    }
    joining = source + own;
    factor = joining + own;
    enter = factor + 2 * own;
    leave = enter + own;
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
    pending = call.pending + team * longest * classes + static_cast<long long>(begin) * longest;
    if (call.team.window_shared != 0) {
      for (int i = thread; i < own * longest; i += threads)
        rest[i % own * longest + i / own] = tap_of(i % own, i / own + 1);
      tap = rest;
      tap_class = longest;
      tap_step = 1;
      pending = rest + static_cast<long long>(own) * longest;
    }
    const long long cells = static_cast<long long>(own) * longest;
    for (long long i = thread; i < cells; i += threads) pending[i] = 0.0;
    out = first < settled ? warm_up_output(call, row, forward ? 0 : 1, chunk, begin)
                          : lattice_output(call, row, forward, length, first, begin);
    for (int i = thread; i < own; i += threads) {
      source[i] =
          first > 0 ? 1.0 : (forward ? call.factors.initial : call.factors.final)[begin + i];
      if (chunk == 0) out.source[i] = source[i];
    }
    if (chunk == 0 && keeps_scale()) *out.scale = 0;
    ask_for_frame(call, first);
    load_frame(call, first);
  }

  /// The thread that writes what all classes share.
  DEVICE_MEMBER bool keeps_scale() const { return member == 0 && threadIdx.x == 0; }

  /// To the boundary after step i.
  DEVICE_MEMBER void advance(const Call& call, int i) {
    if (i == settled && first < settled) {
      out = lattice_output(call, row, forward, length, settled, begin);
      bad = 0;  // what became of the guess counts by its outcome
    }
    out.source += out.step;
    out.value += out.step;
    out.scale += out.scale_step;
  }

  /// Loads of step i begin: of the first class that the thread has.
  DEVICE_MEMBER void ask_for_frame(const Call& call, int i) {
    const int j = threadIdx.x;
    if (i >= stop || j >= own) return;
    const long long at = at_frame(call, row, forward ? i : length - 1 - i) + begin + j;
    const double* enters = forward ? call.factors.start : call.factors.end;
    const double* leaves = forward ? call.factors.end : call.factors.start;
    next_factor = call.factors.emission[at];
    next_enter = enters != nullptr ? enters[at] : 1.0;
    next_leave = leaves != nullptr ? leaves[at] : 1.0;
  }

  /// Factors of the pass's step i, which have been asked for; asks for those of the next.
  DEVICE_MEMBER void load_frame(const Call& call, int i) {
    if (i >= stop) return;
    const long long at = at_frame(call, row, forward ? i : length - 1 - i) + begin;
    const double* enters = forward ? call.factors.start : call.factors.end;
    const double* leaves = forward ? call.factors.end : call.factors.start;
    int j = threadIdx.x;
    if (j < own) {
      factor[i % 2 * own + j] = next_factor;
      enter[j] = next_enter;
      leave[j] = next_leave;
    }
    for (j += blockDim.x; j < own; j += blockDim.x) {
      factor[i % 2 * own + j] = call.factors.emission[at + j];
      enter[j] = enters != nullptr ? enters[at + j] : 1.0;
      leave[j] = leaves != nullptr ? leaves[at + j] : 1.0;
    }
    ask_for_frame(call, i + 1);
  }

  /// Values of the boundary after step i, to all blocks and to memory.
  DEVICE_MEMBER void close(int i, bool together) {
    const int slot = newest + 1 < longest ? newest + 1 : 0;
    const double* factors = factor + i % 2 * own;
    for (int j = threadIdx.x; j < own; j += blockDim.x) {
      const double w = source[j] * enter[j];
      const double known = longest > 1 ? pending[static_cast<long long>(j) * longest + slot] : 0.0;
      const double before = fma(w, tap_of(j, 1), moved_here(known));
      const double value = before * (factors[j] * leave[j]);
      check(source[j]);
      check(w);
      check(value);
      if (value == 0.0 && before != 0.0 && factors[j] != 0.0 && leave[j] != 0.0) bad = 1;
      joining[j] = w;
      if (together)
        given.put(turn_of(i), begin + j, value);
      else
        values[j] = value;
      out.value[j] = value;
    }
  }

  DEVICE_MEMBER unsigned turn_of(int i) const { return static_cast<unsigned>(i - first) + 1; }

  DEVICE_MEMBER void take_values(int i) {
    for (int c = threadIdx.x; c < classes; c += blockDim.x) values[c] = given.take(turn_of(i), c);
  }

  /// The sources of step i join pending for all longer durations, and all of it takes the frame.
  DEVICE_MEMBER void push(int i) {
    const int others = longest - 1;
    const double* factors = factor + i % 2 * own;
    if (others == 0) return;
    const int hop = blockDim.x / others;
    const int rest = blockDim.x % others;
    int j = threadIdx.x / others;
    int k = threadIdx.x % others + 2;
    while (j < own) {
      const int slot = newest + k < longest ? newest + k : newest + k - longest;
      double& sum = pending[static_cast<long long>(j) * longest + slot];
      const double before = fma(joining[j], tap_of(j, k), k == longest ? 0.0 : moved_here(sum));
      sum = before * factors[j];
      if (before != 0.0 && factors[j] != 0.0 && out_of_range(sum)) bad = 1;
      j += hop;
      k += rest;
      if (k > longest) {
        k -= others;
        ++j;
      }
    }
  }

  /// Sources of the boundary after a step, one warp a class, several at a time; `shift` moves the
  /// scale behind it.
  DEVICE_MEMBER void link(int shift) {
    constexpr int kEach = 4;
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    for (int j = threadIdx.x / 32; j < own; j += kEach * warps) {
      const double* into[kEach];
      double sum[kEach];
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        into[u] = matrix + static_cast<long long>(min(j + u * warps, own - 1)) * classes;
        sum[u] = 0.0;
      }
#pragma unroll 2
      for (int other = lane; other < classes; other += 32) {
        const double x = values[other];
#pragma unroll
        for (int u = 0; u < kEach; ++u) sum[u] = fma(x, into[u][other], sum[u]);
      }
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        sum[u] = warp_sum(sum[u]);
        const int at = j + u * warps;
        if (lane == 0 && at < own) {
          check(sum[u]);
          out.source[at] = sum[u];
          source[at] = sum[u] * power_of_two(shift);
        }
      }
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

/// grid (members * chunks, B, directions); (members, B, directions) to do rows again in one piece.
/// Dynamic shared memory as lay_out takes it.
KERNEL __launch_bounds__(512, 1) wide_pass(const __grid_constant__ Call call) {
  DYNAMIC_SHARED(double, shared);
  if (call.factors.exponents[2] != 0) return;  // the exact path does all rows
  WidePass pass;
  if (!pass.cut(call)) return;
  pass.lay_out(call, shared);
  const bool together = call.team.members > 1;
  int scale = 0;
  __syncthreads();
  for (int i = pass.first; i < pass.stop; ++i) {
    pass.advance(call, i);
    pass.close(i, together);
    __syncthreads();
    pass.push(i);
    pass.load_frame(call, i + 1);
    if (together) pass.take_values(i);
    __syncthreads();
    if (pass.keeps_scale()) *pass.out.scale = scale;
    const int shift = pass.next_shift(i);
    pass.link(shift);
    pass.moved = power_of_two(shift);
    scale -= shift;
    pass.newest = pass.newest + 1 < pass.longest ? pass.newest + 1 : 0;
    __syncthreads();
  }
  if (pass.bad != 0) atomicOr(&call.lattice.flags[pass.row], static_cast<int>(kNeedsExact));
}

}  // namespace segfuse::semicrf::gpu
