#pragma once
// Durations for which a class has no registers, and the pending values of boundaries so far ahead,
// in shared memory. A value stays where it is until its boundary is near, and the place of the one
// that left is that of the farthest boundary: one value a boundary leaves for the registers.

#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// Of one class, whose lanes share it.
template <bool kThere>
struct FarWindow {
  double* pending;  ///< (count), and as many durations behind them
  int count;        ///< 0 for a lane without a class
  int head;         ///< place of the value that leaves next
  int lane;

  /// `own`: the class among those of the block, or -1.
  DEVICE_MEMBER void init(double* shared, int durations, int own, int of_lane) {
    if constexpr (!kThere) return;
    count = own < 0 ? 0 : durations;
    pending = shared + 2ll * max(own, 0) * durations;
    lane = of_lane;
  }

  template <int kGroup>
  DEVICE_MEMBER void clear(double nothing) {
    head = 0;
    if constexpr (kThere)
      for (int i = lane; i < count; i += kGroup) pending[i] = nothing;
  }

  /// Durations from `of(i)`, of the i-th beyond the registers.
  template <int kGroup, class Of>
  DEVICE_MEMBER void fill(Of of) {
    if constexpr (kThere)
      for (int i = lane; i < count; i += kGroup) pending[count + i] = of(i);
  }

  /// The value that leaves.
  DEVICE_MEMBER double first(double nothing) const {
    if constexpr (!kThere) return nothing;
    __syncwarp();
    return count > 0 ? pending[head] : nothing;
  }

  /// Every value becomes push(value, duration), and moves on by a boundary. All lanes of a warp
  /// call it, after first().
  template <int kGroup, class Push>
  DEVICE_MEMBER void advance(double nothing, Push push) {
    if constexpr (!kThere) return;
    __syncwarp();
    const double* const taps = pending + count;
#pragma unroll 4
    for (int i = lane; i < count; i += kGroup) {
      const int ahead = i < head ? i - head + count : i - head;
      pending[i] = ahead == 0 ? nothing : push(pending[i], taps[ahead]);
    }
    head = head + 1 < count ? head + 1 : 0;
  }
};

}  // namespace segfuse::semicrf::gpu
