#include "engine/kernels/product_kernels.h"

#include <algorithm>

#include "engine/exec/growing_memory.h"
#include "engine/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/product_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::engine {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows of c, and vectors of a row of c, that are held in registers at a time.
constexpr int kHigh = 6;
constexpr int kWide = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 4 : 2;  // of 32, and of 16
/// From so many bytes between its rows on, a block of b that many rows of a share is packed: rows
/// that are so far apart compete for few places of a cache, and each needs a page of its own.
constexpr std::int64_t kFarApart = 2048;
constexpr std::int64_t kSharing = 48;

/// A vector, or its first `count` lanes and 0 behind them: no memory behind them is touched.
template <bool kWhole, class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from, std::size_t count) {
  if constexpr (kWhole) return hn::LoadU(d, from);
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)] = {};
  std::copy_n(from, count, lanes);
  return hn::LoadU(d, lanes);
#endif
}

template <bool kWhole, class D>
HWY_INLINE void store(D d, hn::Vec<D> x, hn::TFromD<D>* to, std::size_t count) {
  if constexpr (kWhole) return hn::StoreU(x, d, to);
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(x, hn::FirstN(d, count), d, to);
#else
  hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  hn::StoreU(x, d, lanes);
  std::copy_n(lanes, count, to);
#endif
}

/// kRows rows and kVectors vectors of c; of the last vector only `tail` lanes if not kWhole.
template <int kRows, int kVectors, bool kWhole, class T>
HWY_INLINE void multiply_registers(const ProductBlock<T>& p, std::int64_t i, std::size_t tail) {
  const hn::ScalableTag<T> d;
  using Vec = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* a = p.a + i * p.a_row;
  const T* b = p.b;
  const std::int64_t a_row = p.a_row;
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  for (std::int64_t k = 0; k < p.k; ++k, a += p.a_column, b += p.b_row) {
    Vec row[kVectors];
    for (int v = 0; v + 1 < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    row[kVectors - 1] = load<kWhole>(d, b + (kVectors - 1) * lanes, tail);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(d, a[r * a_row]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, row[v], sums[r][v]);
    }
  }
  const auto put = [&]<bool kAll>(T* to, Vec sum) HWY_ATTR {
    store<kAll>(d, p.add ? hn::Add(load<kAll>(d, to, tail), sum) : sum, to, tail);
  };
  for (int r = 0; r < kRows; ++r) {
    T* c = p.c + (i + r) * p.c_row;
    for (int v = 0; v + 1 < kVectors; ++v) put.template operator()<true>(c + v * lanes, sums[r][v]);
    put.template operator()<kWhole>(c + (kVectors - 1) * lanes, sums[r][kVectors - 1]);
  }
}

/// All rows of kVectors vectors of c.
template <int kVectors, bool kWhole, class T>
HWY_NOINLINE void multiply_columns(const ProductBlock<T>& p, std::size_t tail) {
  std::int64_t i = 0;
  for (; i + kHigh <= p.m; i += kHigh) multiply_registers<kHigh, kVectors, kWhole>(p, i, tail);
  if (i + 4 <= p.m) multiply_registers<4, kVectors, kWhole>(p, i, tail), i += 4;
  if (i + 2 <= p.m) multiply_registers<2, kVectors, kWhole>(p, i, tail), i += 2;
  if (i < p.m) multiply_registers<1, kVectors, kWhole>(p, i, tail);
}

template <int kVectors, class T>
HWY_INLINE void multiply_columns(const ProductBlock<T>& p, std::size_t tail) {
  tail == 0 ? multiply_columns<kVectors, true>(p, tail)
            : multiply_columns<kVectors, false>(p, tail);
}

#if HWY_TARGET == HWY_SCALAR
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void transpose_square(D, const T* from, std::int64_t, T* to, std::int64_t) {
  *to = *from;
}
#else
/// to[j][i] = from[i][j], of as many rows and columns as a vector has lanes.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void transpose_square(D d, const T* from, std::int64_t from_row, T* to,
                                 std::int64_t to_row) {
  using Vec = hn::Vec<D>;
  constexpr int kBlock = 16 / sizeof(T);  // lanes of 128 bits
  constexpr int kBlocks = HWY_MAX_BYTES / 16;
  constexpr int kLanes = kBlock * kBlocks;
  // Squares of kBlock within 128 bits: x[g * kBlock + q] then holds columns q, kBlock + q, ... of
  // the rows of group g.
  Vec x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = hn::LoadU(d, from + i * from_row);
  for (int g = 0; g < kLanes; g += kBlock) {
    Vec* y = x + g;
    if constexpr (kBlock == 4) {
      const Vec a = hn::InterleaveLower(d, y[0], y[2]);
      const Vec b = hn::InterleaveUpper(d, y[0], y[2]);
      const Vec e = hn::InterleaveLower(d, y[1], y[3]);
      const Vec f = hn::InterleaveUpper(d, y[1], y[3]);
      y[0] = hn::InterleaveLower(d, a, e);
      y[1] = hn::InterleaveUpper(d, a, e);
      y[2] = hn::InterleaveLower(d, b, f);
      y[3] = hn::InterleaveUpper(d, b, f);
    } else {
      const Vec a = hn::InterleaveLower(d, y[0], y[1]);
      y[1] = hn::InterleaveUpper(d, y[0], y[1]);
      y[0] = a;
    }
  }
  // Squares of 128 bits.
  for (int q = 0; q < kBlock; ++q) {
    const auto put = [&](int block, Vec column)
                         HWY_ATTR { hn::StoreU(column, d, to + (block * kBlock + q) * to_row); };
    const Vec* y = x + q;
    if constexpr (kBlocks == 1) {
      put(0, y[0]);
#if HWY_MAX_BYTES >= 32
    } else if constexpr (kBlocks == 2) {
      put(0, hn::ConcatLowerLower(d, y[kBlock], y[0]));
      put(1, hn::ConcatUpperUpper(d, y[kBlock], y[0]));
    } else {
      const Vec low[] = {hn::ConcatLowerLower(d, y[2 * kBlock], y[0]),
                         hn::ConcatLowerLower(d, y[3 * kBlock], y[kBlock])};
      const Vec high[] = {hn::ConcatUpperUpper(d, y[2 * kBlock], y[0]),
                          hn::ConcatUpperUpper(d, y[3 * kBlock], y[kBlock])};
      put(0, hn::OddEvenBlocks(hn::SwapAdjacentBlocks(low[1]), low[0]));
      put(1, hn::OddEvenBlocks(low[1], hn::SwapAdjacentBlocks(low[0])));
      put(2, hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high[1]), high[0]));
      put(3, hn::OddEvenBlocks(high[1], hn::SwapAdjacentBlocks(high[0])));
#endif
    }
  }
}
#endif

/// The columns of a block of b by rows, which are `stride` apart.
template <class T>
HWY_INLINE void pack(const ProductBlock<T>& p, T* to, std::int64_t stride) {
  if (p.b_column == 1) {
    for (std::int64_t k = 0; k < p.k; ++k) std::copy_n(p.b + k * p.b_row, p.n, to + k * stride);
    return;
  }
  const auto copy = [&](std::int64_t j, std::int64_t columns, std::int64_t k) HWY_ATTR {
    for (; k < p.k; ++k)
      for (std::int64_t c = j; c < j + columns; ++c)
        to[k * stride + c] = p.b[k * p.b_row + c * p.b_column];
  };
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; p.b_row == 1 && j + lanes <= p.n; j += lanes) {
    std::int64_t k = 0;
    for (; k + lanes <= p.k; k += lanes)
      transpose_square(d, p.b + k + j * p.b_column, p.b_column, to + k * stride + j, stride);
    copy(j, lanes, k);
  }
  copy(j, p.n - j, 0);
}

/// Rows of c whose sums are held in the first cache, while b is read row by row.
template <int kRows, class T>
HWY_NOINLINE void multiply_thin(const ProductBlock<T>& p) {
  const hn::ScalableTag<T> d;
  using Vec = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t kColumns = 1024;
  constexpr int kSteps = 4;
  auto& memory = of_thread<GrowingMemory, struct ProductScratch>();  // a stack may be small
  T* const all_sums = reinterpret_cast<T*>(memory.at_least(kRows * kColumns * sizeof(T)));
  T* sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = all_sums + r * kColumns;
  for (std::int64_t j0 = 0; j0 < p.n; j0 += kColumns) {
    const std::int64_t n = std::min(kColumns, p.n - j0);
    const std::int64_t whole = n / lanes * lanes;
    const auto tail = static_cast<std::size_t>(n - whole);
    for (int r = 0; r < kRows; ++r) std::fill_n(sums[r], n, T(0));
    const auto step = [&]<int kSteps_>(std::int64_t k) HWY_ATTR {
      const T* b = p.b + k * p.b_row + j0;
      Vec x[kRows][kSteps_];
      for (int r = 0; r < kRows; ++r)
        for (int s = 0; s < kSteps_; ++s)
          x[r][s] = hn::Set(d, p.a[r * p.a_row + (k + s) * p.a_column]);
      const auto columns = [&]<bool kWhole>(std::int64_t j) HWY_ATTR {
        Vec row[kSteps_];
        for (int s = 0; s < kSteps_; ++s) row[s] = load<kWhole>(d, b + s * p.b_row + j, tail);
        for (int r = 0; r < kRows; ++r) {
          Vec sum = load<kWhole>(d, sums[r] + j, tail);
          for (int s = 0; s < kSteps_; ++s) sum = hn::MulAdd(x[r][s], row[s], sum);
          store<kWhole>(d, sum, sums[r] + j, tail);
        }
      };
      for (std::int64_t j = 0; j < whole; j += lanes) columns.template operator()<true>(j);
      if (tail != 0) columns.template operator()<false>(whole);
    };
    std::int64_t k = 0;
    for (; k + kSteps <= p.k; k += kSteps) step.template operator()<kSteps>(k);
    for (; k < p.k; ++k) step.template operator()<1>(k);
    for (int r = 0; r < kRows; ++r) {
      T* c = p.c + r * p.c_row + j0;
      for (std::int64_t j = 0; j < n; ++j) c[j] = p.add ? c[j] + sums[r][j] : sums[r][j];
    }
  }
}

/// Columns of c that are at most kWide vectors.
template <class T>
HWY_INLINE void multiply_narrow(const ProductBlock<T>& p, std::int64_t lanes) {
  const auto tail = static_cast<std::size_t>(p.n % lanes);
  switch ((p.n + lanes - 1) / lanes) {
    case 1: return multiply_columns<1>(p, tail);
    case 2: return multiply_columns<2>(p, tail);
    case 3: return multiply_columns<std::min(3, kWide)>(p, tail);
    default: return multiply_columns<kWide>(p, tail);
  }
}

template <class T>
HWY_NOINLINE void multiply_packed(ProductBlock<T> p, std::int64_t lanes) {
  auto& memory = of_thread<GrowingMemory, struct ProductScratch>();  // a stack may be small
  T* const packed = reinterpret_cast<T*>(memory.at_least(kBlockInner * kWide * HWY_MAX_BYTES));
  const std::int64_t stride = (p.n + lanes - 1) / lanes * lanes;
  pack(p, packed, stride);
  p.b = packed;
  p.b_row = stride;
  p.b_column = 1;
  multiply_narrow(p, lanes);
}

/// Of at most kBlockInner inner elements.
template <class T>
void multiply_inner(const ProductBlock<T>& p) {
  if (p.b_column == 1 && p.m == 1) return multiply_thin<1>(p);
  if (p.b_column == 1 && p.m == 2) return multiply_thin<2>(p);
  if (p.b_column == 1 && p.m == 3) return multiply_thin<3>(p);
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const bool far = p.b_row * static_cast<std::int64_t>(sizeof(T)) >= kFarApart;
  const bool packs = p.b_column != 1 || (p.m >= kSharing && far);
  ProductBlock<T> part = p;
  for (std::int64_t j = 0; j < p.n; j += part.n) {
    const std::int64_t left = (p.n - j + lanes - 1) / lanes;
    // Of few vectors in halves: one alone has too few sums to hide the latency of an addition.
    const std::int64_t now =
        left > kWide && left < 2 * kWide ? (left + 1) / 2 : std::min<std::int64_t>(left, kWide);
    part.n = std::min(now * lanes, p.n - j);
    part.b = p.b + j * p.b_column;
    part.c = p.c + j;
    packs ? multiply_packed(part, lanes) : multiply_narrow(part, lanes);
  }
}

template <class T>
HWY_INLINE void multiply(const ProductBlock<T>& p) {
  for (std::int64_t i = 0; p.k == 0 && !p.add && i < p.m; ++i)
    std::fill_n(p.c + i * p.c_row, p.n, T(0));
  ProductBlock<T> part = p;
  for (std::int64_t k = 0; k < p.k; k += kBlockInner) {
    part.k = std::min(kBlockInner, p.k - k);
    part.a = p.a + k * p.a_column;
    part.b = p.b + k * p.b_row;
    part.add = p.add || k > 0;
    multiply_inner(part);
  }
}

void multiply_f32(const ProductBlock<float>& block) { multiply(block); }
void multiply_f64(const ProductBlock<double>& block) { multiply(block); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace segfuse::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::engine {
namespace {
HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);
}  // namespace

template <>
void multiply_block(const ProductBlock<float>& block) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(block);
}

template <>
void multiply_block(const ProductBlock<double>& block) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(block);
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
