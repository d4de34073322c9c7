#include "semicrf/align/window_kernels.h"

#include <algorithm>

#include "semicrf/model/problem.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/align/window_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using WindowTag = hn::CappedTag<double, 8>;
using WindowVec = hn::Vec<WindowTag>;

/// Eight lanes are one, two or four vectors. join(lanes, a, b) puts sums or maxima of pairs into
/// them, rest(lane, a, b) a pair into one.
template <class Join, class Rest>
HWY_INLINE void window_lanes(const double* a, const double* b, std::int64_t n, double* lanes,
                             const Join& join, const Rest& rest) {
  const WindowTag d;
  const auto width = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  if (width > 1 && n >= 8) {
    WindowVec first = hn::LoadU(d, lanes);
    WindowVec second = first;
    WindowVec third = first;
    WindowVec fourth = first;
    const auto pair = [&](std::int64_t at, WindowVec into) {
      return join(into, hn::LoadU(d, a + at), hn::LoadU(d, b + at));
    };
    for (; i + 8 <= n; i += 8) {
      first = pair(i, first);
      if (width < 8) second = pair(i + width, second);
      if (width < 4) third = pair(i + 2 * width, third);
      if (width < 4) fourth = pair(i + 3 * width, fourth);
    }
    hn::StoreU(first, d, lanes);
    if (width < 8) hn::StoreU(second, d, lanes + width);
    if (width < 4) hn::StoreU(third, d, lanes + 2 * width);
    if (width < 4) hn::StoreU(fourth, d, lanes + 3 * width);
  } else {
    for (; i + 8 <= n; i += 8)
      for (std::int64_t j = 0; j < 8; ++j) rest(lanes[j], a[i + j], b[i + j]);
  }
  for (; i < n; ++i) rest(lanes[0], a[i], b[i]);
}

double product_of_windows(const double* a, const double* b, std::int64_t n) {
  double lanes[8] = {};
  window_lanes(
      a, b, n, lanes,
      [](WindowVec sum, WindowVec x, WindowVec y) { return hn::Add(sum, hn::Mul(x, y)); },
      [](double& sum, double x, double y) { sum += x * y; });
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double max_of_windows(const double* a, const double* b, std::int64_t n) {
  double lanes[8];
  std::fill_n(lanes, 8, kNegInf);
  window_lanes(
      a, b, n, lanes,
      [](WindowVec max, WindowVec x, WindowVec y) { return hn::Max(max, hn::Add(x, y)); },
      [](double& max, double x, double y) { max = std::max(max, x + y); });
  return *std::max_element(lanes, lanes + 8);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(product_of_windows);
HWY_EXPORT(max_of_windows);
}  // namespace

double window_product(const double* a, const double* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(product_of_windows)(a, b, n);
}

double window_max(const double* a, const double* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(max_of_windows)(a, b, n);
}

}  // namespace segfuse::semicrf
#endif
