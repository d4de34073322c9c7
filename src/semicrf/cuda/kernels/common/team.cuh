#pragma once
// Blocks that work on one pass together: all run at the same time (GpuLaunch::together), and wait
// for each other at every boundary, all for all or each for the values that it reads.

#include "semicrf/cuda/kernels/common/prelude.cuh"

namespace segfuse::semicrf::gpu {

/// What one block writes before arrive(), the others may read after wait(). All threads of a block
/// call both.
struct TeamBarrier {
  unsigned* counter;  ///< zero at the start of the launch
  int members;
  unsigned target = 0;

  DEVICE_MEMBER void arrive() {
    target += members;
    __syncthreads();
    if (members == 1 || not_first()) return;
    __threadfence();
    atomicAdd(counter, 1u);
  }
  DEVICE_MEMBER void wait() {
    if (members > 1 && !not_first()) {
      while (static_cast<int>(*static_cast<volatile unsigned*>(counter) - target) < 0)
        __nanosleep(8);
      __threadfence();
    }
    __syncthreads();
  }

 private:
  static DEVICE_MEMBER bool not_first() { return threadIdx.x != 0 || threadIdx.y != 0; }
};

/// Values of a boundary that blocks hand to each other. Each is written with its turn beside it, so
/// a reader waits for what it reads and for nothing else: a third of a barrier's time. Turns begin
/// with 1; memory is zero at the start of the launch. There are two sets, by turns: a block that
/// writes turn n + 2 has read all of turn n + 1, and each of its writers had read turn n before.
struct TeamValues {
  unsigned long long* words;  ///< (2, C, kWords), 16 bytes aligned
  int classes;

  static constexpr int kWords = 4;

  DEVICE_MEMBER unsigned long long* at(unsigned turn, int c) const {
    return words + (static_cast<long long>(turn % 2) * classes + c) * kWords;
  }
  static DEVICE_MEMBER unsigned long long tagged(unsigned turn, int bits) {
    return static_cast<unsigned long long>(turn) << 32 | static_cast<unsigned>(bits);
  }
  static DEVICE_MEMBER bool is_of(unsigned turn, unsigned long long word) {
    return static_cast<unsigned>(word >> 32) == turn;
  }

  DEVICE_MEMBER void put(unsigned turn, int c, double value) const {
    store_now(at(turn, c), tagged(turn, __double2hiint(value)),
              tagged(turn, __double2loint(value)));
  }
  DEVICE_MEMBER void put(unsigned turn, int c, double value, int beside) const {
    put(turn, c, value);
    store_now(at(turn, c) + 2, tagged(turn, beside), 0);
  }
  DEVICE_MEMBER double take(unsigned turn, int c) const {
    unsigned long long high = 0;
    unsigned long long low = 0;
    for (;;) {
      load_now(at(turn, c), &high, &low);
      if (is_of(turn, high) && is_of(turn, low)) break;
      __nanosleep(8);
    }
    return __hiloint2double(static_cast<int>(high), static_cast<int>(low));
  }
  DEVICE_MEMBER double take(unsigned turn, int c, int* beside) const {
    unsigned long long high = 0;
    unsigned long long low = 0;
    unsigned long long word = 0;
    unsigned long long rest = 0;
    for (;;) {
      load_now(at(turn, c), &high, &low);
      load_now(at(turn, c) + 2, &word, &rest);
      if (is_of(turn, high) && is_of(turn, low) && is_of(turn, word)) break;
      __nanosleep(8);
    }
    *beside = static_cast<int>(word);
    return __hiloint2double(static_cast<int>(high), static_cast<int>(low));
  }
};

}  // namespace segfuse::semicrf::gpu
