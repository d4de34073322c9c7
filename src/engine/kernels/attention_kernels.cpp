#include "engine/kernels/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/attention_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::engine {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

// --- rows of scores

template <class T>
void score(const TileMask<T>& t, T* s) {
  for (std::int64_t i = 0; i < t.rows; ++i, s += kTileColumns) {
    const T* bias = t.bias + (t.bias ? i * t.bias_row : 0);
    const std::uint8_t* mask = t.mask + (t.mask ? i * t.mask_row : 0);
    const std::int64_t seen =
        t.banded ? std::clamp<std::int64_t>(t.seen + i, 0, t.columns) : t.columns;
    for (std::int64_t j = 0; j < seen; ++j) s[j] *= t.scale;
    if (t.bias && t.bias_column == 1) {
      for (std::int64_t j = 0; j < seen; ++j) s[j] += bias[j];
    } else if (t.bias) {
      for (std::int64_t j = 0; j < seen; ++j) s[j] += bias[j * t.bias_column];
    }
    if (t.mask && t.mask_column == 1) {
      for (std::int64_t j = 0; j < seen; ++j) s[j] = mask[j] != 0 ? s[j] : t.fill;
    } else if (t.mask) {
      for (std::int64_t j = 0; j < seen; ++j) s[j] = mask[j * t.mask_column] != 0 ? s[j] : t.fill;
    }
    for (std::int64_t j = seen; j < t.columns; ++j) s[j] = t.fill;
  }
}

/// Also of NaN and of what is too large.
template <class D, class V>
HWY_INLINE V power(D d, V x) {
  using T = hn::TFromD<D>;
  const T most = sizeof(T) == 4 ? T(88.7) : T(709.7);
  const V y = hn::IfThenElse(hn::Gt(x, hn::Set(d, most)),
                             hn::Set(d, std::numeric_limits<T>::infinity()), hn::Exp(d, x));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// Fills a row up to whole vectors; a tile has room for them.
template <class T>
HWY_INLINE std::int64_t filled_up(T* s, std::int64_t columns, std::int64_t lanes, T with) {
  const std::int64_t end = (columns + lanes - 1) / lanes * lanes;
  for (std::int64_t j = columns; j < end; ++j) s[j] = with;
  return end;
}

/// Partial sums of 64 bytes, whatever the width of the machine's vectors is: the same bits.
template <class T>
inline constexpr std::int64_t kParts = 64 / sizeof(T);

template <class T>
T sum_of_parts(T* part) {
  for (std::int64_t half = kParts<T> / 2; half > 0; half /= 2)
    for (std::int64_t k = 0; k < half; ++k) part[k] += part[k + half];
  return part[0];
}

template <class T>
void weigh(std::int64_t rows, std::int64_t columns, T scale, T* s, T* most, T* sum, T* factor) {
  const hn::CappedTag<T, kParts<T>> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::CappedTag<T, kParts<T>>());
  constexpr std::int64_t kVectors = kParts<T> / kLanes;
  const auto factors = hn::Set(d, scale);
  for (std::int64_t i = 0; i < rows; ++i, s += kTileColumns) {
    const std::int64_t end = filled_up(s, columns, kParts<T>, std::copysign(kLowest<T>, -scale));
    auto greatest = hn::Set(d, kLowest<T>);
    for (std::int64_t j = 0; j < end; j += kLanes)
      greatest = hn::Max(greatest, hn::Mul(hn::LoadU(d, s + j), factors));
    const T before = most[i];
    const T now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, greatest)));
    // What is not finite takes nothing away: the sum shows it.
    const T from = std::isfinite(before) ? before : T(0);
    const T to = std::isfinite(now) ? now : T(0);
    const auto reference = hn::Set(d, to);
    hn::Vec<decltype(d)> all[kVectors];
    for (auto& vector : all) vector = hn::Zero(d);
    for (std::int64_t j = 0; j < end; j += kParts<T>) {
#pragma GCC unroll 16
      for (std::int64_t v = 0; v < kVectors; ++v) {
        // Rounded as for the greatest: the exact product may lie far above that of large scores.
        const auto x = hn::Mul(hn::LoadU(d, s + j + v * kLanes), factors);
        const auto p = power(d, hn::Sub(x, reference));
        hn::StoreU(p, d, s + j + v * kLanes);
        all[v] = hn::Add(all[v], p);
      }
    }
    HWY_ALIGN T parts[kParts<T>];
    for (std::int64_t v = 0; v < kVectors; ++v) hn::Store(all[v], d, parts + v * kLanes);
    factor[i] = before == kLowest<T> ? T(0) : before == now ? T(1) : std::exp(from - to);
    sum[i] = sum[i] * factor[i] + sum_of_parts(parts);
    most[i] = now;
  }
}

template <class T>
void weights(std::int64_t rows, std::int64_t columns, T scale, T* s, const T* logs, const T* rest) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, scale);
  for (std::int64_t i = 0; i < rows; ++i, s += kTileColumns) {
    const std::int64_t end = filled_up(s, columns, lanes, T(0));
    const auto less = hn::Set(d, logs[i]);
    const auto more = hn::Set(d, rest[i]);
    for (std::int64_t j = 0; j < end; j += lanes) {
      const auto x = hn::Sub(hn::Mul(hn::LoadU(d, s + j), factors), less);
      hn::StoreU(power(d, hn::Sub(x, more)), d, s + j);
    }
  }
}

template <class T>
void slope(const TileMask<T>& t, const T* p, const T* less, T* dp) {
  for (std::int64_t i = 0; i < t.rows; ++i, p += kTileColumns, dp += kTileColumns) {
    const std::uint8_t* mask = t.mask + (t.mask ? i * t.mask_row : 0);
    const std::int64_t seen =
        t.banded ? std::clamp<std::int64_t>(t.seen + i, 0, t.columns) : t.columns;
    const T row = less[i];
    for (std::int64_t j = 0; j < seen; ++j) dp[j] = p[j] * (dp[j] - row) * t.scale;
    if (t.mask)
      for (std::int64_t j = 0; j < seen; ++j) dp[j] = mask[j * t.mask_column] != 0 ? dp[j] : T(0);
    for (std::int64_t j = seen; j < t.columns; ++j) dp[j] = T(0);
  }
}

template <class T>
AttentionKernels<T> all_kernels() {
  return {score<T>, weigh<T>, weights<T>, slope<T>};
}

AttentionKernels<float> kernels_f32() { return all_kernels<float>(); }
AttentionKernels<double> kernels_f64() { return all_kernels<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace segfuse::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::engine {
namespace {
HWY_EXPORT(kernels_f32);
HWY_EXPORT(kernels_f64);
}  // namespace

template <>
AttentionKernels<float> attention_kernels<float>() {
  return HWY_DYNAMIC_DISPATCH(kernels_f32)();
}

template <>
AttentionKernels<double> attention_kernels<double>() {
  return HWY_DYNAMIC_DISPATCH(kernels_f64)();
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
