#include "ceilings.h"

#include <algorithm>
#include <chrono>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ceilings.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>
#include "semicrf/cpu/sum/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

using Lanes = hn::CappedTag<double, 8>;
using Vec = hn::Vec<Lanes>;

/// Runs `rounds` times ten independent multiply-adds; returns how many numbers that were.
double multiply_adds(double* values, long rounds) {
  const Lanes d;
  const auto n = static_cast<long>(hn::Lanes(d));
  Vec sum[10];
  for (int i = 0; i < 10; ++i) sum[i] = hn::Load(d, values + i * n);
  const Vec factor = hn::Load(d, values + 10 * n);
  const Vec term = hn::Load(d, values + 11 * n);
  for (long round = 0; round < rounds; ++round)
    for (int i = 0; i < 10; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  for (int i = 0; i < 10; ++i) hn::Store(sum[i], d, values + i * n);
  return static_cast<double>(rounds * 10 * n);
}

double exps(const double* in, double* out, long size, long rounds) {
  const Lanes d;
  const auto n = static_cast<long>(hn::Lanes(d));
  for (long round = 0; round < rounds; ++round)
    for (long i = 0; i + n <= size; i += n) hn::Store(exp_of(d, hn::Load(d, in + i)), d, out + i);
  return static_cast<double>(rounds * size);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(multiply_adds);
HWY_EXPORT(exps);
}  // namespace
}  // namespace segfuse::semicrf

namespace segfuse::bench {
namespace {

/// The best of several runs, which is what the machine can do.
template <class Body>
double best_rate(const Body& body) {
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    const double count = body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, count / seconds.count());
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings() {
  using namespace semicrf;  // NOLINT: the dispatch tables
  alignas(64) static double values[12 * 8];
  alignas(64) static double in[512];
  alignas(64) static double out[512];
  for (double& v : values) v = 0.5;
  for (int i = 0; i < 512; ++i) in[i] = 0.01 * i - 3.0;
  Ceilings ceilings;
  ceilings.fma_gflops =
      2e-9 * best_rate([&] { return HWY_DYNAMIC_DISPATCH(multiply_adds)(values, 200000); });
  ceilings.exps_per_second =
      best_rate([&] { return HWY_DYNAMIC_DISPATCH(exps)(in, out, 512, 4000); });
  return ceilings;
}

}  // namespace segfuse::bench
#endif
