#include "semicrf/align/window_kernels.h"

#include <algorithm>

#include "base/code/simd_targets.h"
#include "semicrf/model/problem.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/align/window_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "semicrf/cpu/sum/vector_math-inl.h"

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

/// join(into, in[j + k], weights[k]) for all k, for a group of windows at a time, whose results are
/// in registers.
template <class Join>
HWY_INLINE void slide(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                      WindowVec begin, double* out, const Join& join) {
  const WindowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    WindowVec a = begin, b = begin, c = begin, e = begin;
    for (std::int64_t k = 0; k < width; ++k) {
      const WindowVec weight = hn::Set(d, weights[k]);
      const double* at = in + j + k;
      a = join(a, hn::LoadU(d, at), weight);
      b = join(b, hn::LoadU(d, at + lanes), weight);
      c = join(c, hn::LoadU(d, at + 2 * lanes), weight);
      e = join(e, hn::LoadU(d, at + 3 * lanes), weight);
    }
    hn::StoreU(a, d, out + j);
    hn::StoreU(b, d, out + j + lanes);
    hn::StoreU(c, d, out + j + 2 * lanes);
    hn::StoreU(e, d, out + j + 3 * lanes);
  }
  const hn::CappedTag<double, 1> one;
  for (; j + lanes <= n; j += lanes) {
    WindowVec a = begin;
    for (std::int64_t k = 0; k < width; ++k)
      a = join(a, hn::LoadU(d, in + j + k), hn::Set(d, weights[k]));
    hn::StoreU(a, d, out + j);
  }
  for (; j < n; ++j) {
    auto a = hn::Set(one, hn::GetLane(begin));
    for (std::int64_t k = 0; k < width; ++k)
      a = join(a, hn::Set(one, in[j + k]), hn::Set(one, weights[k]));
    out[j] = hn::GetLane(a);
  }
}

struct ProductOfEach {
  template <class V>
  HWY_INLINE V operator()(V sum, V x, V y) const {
    return hn::MulAdd(x, y, sum);
  }
};
struct MaxOfEach {
  template <class V>
  HWY_INLINE V operator()(V max, V x, V y) const {
    return hn::Max(max, hn::Add(x, y));
  }
};

void products_of_windows(const double* in, const double* weights, std::int64_t width,
                         std::int64_t n, double* out) {
  slide(in, weights, width, n, hn::Zero(WindowTag()), out, ProductOfEach());
}

void maxima_of_windows(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                       double* out) {
  slide(in, weights, width, n, hn::Set(WindowTag(), kNegInf), out, MaxOfEach());
}

/// out[i] = of(tag, vector of in[i], vector of out[i]); the last ones one by one.
template <class Of>
HWY_INLINE void each(const double* in, std::int64_t n, double* out, const Of& of) {
  const WindowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(of(d, hn::LoadU(d, in + i), hn::LoadU(d, out + i)), d, out + i);
  const hn::CappedTag<double, 1> one;
  for (; i < n; ++i) out[i] = hn::GetLane(of(one, hn::Set(one, in[i]), hn::Set(one, out[i])));
}

struct ExpOfEach {
  double reference;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V) const {
    return exp_of(d, hn::Sub(x, hn::Set(d, reference)));
  }
};
struct LogOfEach {
  double reference;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V) const {
    return hn::Add(log_of(d, x), hn::Set(d, reference));
  }
};
struct LogAddOfEach {
  double shift;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V from, V into) const {
    const V x = hn::Add(from, hn::Set(d, shift));
    const V high = hn::Max(into, x);
    const V low = hn::Min(into, x);
    // Of -inf and anything the other one; of both, -inf.
    const V share = exp_of(d, hn::Sub(low, high));
    const V sum = hn::Add(high, log_of(d, hn::Add(hn::Set(d, 1.0), share)));
    return hn::IfThenElse(hn::Eq(low, hn::Set(d, kNegInf)), high, sum);
  }
};

void exps_of(const double* in, double reference, std::int64_t n, double* out) {
  each(in, n, out, ExpOfEach{reference});
}
void logs_of(const double* in, double reference, std::int64_t n, double* out) {
  each(in, n, out, LogOfEach{reference});
}
void log_adds_of(const double* from, double shift, std::int64_t n, double* into) {
  each(from, n, into, LogAddOfEach{shift});
}

double largest_in(const double* in, std::int64_t n) {
  const WindowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  WindowVec max = hn::Set(d, kNegInf);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) max = hn::Max(max, hn::LoadU(d, in + i));
  double all = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; i < n; ++i) all = std::max(all, in[i]);
  return all;
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(product_of_windows);
HWY_EXPORT(max_of_windows);
HWY_EXPORT(products_of_windows);
HWY_EXPORT(maxima_of_windows);
HWY_EXPORT(exps_of);
HWY_EXPORT(logs_of);
HWY_EXPORT(log_adds_of);
HWY_EXPORT(largest_in);
}  // namespace

double window_product(const double* a, const double* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(product_of_windows)(a, b, n);
}

double window_max(const double* a, const double* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(max_of_windows)(a, b, n);
}

void window_products(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                     double* out) {
  HWY_DYNAMIC_DISPATCH(products_of_windows)(in, weights, width, n, out);
}

void window_maxima(const double* in, const double* weights, std::int64_t width, std::int64_t n,
                   double* out) {
  HWY_DYNAMIC_DISPATCH(maxima_of_windows)(in, weights, width, n, out);
}

void exp_each(const double* in, double reference, std::int64_t n, double* out) {
  HWY_DYNAMIC_DISPATCH(exps_of)(in, reference, n, out);
}

void log_each(const double* in, double reference, std::int64_t n, double* out) {
  HWY_DYNAMIC_DISPATCH(logs_of)(in, reference, n, out);
}

void log_add_each(const double* from, double shift, std::int64_t n, double* into) {
  HWY_DYNAMIC_DISPATCH(log_adds_of)(from, shift, n, into);
}

double largest_of(const double* in, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(largest_in)(in, n);
}

}  // namespace segfuse::semicrf
#endif
