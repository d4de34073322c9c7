#include "semicrf/lattice_kernels.h"

#include "semicrf/problem.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/lattice_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;

void log_sum(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec max = none;
    for (std::int64_t i = 0; i < n; ++i) max = hn::Max(max, hn::Load(d, rows + i * stride + v));
    const auto some = hn::Gt(max, none);
    const Vec reference = hn::IfThenElseZero(some, max);
    Vec sum = hn::Zero(d);
    for (std::int64_t i = 0; i < n; ++i)
      sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::Load(d, rows + i * stride + v), reference)));
    // At least one term is 1, so the logarithm is of a normal number.
    const Vec safe = hn::IfThenElse(some, sum, hn::Set(d, 1.0));
    hn::Store(hn::IfThenElse(some, hn::Add(reference, hn::Log(d, safe)), none), d, out + v);
  }
}

void add_exp(const double* rows, const double* offset, double scalar, std::int64_t n,
             std::int64_t stride, double* sums) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec shift = hn::Add(hn::Load(d, offset + v), hn::Set(d, scalar));
    for (std::int64_t i = 0; i < n; ++i) {
      const Vec term = hn::Exp(d, hn::Add(hn::Load(d, rows + i * stride + v), shift));
      double* sum = sums + i * stride + v;
      hn::Store(hn::Add(hn::Load(d, sum), term), d, sum);
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(log_sum);
HWY_EXPORT(add_exp);
}  // namespace

void log_sum_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  HWY_DYNAMIC_DISPATCH(log_sum)(rows, n, stride, out);
}

void add_exp_rows(const double* rows, const double* offset, double scalar, std::int64_t n,
                  std::int64_t stride, double* sums) {
  HWY_DYNAMIC_DISPATCH(add_exp)(rows, offset, scalar, n, stride, sums);
}

}  // namespace segfuse::semicrf
#endif
