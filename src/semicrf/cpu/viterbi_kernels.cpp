#include "semicrf/cpu/viterbi_kernels.h"

#include "semicrf/problem.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/cpu/viterbi_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;

void over_durations(const double* newest, const double* duration, std::int64_t n,
                    std::int64_t stride, double* best, double* best_k) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec top = hn::Set(d, kNegInf);
    Vec top_k = hn::Set(d, 1.0);
    const double* source = newest + v;
    const double* bonus = duration + v;
    for (std::int64_t k = 1; k <= n; ++k, source -= stride, bonus += stride) {
      const Vec score = hn::Add(hn::Load(d, source), hn::Load(d, bonus));
      top_k = hn::IfThenElse(hn::Gt(score, top), hn::Set(d, static_cast<double>(k)), top_k);
      top = hn::Max(top, score);
    }
    hn::Store(top, d, best + v);
    hn::Store(top_k, d, best_k + v);
  }
}

void over_labels(const double* value, const double* last_duration, const double* transition,
                 std::int64_t classes, std::int64_t stride, double* best, double* best_from) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec top = hn::Set(d, kNegInf);
    Vec top_from = hn::Zero(d);
    Vec top_duration = hn::Set(d, last_duration[0]);
    const double* row = transition + v;
    for (std::int64_t from = 0; from < classes; ++from, row += stride) {
      const Vec score = hn::Add(hn::Set(d, value[from]), hn::Load(d, row));
      const Vec duration = hn::Set(d, last_duration[from]);
      const auto tie = hn::And(hn::Eq(score, top), hn::Lt(duration, top_duration));
      const auto better = hn::Or(hn::Gt(score, top), tie);
      top = hn::Max(top, score);
      top_from = hn::IfThenElse(better, hn::Set(d, static_cast<double>(from)), top_from);
      top_duration = hn::IfThenElse(better, duration, top_duration);
    }
    hn::Store(top, d, best + v);
    hn::Store(top_from, d, best_from + v);
  }
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(over_durations);
HWY_EXPORT(over_labels);
}  // namespace

void best_over_durations(const double* newest, const double* duration, std::int64_t n,
                         std::int64_t stride, double* best, double* best_k) {
  HWY_DYNAMIC_DISPATCH(over_durations)(newest, duration, n, stride, best, best_k);
}

void best_over_labels(const double* value, const double* last_duration, const double* transition,
                      std::int64_t classes, std::int64_t stride, double* best, double* best_from) {
  HWY_DYNAMIC_DISPATCH(over_labels)
  (value, last_duration, transition, classes, stride, best, best_from);
}

}  // namespace segfuse::semicrf
#endif
