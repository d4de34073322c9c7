#pragma once
// The passes in the linear domain, all state in registers: one block per (row, direction), or the
// blocks of a cluster, to which the classes are dealt out. How many blocks there are does not show
// in the bits.
//
// With w_s = source_s * enter_s and everything below per class c,
//
//   forward:  alpha_{t+1} = leave_t * sum_k w_{t+1-k} D[k] e_{t+1-k} .. e_t     gamma_{t+1} =
//   alpha_{t+1} M backward: the same on the reversed row, with M transposed and start and end
//   swapped:
//             value = delta, source = beta.
//
// A class is served by a group of kGroup lanes. Lane g holds the matrix elements of kSources source
// classes and the durations g kTaps + 1 .. (g + 1) kTaps. The convolution is kept in transposed
// form: pending[j] sums what the known sources give to the boundary j steps ahead, so a new source
// costs one multiply-add per duration, and moving on by a frame is the shift in the same operation.
// Frames' factors gather in `grown` = e .. e since the last renormalisation, and sources join
// divided by it; every kStride frames pending absorbs it, and the largest value goes back to
// 2^kTarget by a power of two that goes to `scale`.
//
// Ranges. Every nonzero value is checked to lie well inside the range of double, and no product of
// checked numbers underflows to zero unseen; a row that leaves it is marked for the exact kernel
// (docs/semicrf_engines.md has the bounds).

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/cluster.cuh"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"
#include "semicrf/cuda/kernels/common/far.cuh"
#include "semicrf/cuda/kernels/common/range.cuh"
#include "semicrf/cuda/kernels/sum/output.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kStride = 4;
constexpr int kSmallFactor = 1023 - 110;  ///< biased exponent: smaller ones are absorbed at once
constexpr int kMinPending = 1023 - 900;   ///< of what frames and the scale leave of a pending sum

template <int kClasses, int kGroup, int kTaps, int kBlocks, bool kFar>
struct Scan {
  static constexpr int kSources = (kClasses + kGroup - 1) / kGroup;
  /// A group's lanes read 16 bytes each from different banks.
  static constexpr int kPart = (kSources + 13) / 16 * 16 + 2;
  static constexpr int kEarly = kSources < 8 ? (kSources + 1) / 2 : 4;
  static constexpr int kOwn = classes_of_block(kClasses, kBlocks);
  static constexpr int kWarps = (kOwn * kGroup + 31) / 32;

  double from[kSources];  ///< transition into (out of, backward) this lane's class
  double tap[kTaps + 1];  ///< durations of this lane and the next lane's first
  double pending[kTaps];
  FarWindow<kFar> far;     ///< durations and pending sums beyond those
  double far_scale = 1.0;  ///< of its sums since they were last written
  unsigned far_least = ~0u;
  double grown = 1.0;
  double shrunk = 1.0;  ///< 1 / grown
  int scale = 0;
  unsigned bad = 0;
  int lane_of_class;  ///< g
  int c;
  bool active;  ///< this lane's class exists

  DEVICE_MEMBER void init(const Call& call, int block, bool forward, double* shared) {
    lane_of_class = threadIdx.x % kGroup;
    const int own = threadIdx.x / kGroup;
    c = block * kOwn + own;
    active = own < kOwn && c < kClasses;
    if (!active) c = kClasses - 1;
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const int other = lane_of_class * kSources + i;
      const int at = forward ? other * kClasses + c : c * kClasses + other;
      from[i] = other < kClasses ? call.factors.transition[at] : 0.0;
    }
#pragma unroll
    for (int j = 0; j <= kTaps; ++j) {
      const int k = lane_of_class * kTaps + j;
      tap[j] = k < call.sizes.max_duration ? call.factors.duration[k * kClasses + c] : 0.0;
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] = 0.0;
    far.init(shared, call.sizes.max_duration - kGroup * kTaps, active ? own : -1, lane_of_class);
    far.template clear<kGroup>(0.0);
    far.template fill<kGroup>(
        [&](int i) { return call.factors.duration[(kGroup * kTaps + i) * kClasses + c]; });
  }

  /// The first values of this lane's part, read before the time of their use; more would take too
  /// many registers.
  DEVICE_MEMBER void read(const double* values, double2 (&x)[kEarly]) const {
    const double2* part = reinterpret_cast<const double2*>(values + lane_of_class * kPart);
#pragma unroll
    for (int i = 0; i < kEarly; ++i) x[i] = part[i];
  }

  /// Sum over the group of this lane's part of the product of all values with the matrix.
  DEVICE_MEMBER double link(const double* values, const double2 (&early)[kEarly]) const {
    const double2* part = reinterpret_cast<const double2*>(values + lane_of_class * kPart);
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll
    for (int i = 0; i < kSources; i += 2) {
      const double2 x = i / 2 < kEarly ? early[i / 2 < kEarly ? i / 2 : 0] : part[i / 2];
      sum[i % 4] = fma(x.x, from[i], sum[i % 4]);
      if (i + 1 < kSources) sum[(i + 1) % 4] = fma(x.y, from[i + 1], sum[(i + 1) % 4]);
    }
    double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
#pragma unroll
    for (int lane = kGroup / 2; lane > 0; lane /= 2)
      total += __shfl_xor_sync(kAllLanes, total, lane);
    return total;
  }

  /// The source joins pending, which moves on by a frame.
  DEVICE_MEMBER void push(double w) {
    const double beyond = kFar ? far.first(0.0) * far_scale : 0.0;
    double next = beyond;
    if (kGroup > 1) {
      next = __shfl_down_sync(kAllLanes, pending[0], 1);
      if (lane_of_class == kGroup - 1) next = beyond;
    }
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) pending[j] = fma(w, tap[j + 1], pending[j + 1]);
    pending[kTaps - 1] = fma(w, tap[kTaps], next);
    if constexpr (!kFar) return;
    far_least = ~0u;
    far.template advance<kGroup>(0.0, [&](double known, double tap_of_sum) {
      const double sum = fma(w, tap_of_sum, known * far_scale);
      far_least = min(far_least, static_cast<unsigned>(__double2hiint(sum)) - 1u);
      return sum;
    });
    far_scale = 1.0;
  }

  /// `kept`: the frame's own factors do not forbid the class.
  DEVICE_MEMBER void check(double source, double w, double before, double value, bool kept) {
    if (source != 0.0 && out_of_range(source)) bad = 1;
    if (w != 0.0 && out_of_range(w)) bad = 1;
    if (value != 0.0 ? out_of_range(value) : before != 0.0 && kept) bad = 1;
  }

  /// Least exponent of the nonzero pending sums, or a large number.
  DEVICE_MEMBER int least_pending() const {
    unsigned least = ~0u;
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
      least = min(least, static_cast<unsigned>(__double2hiint(pending[j])) - 1u);
    const int near = static_cast<int>(least >> 20);
    const int written = static_cast<int>(far_least >> 20);
    if (!kFar || written >= 2047 || far_scale == 0.0) return near;
    return min(near, max(0, written + exponent_bits(far_scale) - 1023));
  }

  DEVICE_MEMBER void scale_pending(double factor) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) pending[j] *= factor;
    if (kFar) far_scale *= factor;
  }
};

/// The frames of one stride, loaded before they are needed.
struct Frames {
  double factor[kStride];
  double enter[kStride];
  double leave[kStride];
};

template <bool kEdges>
DEVICE Frames load_frames(const double* factor, const double* enter, const double* leave,
                          long long step, int left) {
  Frames f;
#pragma unroll
  for (int u = 0; u < kStride; ++u) {
    const long long at = (u < left ? u : 0) * step;
    f.factor[u] = left > 0 ? factor[at] : 1.0;
    f.enter[u] = kEdges && enter != nullptr && left > 0 ? enter[at] : 1.0;
    f.leave[u] = kEdges && leave != nullptr && left > 0 ? leave[at] : 1.0;
  }
  return f;
}

/// Largest exponent over the classes at a boundary, from the maxima of the warps.
template <int kWarps>
DEVICE int largest_exponent(const int* warp_exponent) {
  int largest = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = max(largest, warp_exponent[w]);
  return largest;
}

/// The same from the values themselves, which every warp has.
template <int kPlaces>
DEVICE int largest_exponent_of(const double* values) {
  int largest = 0;
  for (int i = threadIdx.x % 32; i < kPlaces; i += 32)
    largest = max(largest, exponent_bits(values[i]));
  return __reduce_max_sync(kAllLanes, largest);
}

/// kEdges: there are start or end scores. grid (chunks * kBlocks, B, directions); dynamic shared
/// memory for a Boundary, a number and a FarWindow.
template <int kClasses, int kGroup, int kTaps, bool kEdges, int kBlocks, bool kFar>
DEVICE void scan_row(const Call& call) {
  using Lane = Scan<kClasses, kGroup, kTaps, kBlocks, kFar>;
  constexpr int kPlaces = kGroup * Lane::kPart;
  using Values = Boundary<kClasses, kBlocks, kPlaces>;
  DYNAMIC_SHARED(double, shared);
  __shared__ int warp_exponent[Lane::kWarps];
  const int block = blockIdx.x % kBlocks;
  const int row = blockIdx.y;
  const int direction = blockIdx.z;
  const bool forward = direction == 0;
  const int length = row_length(call, row);
  if (!is_due(call, row, forward)) return;
  const int chunk = chunk_of(call, forward, blockIdx.x / kBlocks);
  if (chunk < 0) return;
  const int steps = chunk_steps(call, length);
  const int own = chunk * steps;  // the first step of its own
  if (chunk > 0 && own >= length) return;
  const int stop = min(length, own + steps);
  const int first = max(0, own - call.chunks.warm_up);
  Lane lane;
  lane.init(call, block, forward, shared + Values::kDoubles + 1);
  const bool writer = lane.active && lane.lane_of_class == 0;
  const bool keeps_scale = block == 0 && threadIdx.x == 0;

  const long long step = forward ? kClasses : -kClasses;
  // An empty row has no frame, and a batch of them no emissions.
  const long long first_frame =
      length > 0 ? at_frame(call, row, forward ? first : length - 1 - first) + lane.c : 0;
  const double* factor = call.factors.emission + first_frame;
  const double* enter = forward ? call.factors.start : call.factors.end;
  const double* leave = forward ? call.factors.end : call.factors.start;
  if (enter != nullptr) enter += first_frame;
  if (leave != nullptr) leave += first_frame;
  PassOutput out = first < own ? warm_up_output(call, row, direction, chunk, lane.c)
                               : lattice_output(call, row, forward, length, first, lane.c);
  const int slot = lane.c / Lane::kSources * Lane::kPart + lane.c % Lane::kSources;

  double source = first > 0 ? 1.0 : (forward ? call.factors.initial : call.factors.final)[lane.c];
  if (writer && chunk == 0) *out.source = source;
  if (keeps_scale && chunk == 0) *out.scale = 0;
  Values boundary;
  boundary.start(shared);
  if (!warp_has_classes<kClasses, kBlocks, kGroup>(block)) return;
  Frames next = load_frames<kEdges>(factor, enter, leave, step, stop - first);
  for (int begin = first; begin < stop; begin += kStride) {
    if (begin == own && first < own) {
      out = lattice_output(call, row, forward, length, own, lane.c);
      lane.bad = 0;  // what became of the guess counts by its outcome
    }
    const Frames now = next;
    factor += kStride * step;
    if (kEdges && enter != nullptr) enter += kStride * step;
    if (kEdges && leave != nullptr) leave += kStride * step;
    next = load_frames<kEdges>(factor, enter, leave, step, stop - begin - kStride);
    bool small = false;
#pragma unroll
    for (int u = 0; u < kStride; ++u) small |= exponent_bits(now.factor[u]) < kSmallFactor;
    const bool absorb = __any_sync(kAllLanes, small);
#pragma unroll
    for (int u = 0; u < kStride; ++u) {
      if (begin + u < stop) {
        out.source += out.step;
        out.value += out.step;
        out.scale += out.scale_step;
        // value = (source w tap + pending) grown leave, with all that does not wait for the source
        // taken together: the source's way to the next one is the length of a step.
        const double joining = now.enter[u] * lane.shrunk;
        const double leaving = lane.grown * now.factor[u] * now.leave[u];
        const double value =
            fma(source, joining * lane.tap[0] * leaving, lane.pending[0] * leaving);
        if (writer) {
          boundary.put(u, slot, value);
          *out.value = value;
        }
        if (keeps_scale) *out.scale = lane.scale;
        if (kBlocks == 1 && u == kStride - 1) {
          const int mine = __reduce_max_sync(kAllLanes, writer ? exponent_bits(value) : 0);
          if (threadIdx.x % 32 == 0) warp_exponent[threadIdx.x / 32] = mine;
        }
        boundary.wait(u);
        double2 x[Lane::kEarly];
        lane.read(boundary.of(u), x);
        const double w = source * joining;
        lane.check(source, w, fma(w, lane.tap[0], lane.pending[0]), writer ? value : 1.0,
                   now.factor[u] != 0.0 && now.leave[u] != 0.0);
        lane.push(w);
        lane.grown *= now.factor[u];
        if (absorb) {
          const int least = lane.least_pending();
          const int exponent = exponent_bits(lane.grown);
          if (lane.grown != 0.0 && least < 2047 && least + exponent - 1023 < kMinPending)
            lane.bad = 1;
          lane.scale_pending(lane.grown);
          lane.grown = lane.shrunk = 1.0;
        } else {
          lane.shrunk *= reciprocal(now.factor[u]);
        }
        source = lane.link(boundary.of(u), x);
        if (writer) *out.source = source;
      }
    }
    if (begin + kStride < stop) {
      const int largest = kBlocks == 1 ? largest_exponent<Lane::kWarps>(warp_exponent)
                                       : largest_exponent_of<kPlaces>(boundary.of(kStride - 1));
      const int shift = largest == 0 ? 0 : max(-1000, min(1000, 1023 + kTarget - largest));
      const int least = lane.least_pending();
      if (lane.grown != 0.0 && least < 2047 &&
          least + exponent_bits(lane.grown) - 1023 + shift < kMinPending)
        lane.bad = 1;
      if (source != 0.0 && out_of_range(source)) lane.bad = 1;
      const double factor_of_shift = power_of_two(shift);
      lane.scale_pending(lane.grown * factor_of_shift);
      source *= factor_of_shift;
      lane.scale -= shift;
      lane.grown = lane.shrunk = 1.0;
    }
  }
  if (lane.bad != 0) atomicOr(&call.lattice.flags[row], static_cast<int>(kNeedsExact));
}

}  // namespace segfuse::semicrf::gpu
