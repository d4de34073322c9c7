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

/// Vectors of a row of c, and rows of c, that are held in registers at a time.
constexpr int kWide = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
constexpr int kHigh = 6;

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

// --- products

/// The first lanes of a vector, 0 behind them; no memory behind them is touched.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const hn::TFromD<D>* from, std::size_t count) {
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)] = {};
  std::copy_n(from, count, lanes);
  return hn::LoadU(d, lanes);
#endif
}
template <class D>
HWY_INLINE void store_first(D d, hn::Vec<D> x, hn::TFromD<D>* to, std::size_t count) {
  hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  hn::StoreU(x, d, lanes);
  std::copy_n(lanes, count, to);
}

/// kRows rows and kVectors vectors of c; of the last vector only `tail` lanes if it is not 0.
template <int kRows, int kVectors, class T>
HWY_INLINE void multiply_block(const TileProduct<T>& p, std::int64_t i, std::int64_t j,
                               std::size_t tail) {
  const hn::ScalableTag<T> d;
  using Vec = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto load = [&](const T* from) HWY_ATTR {
    return tail != 0 ? load_first(d, from, tail) : hn::LoadU(d, from);
  };
  T* c = p.c + i * p.c_row + j;
  const T* a = p.a + i * p.a_row;
  const T* b = p.b + j;
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = p.add ? load(c + r * p.c_row + v * lanes) : hn::Zero(d);
  for (std::int64_t k = 0; k < p.k; ++k) {
    Vec columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = load(b + k * p.b_row + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(d, a[r * p.a_row + k * p.a_column]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      T* to = c + r * p.c_row + v * lanes;
      if (tail != 0) {
        store_first(d, sums[r][v], to, tail);
      } else {
        hn::StoreU(sums[r][v], d, to);
      }
    }
}

template <int kVectors, class T>
HWY_INLINE void multiply_columns(const TileProduct<T>& p, std::int64_t j, std::size_t tail) {
  std::int64_t i = 0;
  for (; i + kHigh <= p.m; i += kHigh) multiply_block<kHigh, kVectors>(p, i, j, tail);
  for (; i + 2 <= p.m; i += 2) multiply_block<2, kVectors>(p, i, j, tail);
  for (; i < p.m; ++i) multiply_block<1, kVectors>(p, i, j, tail);
}

template <class T>
void multiply(const TileProduct<T>& p) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (std::int64_t left = p.n / lanes; left > 0; left = (p.n - j) / lanes) {
    // Of few vectors in halves: one alone has too few sums to hide the latency of an addition.
    const std::int64_t now =
        left > kWide && left < 2 * kWide ? (left + 1) / 2 : std::min<std::int64_t>(left, kWide);
    if (now == 1) multiply_columns<1>(p, j, 0);
    if (now == 2) multiply_columns<2>(p, j, 0);
    if (kWide > 2 && now == 3) multiply_columns<std::min(3, kWide)>(p, j, 0);
    if (kWide > 2 && now == 4) multiply_columns<kWide>(p, j, 0);
    j += now * lanes;
  }
  if (j < p.n) multiply_columns<1>(p, j, static_cast<std::size_t>(p.n - j));
}

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

template <class T>
void weigh(std::int64_t rows, std::int64_t columns, T scale, T* s, T* most, T* sum, T* factor) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, scale);
  for (std::int64_t i = 0; i < rows; ++i, s += kTileColumns) {
    const std::int64_t end = filled_up(s, columns, lanes, std::copysign(kLowest<T>, -scale));
    auto greatest = hn::Set(d, kLowest<T>);
    for (std::int64_t j = 0; j < end; j += lanes)
      greatest = hn::Max(greatest, hn::Mul(hn::LoadU(d, s + j), factors));
    const T before = most[i];
    const T now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, greatest)));
    // What is not finite takes nothing away: the sum shows it.
    const T from = std::isfinite(before) ? before : T(0);
    const T to = std::isfinite(now) ? now : T(0);
    const auto reference = hn::Set(d, to);
    auto all = hn::Zero(d);
    for (std::int64_t j = 0; j < end; j += lanes) {
      // Rounded as for the greatest: the exact product may lie far above that of large scores.
      const auto x = hn::Mul(hn::LoadU(d, s + j), factors);
      const auto p = power(d, hn::Sub(x, reference));
      hn::StoreU(p, d, s + j);
      all = hn::Add(all, p);
    }
    factor[i] = before == kLowest<T> ? T(0) : before == now ? T(1) : std::exp(from - to);
    sum[i] = sum[i] * factor[i] + hn::GetLane(hn::SumOfLanes(d, all));
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
void transpose(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_row, T* to,
               std::int64_t to_row) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t i0 = 0; i0 < rows; i0 += kBlock)
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t i = i0; i < std::min(rows, i0 + kBlock); ++i)
        to[j * to_row + i] = from[i * from_row + j];
}

template <class T>
AttentionKernels<T> all_kernels() {
  return {multiply<T>, score<T>, weigh<T>, weights<T>, slope<T>, transpose<T>};
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
const AttentionKernels<float>& attention_kernels<float>() {
  static const AttentionKernels<float> kernels = HWY_DYNAMIC_DISPATCH(kernels_f32)();
  return kernels;
}

template <>
const AttentionKernels<double>& attention_kernels<double>() {
  static const AttentionKernels<double> kernels = HWY_DYNAMIC_DISPATCH(kernels_f64)();
  return kernels;
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
