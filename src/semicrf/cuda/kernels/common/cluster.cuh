#pragma once
// The values of a boundary, in the shared memory of every block that works on a pass: of one block,
// or of the blocks of a cluster, which send each other what they find. A value goes to all blocks,
// and is counted where it arrives; a block waits for its own count alone, so no barrier is on the
// way from one boundary to the next.
//
// There are two sets of values, by turns. A block overwrites those of step n at step n + 2, whose
// values it sends after it has all of step n + 1; and a warp sends those of step n + 1 after it has
// read all that it reads of step n. So every warp that goes through the steps has a class, and
// sends its value: those of the last block that have none leave.

#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// Classes of a block, fewer in the last one.
DEVICE constexpr int classes_of_block(int classes, int blocks) {
  return (classes + blocks - 1) / blocks;
}

/// Whether a thread's warp has classes of the block. Where all have, the compiler knows that what
/// follows is no branch of some threads.
template <int kClasses, int kBlocks, int kGroup>
DEVICE bool warp_has_classes(int block) {
  constexpr int kOwn = classes_of_block(kClasses, kBlocks);
  constexpr int kOfLast = kClasses - (kBlocks - 1) * kOwn;
  if constexpr ((kOfLast * kGroup + 31) / 32 == (kOwn * kGroup + 31) / 32) return true;
  const int first = static_cast<int>(threadIdx.x) / 32 * 32;
  return block * kOwn + first / kGroup < kClasses;
}

/// kPlaces: of the classes' values and what lies between them, which is zero.
template <int kClasses, int kBlocks, int kPlaces>
struct Boundary {
  static constexpr bool kAlone = kBlocks == 1;
  static constexpr int kDoubles = 2 * kPlaces + 2;  ///< of shared memory
  static_assert(kPlaces % 2 == 0, "values are read in pairs");

  double* values;                ///< (2, kPlaces)
  unsigned long long* arrivals;  ///< (2)

  /// All threads of all blocks call it; `shared` is aligned to 16 bytes.
  DEVICE_MEMBER void start(double* shared) {
    values = shared;
    arrivals = reinterpret_cast<unsigned long long*>(shared + 2 * kPlaces);
    for (int i = threadIdx.x; i < 2 * kPlaces; i += blockDim.x) values[i] = 0.0;
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      expect_first();
      cluster_sync();
    }
  }

  /// All threads call it after the steps of a pass, before those of another one: what the blocks
  /// wrote during the pass, all of them see. Returns what they all find at `word`.
  DEVICE_MEMBER int restart(const volatile int* word) const {
    if constexpr (kAlone) {
      __syncthreads();
      return *word;
    } else {
      cluster_sync();
      const int found = *word;
      if (threadIdx.x == 0) {
        end_arrivals(arrivals);
        end_arrivals(arrivals + 1);
      }
      expect_first();
      cluster_sync();
      return found;
    }
  }

  DEVICE_MEMBER double* of(int step) const { return values + step % 2 * kPlaces; }

  /// A value of a step, counted from the pass's first one.
  DEVICE_MEMBER void put(int step, int place, double value) const {
    double* const at = of(step) + place;
    if constexpr (kAlone) {
      *at = value;
    } else {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) send(at, arrivals + step % 2, block, value);
    }
  }

  /// All threads that go through the steps call it, at each one: then values of the step are there.
  DEVICE_MEMBER void wait(int step) const {
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      wait_for_arrivals(arrivals + step % 2, step / 2 % 2);
      if (threadIdx.x == 0) expect_arrivals(arrivals + step % 2, kBytes);
      __syncwarp();
    }
  }

 private:
  static constexpr int kBytes = kClasses * static_cast<int>(sizeof(double));

  DEVICE_MEMBER void expect_first() const {
    if (threadIdx.x != 0) return;
    start_arrivals(arrivals);
    start_arrivals(arrivals + 1);
    expect_arrivals(arrivals, kBytes);
    expect_arrivals(arrivals + 1, kBytes);
  }
};

}  // namespace segfuse::semicrf::gpu
