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

/// Bits of a count of arrivals: bytes that are still to come, whether it is known how many they
/// are, phases that are over.
inline constexpr int kArrivalsKnown = 32;
inline constexpr int kArrivalsPhase = 33;

inline void add_arrivals(unsigned long long* arrivals, int bytes, bool known) {
  const unsigned long long phase = *arrivals >> kArrivalsPhase;
  const auto expected =
      static_cast<unsigned>(static_cast<int>(static_cast<unsigned>(*arrivals)) + bytes);
  const bool is_known = known || (*arrivals >> kArrivalsKnown & 1) != 0;
  *arrivals = is_known && expected == 0
                  ? (phase + 1) << kArrivalsPhase
                  : phase << kArrivalsPhase |
                        static_cast<unsigned long long>(is_known) << kArrivalsKnown | expected;
}
inline void start_arrivals(unsigned long long* arrivals) { *arrivals = 0; }
inline void end_arrivals(unsigned long long* arrivals) { *arrivals = ~0ull; }
inline void expect_arrivals(unsigned long long* arrivals, int bytes) {
  add_arrivals(arrivals, bytes, true);
}
inline void wait_for_arrivals(const unsigned long long* arrivals, int parity) {
  while (static_cast<int>(*arrivals >> kArrivalsPhase & 1) == parity) testing::runner().pause();
}
inline void send(double* at, unsigned long long* arrivals, unsigned block, double value) {
  *static_cast<double*>(testing::runner().elsewhere(at, block)) = value;
  add_arrivals(static_cast<unsigned long long*>(testing::runner().elsewhere(arrivals, block)),
               -static_cast<int>(sizeof value), false);
}
inline void cluster_sync() { testing::runner().wait_cluster(); }

}  // namespace segfuse::semicrf::gpu
