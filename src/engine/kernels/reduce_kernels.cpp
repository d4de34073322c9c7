#include "engine/kernels/reduce_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/reduce_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "engine/kernels/simd_targets.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::engine {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#include "engine/kernels/fast_math-inl.h"

template <class T>
inline constexpr bool kReal = std::is_floating_point_v<T>;

// Integer sums and products wrap: they are formed unsigned.
template <class T>
using Arithmetic = typename std::conditional_t<
    kReal<T>, std::type_identity<T>,
    std::make_unsigned<std::conditional_t<kReal<T>, std::int64_t, T>>>::type;

struct Add {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
  template <class T>
  static T scalar(T a, T b) {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) + static_cast<Arithmetic<T>>(b));
  }
};
struct Multiply {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
  template <class T>
  static T scalar(T a, T b) {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) * static_cast<Arithmetic<T>>(b));
  }
};
// NaN wins.
struct Largest {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Ge(a, b), hn::IsNaN(a)), a, b);
  }
  template <class T>
  static T scalar(T a, T b) {
    return a >= b || a != a ? a : b;
  }
};
struct Smallest {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Le(a, b), hn::IsNaN(a)), a, b);
  }
  template <class T>
  static T scalar(T a, T b) {
    return a <= b || a != a ? a : b;
  }
};

/// Four rows of 64 bytes of partial results, then a tree: at most 512 elements. The number of
/// partial results does not depend on the width of the machine's vectors, so the bits do not
/// either.
template <class T, class F>
HWY_INLINE T reduce_block(const T* x, std::int64_t n, T identity, F f) {
  constexpr std::int64_t kRow = 64 / sizeof(T);
  constexpr std::int64_t kRows = 4;
  const hn::CappedTag<T, kRow> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::CappedTag<T, kRow>());
  constexpr std::int64_t kVectors = kRow / kLanes;  // of a row
  hn::Vec<decltype(d)> part[kRows][kVectors];
  for (auto& row : part)
    for (auto& vector : row) vector = hn::Set(d, identity);
  std::int64_t i = 0;
  for (; i + kRows * kRow <= n; i += kRows * kRow) {
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (std::int64_t v = 0; v < kVectors; ++v)
        part[r][v] = f(part[r][v], hn::LoadU(d, x + i + r * kRow + v * kLanes));
  }
  for (; i + kRow <= n; i += kRow)
#pragma GCC unroll 16
    for (std::int64_t v = 0; v < kVectors; ++v)
      part[0][v] = f(part[0][v], hn::LoadU(d, x + i + v * kLanes));
  HWY_ALIGN T all[kRow];
  for (std::int64_t v = 0; v < kVectors; ++v)
    hn::Store(f(f(part[0][v], part[1][v]), f(part[2][v], part[3][v])), d, all + v * kLanes);
  for (std::int64_t half = kRow / 2; half > 0; half /= 2)
    for (std::int64_t k = 0; k < half; ++k) all[k] = F::scalar(all[k], all[k + half]);
  T result = all[0];
  for (; i < n; ++i) result = F::scalar(result, x[i]);
  return result;
}

template <class T, class F>
T reduce_run(const T* x, std::int64_t n, T identity, F f) {
  if constexpr (!kReal<T>) {
    T result = identity;
    for (std::int64_t i = 0; i < n; ++i) result = F::scalar(result, x[i]);
    return result;
  } else {
    constexpr std::int64_t kBlock = 512;
    if (n <= kBlock) return reduce_block(x, n, identity, f);
    const std::int64_t half = (n / 2 + kBlock - 1) / kBlock * kBlock;
    return F::scalar(reduce_run(x, half, identity, f), reduce_run(x + half, n - half, identity, f));
  }
}

template <class T>
using State = ReduceState<T>;

template <class T, class F>
struct Plain {
  static T identity();
  static State<T> run(const T* x, std::int64_t n, std::int64_t) {
    return {static_cast<typename State<T>::Number>(reduce_run(x, n, identity(), F{})), 0, n};
  }
  static State<T> combine(const State<T>& left, const State<T>& right) {
    return {F::scalar(left.a, right.a), 0, left.n + right.n};
  }
  static void columns(T* state, const T* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) state[i] = F::scalar(state[i], x[i]);
  }
};
template <class T, class F>
T Plain<T, F>::identity() {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<F, Add>) return T(0);
  if constexpr (std::is_same_v<F, Multiply>) return T(1);
  if constexpr (std::is_same_v<F, Largest>) return kReal<T> ? -Limits::infinity() : Limits::min();
  return kReal<T> ? Limits::infinity() : Limits::max();
}

template <class T>
struct First {  // argmax
  static bool better(typename State<T>::Number a, typename State<T>::Number b) {
    return a > b || (a != a && b == b);
  }
  static State<T> run(const T* x, std::int64_t n, std::int64_t first) {
    State<T> state{0, 0, -1};
    for (std::int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<typename State<T>::Number>(x[i]);
      if (state.n < 0 || better(value, state.a)) state = {value, 0, first + i};
    }
    return state;
  }
  static State<T> combine(const State<T>& left, const State<T>& right) {
    if (left.n < 0) return right;
    if (right.n < 0) return left;
    return better(right.a, left.a) ? right : left;
  }
};

template <class T>
struct Moments {  // welford
  static State<T> run(const T* x, std::int64_t n, std::int64_t) {
    if (n == 0) return {};
    const T center = reduce_run(x, n, T(0), Add{}) / static_cast<T>(n);
    double sum = 0;  // of what the rounded centre left over
    double squares = 0;
    constexpr std::int64_t kBlock = 256;
    HWY_ALIGN T d[kBlock];
    HWY_ALIGN T d2[kBlock];
    for (std::int64_t first = 0; first < n; first += kBlock) {
      const std::int64_t count = std::min(kBlock, n - first);
      for (std::int64_t i = 0; i < count; ++i) {
        d[i] = x[first + i] - center;
        d2[i] = d[i] * d[i];
      }
      sum += static_cast<double>(reduce_block(d, count, T(0), Add{}));
      squares += static_cast<double>(reduce_block(d2, count, T(0), Add{}));
    }
    const auto size = static_cast<double>(n);
    return {static_cast<double>(center) + sum / size, std::max(squares - sum * sum / size, 0.0), n};
  }
  static State<T> combine(const State<T>& left, const State<T>& right) {
    if (left.n == 0) return right;
    if (right.n == 0) return left;
    const auto nl = static_cast<double>(left.n);
    const auto nr = static_cast<double>(right.n);
    const double delta = right.a - left.a;
    return {left.a + delta * (nr / (nl + nr)),
            left.b + right.b + delta * delta * (nl * nr / (nl + nr)), left.n + right.n};
  }
};

inline float exponential(float x) { return fast_exp(x); }
inline double exponential(double x) { return std::exp(x); }

template <class T>
struct LogSum {
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  static State<T> run(const T* x, std::int64_t n, std::int64_t) {
    const T largest = reduce_run(x, n, -std::numeric_limits<T>::infinity(), Largest{});
    if (!(largest - largest == T(0))) return {static_cast<double>(largest), 0, n};
    double sum = 0;
    constexpr std::int64_t kBlock = 256;
    HWY_ALIGN T e[kBlock];
    for (std::int64_t first = 0; first < n; first += kBlock) {
      const std::int64_t count = std::min(kBlock, n - first);
      for (std::int64_t i = 0; i < count; ++i) e[i] = exponential(x[first + i] - largest);
      sum += static_cast<double>(reduce_block(e, count, T(0), Add{}));
    }
    return {static_cast<double>(largest), sum, n};
  }
  static State<T> combine(const State<T>& left, const State<T>& right) {
    const double largest = Largest::scalar(left.a, right.a);
    if (!std::isfinite(largest)) return {largest, 0, left.n + right.n};
    return {largest, left.b * std::exp(left.a - largest) + right.b * std::exp(right.a - largest),
            left.n + right.n};
  }
};

template <class T, class F>
ReduceLoops<T> plain_loops() {
  using P = Plain<T, F>;
  return {P::run,
          P::combine,
          {static_cast<typename State<T>::Number>(P::identity()), 0, 0},
          P::columns};
}

template <class T>
ReduceLoops<T> make_loops(ir::Op op) {
  switch (ir::as<ir::ReductionOp>(op)) {
    case ir::ReductionOp::sum: return plain_loops<T, Add>();
    case ir::ReductionOp::prod: return plain_loops<T, Multiply>();
    case ir::ReductionOp::max: return plain_loops<T, Largest>();
    case ir::ReductionOp::min: return plain_loops<T, Smallest>();
    case ir::ReductionOp::argmax: return {First<T>::run, First<T>::combine, {0, 0, -1}, nullptr};
    case ir::ReductionOp::welford:
      if constexpr (kReal<T>) return {Moments<T>::run, Moments<T>::combine, {}, nullptr};
      break;
    case ir::ReductionOp::logsumexp:
      if constexpr (kReal<T>)
        return {LogSum<T>::run, LogSum<T>::combine, {LogSum<T>::kNothing, 0, 0}, nullptr};
      break;
  }
  throw InternalError(fmt::format("no reduction '{}' of this type", ir::info(op).name));
}

ReduceLoops<float> loops_f32(ir::Op op) { return make_loops<float>(op); }
ReduceLoops<double> loops_f64(ir::Op op) { return make_loops<double>(op); }
ReduceLoops<std::int32_t> loops_i32(ir::Op op) { return make_loops<std::int32_t>(op); }
ReduceLoops<std::int64_t> loops_i64(ir::Op op) { return make_loops<std::int64_t>(op); }

}  // namespace HWY_NAMESPACE
}  // namespace segfuse::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::engine {

HWY_EXPORT(loops_f32);
HWY_EXPORT(loops_f64);
HWY_EXPORT(loops_i32);
HWY_EXPORT(loops_i64);

template <>
ReduceLoops<float> reduce_loops<float>(ir::Op op) {
  return HWY_DYNAMIC_DISPATCH(loops_f32)(op);
}
template <>
ReduceLoops<double> reduce_loops<double>(ir::Op op) {
  return HWY_DYNAMIC_DISPATCH(loops_f64)(op);
}
template <>
ReduceLoops<std::int32_t> reduce_loops<std::int32_t>(ir::Op op) {
  return HWY_DYNAMIC_DISPATCH(loops_i32)(op);
}
template <>
ReduceLoops<std::int64_t> reduce_loops<std::int64_t>(ir::Op op) {
  return HWY_DYNAMIC_DISPATCH(loops_i64)(op);
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
