#pragma once
// What the semi-CRF's kernels expect of a device's language (kernels/common/prelude.cuh), for the
// host's compiler.

#include "support/emulator/device_language.h"

#define DEVICE inline
#define DEVICE_MEMBER
#define KERNEL inline void

namespace segfuse::semicrf::gpu {

/// To 20 bits, as the device's instruction.
inline double approximate_reciprocal(double x) {
  return __hiloint2double(__double2hiint(1.0 / x), 0);
}

inline void store_now(unsigned long long* at, unsigned long long first, unsigned long long second) {
  at[0] = first;
  at[1] = second;
}
inline void load_now(const unsigned long long* at, unsigned long long* first,
                     unsigned long long* second) {
  *first = at[0];
  *second = at[1];
}

}  // namespace segfuse::semicrf::gpu
