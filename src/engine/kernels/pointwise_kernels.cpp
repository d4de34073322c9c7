#include "engine/kernels/pointwise_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/half.h"
#include "ir/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/pointwise_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "engine/kernels/simd_targets.h"

#ifndef SEGFUSE_POINTWISE_TABLE
#define SEGFUSE_POINTWISE_TABLE
namespace segfuse::engine {
inline constexpr std::size_t kTypes = 7;
inline constexpr std::size_t kOps = 0
#define SEGFUSE_UNARY(...) +1
#define SEGFUSE_BINARY(...) +1
#define SEGFUSE_OP(...) +1
#include "ir/ops.def"
    ;
struct LoopTable {
  std::array<std::array<Loop, kTypes>, kOps> pointwise{};
  std::array<std::array<Loop, kTypes>, kTypes> cast{};
  std::array<Loop, kTypes> round{};
};
}  // namespace segfuse::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace segfuse::engine {
namespace HWY_NAMESPACE {

#include "engine/kernels/fast_math-inl.h"

__extension__ typedef __int128 Int128;

// Integer formulas are computed in a type that cannot overflow and cut back: they wrap.
template <class T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<std::int32_t> {
  using Type = std::int64_t;
};
template <>
struct Wide<std::int64_t> {
  using Type = Int128;
};

#define SEGFUSE_UNARY(name, rule, domain, formula, gradient) \
  struct Unary_##name {                                      \
    template <class T>                                       \
    static HWY_INLINE auto apply(T a) {                      \
      return formula;                                        \
    }                                                        \
  };
#define SEGFUSE_BINARY(name, rule, domain, formula, gradient_a, gradient_b) \
  struct Binary_##name {                                                    \
    template <class T>                                                      \
    static HWY_INLINE auto apply(T a, T b) {                                \
      return formula;                                                       \
    }                                                                       \
  };
#include "ir/ops.def"

/// The formula, or a vectorisable function for it in single precision.
template <class F, class T>
HWY_INLINE auto evaluate(T a) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_exp>) {
    return fast_exp(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_expm1>) {
    return fast_expm1(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_log>) {
    return fast_log(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_log1p>) {
    return fast_log1p(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_tanh>) {
    return fast_tanh(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_sigmoid>) {
    return fast_sigmoid(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_softplus>) {
    return fast_softplus(a);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<F, Unary_erf>) {
    return fast_erf(a);
  } else {
    return F::apply(a);
  }
}

template <class F, class T, class R>
void unary_loop(void* out, const LoopOperands& in, std::int64_t n) {
  using W = typename Wide<T>::Type;
  R* HWY_RESTRICT to = static_cast<R*>(out);
  const T* from = static_cast<const T*>(in.data[0]);
  if (in.stride[0] == 0) {
    std::fill_n(to, n, static_cast<R>(evaluate<F>(static_cast<W>(*from))));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<R>(evaluate<F>(static_cast<W>(from[i])));
}

template <class F, class T, class R>
void binary_loop(void* out, const LoopOperands& in, std::int64_t n) {
  using W = typename Wide<T>::Type;
  R* HWY_RESTRICT to = static_cast<R*>(out);
  const T* a = static_cast<const T*>(in.data[0]);
  const T* b = static_cast<const T*>(in.data[1]);
  auto one = [](T x, T y) {
    return static_cast<R>(F::apply(static_cast<W>(x), static_cast<W>(y)));
  };
  if (in.stride[0] != 0 && in.stride[1] != 0) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = one(a[i], b[i]);
  } else if (in.stride[0] != 0) {
    const T y = *b;
    for (std::int64_t i = 0; i < n; ++i) to[i] = one(a[i], y);
  } else if (in.stride[1] != 0) {
    const T x = *a;
    for (std::int64_t i = 0; i < n; ++i) to[i] = one(x, b[i]);
  } else {
    std::fill_n(to, n, one(*a, *b));
  }
}

template <class T>
void where_loop(void* out, const LoopOperands& in, std::int64_t n) {
  T* HWY_RESTRICT to = static_cast<T*>(out);
  const auto* condition = static_cast<const std::uint8_t*>(in.data[0]);
  const T* a = static_cast<const T*>(in.data[1]);
  const T* b = static_cast<const T*>(in.data[2]);
  const std::int64_t sc = in.stride[0];
  const std::int64_t sa = in.stride[1];
  const std::int64_t sb = in.stride[2];
  if (sc == 1 && sa == 1 && sb == 1) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i] ? a[i] : b[i];
  } else if (sc == 1 && sa == 1) {
    const T y = *b;
    for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i] ? a[i] : y;
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = condition[i * sc] ? a[i * sa] : b[i * sb];
  }
}

template <class T, class R>
HWY_INLINE R convert(T value) {
  if constexpr (std::is_floating_point_v<T> && std::is_integral_v<R>) {
    return saturate_cast<R>(static_cast<double>(value));
  } else {
    return static_cast<R>(value);
  }
}

template <class T, class R, bool to_bool>
void cast_elements(void* out, const LoopOperands& in, std::int64_t n) {
  R* HWY_RESTRICT to = static_cast<R*>(out);
  const T* from = static_cast<const T*>(in.data[0]);
  const std::int64_t stride = in.stride[0];
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = to_bool ? static_cast<R>(from[i] != T(0)) : convert<T, R>(from[i]);
    return;
  }
  std::fill_n(to, n, to_bool ? static_cast<R>(*from != T(0)) : convert<T, R>(*from));
}

HWY_INLINE float round_bfloat16(float value) {
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
  return value != value ? value : as_float(rounded);
}
HWY_INLINE float round_half(float value) { return half_to_float(float_to_half(value)); }

template <float (*round)(float)>
void round_elements(void* out, const LoopOperands& in, std::int64_t n) {
  float* to = static_cast<float*>(out);
  const float* from = static_cast<const float*>(in.data[0]);
  const std::int64_t stride = in.stride[0];
  for (std::int64_t i = 0; i < n; ++i) to[i] = round(from[i * stride]);
}

// --- random numbers

constexpr std::int64_t kPhiloxLanes = 32;

/// The numbers of kPhiloxLanes blocks from `block` on: base/rng.h, one block a lane.
HWY_INLINE void philox_lanes(std::uint64_t key, std::uint64_t block, std::uint64_t high,
                             float* HWY_RESTRICT to) {
  std::uint32_t c[4][kPhiloxLanes];
  for (std::int64_t i = 0; i < kPhiloxLanes; ++i) {
    const std::uint64_t low = block + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(low);
    c[1][i] = static_cast<std::uint32_t>(low >> 32);
    c[2][i] = static_cast<std::uint32_t>(high);
    c[3][i] = static_cast<std::uint32_t>(high >> 32);
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::int64_t i = 0; i < kPhiloxLanes; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[1][i] = static_cast<std::uint32_t>(p1);
      c[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (std::int64_t i = 0; i < kPhiloxLanes; ++i)
    for (std::int64_t word = 0; word < 4; ++word)
      to[4 * i + word] = static_cast<float>(static_cast<std::int32_t>(c[word][i] >> 8)) * 0x1p-24F;
}

void random_elements(const std::int64_t* seed, std::int64_t stream, std::int64_t begin,
                     std::int64_t n, float* to) {
  const auto key = static_cast<std::uint64_t>(seed[0]);
  const std::uint64_t high = ir::random_counter_high(seed[1], stream);
  std::int64_t i = begin;
  const std::int64_t end = begin + n;
  while (i < end) {
    if (i % 4 == 0 && end - i >= 4 * kPhiloxLanes) {
      philox_lanes(key, static_cast<std::uint64_t>(i / 4), high, to + (i - begin));
      i += 4 * kPhiloxLanes;
      continue;
    }
    const PhiloxBlock block = philox(key, static_cast<std::uint64_t>(i / 4), high);
    const std::int64_t last = std::min(end, i / 4 * 4 + 4);
    for (; i < last; ++i) to[i - begin] = uniform_from_bits(block[static_cast<std::size_t>(i % 4)]);
  }
}

// --- the table

constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

using Row = std::array<Loop, kTypes>;

template <class F, bool test>
void add_unary_floats(Row& row) {
  row[index_of(DType::kF32)] = unary_loop<F, float, std::conditional_t<test, std::uint8_t, float>>;
  row[index_of(DType::kF64)] =
      unary_loop<F, double, std::conditional_t<test, std::uint8_t, double>>;
}
template <class F, bool test>
void add_binary_floats(Row& row) {
  row[index_of(DType::kF32)] = binary_loop<F, float, std::conditional_t<test, std::uint8_t, float>>;
  row[index_of(DType::kF64)] =
      binary_loop<F, double, std::conditional_t<test, std::uint8_t, double>>;
}

template <class F, ir::DTypeRule rule>
void add_unary(Row& row) {
  using enum ir::DTypeRule;
  if constexpr (rule == kFloat || rule == kNumeric) add_unary_floats<F, false>(row);
  if constexpr (rule == kTest) add_unary_floats<F, true>(row);
  if constexpr (rule == kNumeric) {
    row[index_of(DType::kI32)] = unary_loop<F, std::int32_t, std::int32_t>;
    row[index_of(DType::kI64)] = unary_loop<F, std::int64_t, std::int64_t>;
  }
  if constexpr (rule == kLogical)
    row[index_of(DType::kBool)] = unary_loop<F, std::uint8_t, std::uint8_t>;
}

template <class F, ir::DTypeRule rule>
void add_binary(Row& row) {
  using enum ir::DTypeRule;
  constexpr bool kTests = rule == kCompare;
  if constexpr (rule == kFloat || rule == kNumeric) add_binary_floats<F, false>(row);
  if constexpr (kTests) add_binary_floats<F, true>(row);
  if constexpr (rule == kNumeric || kTests) {
    row[index_of(DType::kI32)] =
        binary_loop<F, std::int32_t, std::conditional_t<kTests, std::uint8_t, std::int32_t>>;
    row[index_of(DType::kI64)] =
        binary_loop<F, std::int64_t, std::conditional_t<kTests, std::uint8_t, std::int64_t>>;
  }
  if constexpr (rule == kLogical || kTests)
    row[index_of(DType::kBool)] = binary_loop<F, std::uint8_t, std::uint8_t>;
}

template <class T>
void add_casts(Row& row) {
  row[index_of(DType::kBool)] = cast_elements<T, std::uint8_t, true>;
  row[index_of(DType::kI32)] = cast_elements<T, std::int32_t, false>;
  row[index_of(DType::kI64)] = cast_elements<T, std::int64_t, false>;
  row[index_of(DType::kF32)] = cast_elements<T, float, false>;
  row[index_of(DType::kF64)] = cast_elements<T, double, false>;
}

LoopTable make_table() {
  LoopTable table;
#define SEGFUSE_UNARY(name, rule, domain, formula, gradient) \
  add_unary<Unary_##name, ir::DTypeRule::rule>(              \
      table.pointwise[static_cast<std::size_t>(ir::Op::name)]);
#define SEGFUSE_BINARY(name, rule, domain, formula, gradient_a, gradient_b) \
  add_binary<Binary_##name, ir::DTypeRule::rule>(                           \
      table.pointwise[static_cast<std::size_t>(ir::Op::name)]);
#include "ir/ops.def"
  Row& where = table.pointwise[static_cast<std::size_t>(ir::Op::where)];
  where[index_of(DType::kBool)] = where_loop<std::uint8_t>;
  where[index_of(DType::kI32)] = where_loop<std::int32_t>;
  where[index_of(DType::kI64)] = where_loop<std::int64_t>;
  where[index_of(DType::kF32)] = where_loop<float>;
  where[index_of(DType::kF64)] = where_loop<double>;
  add_casts<std::uint8_t>(table.cast[index_of(DType::kBool)]);
  add_casts<std::int32_t>(table.cast[index_of(DType::kI32)]);
  add_casts<std::int64_t>(table.cast[index_of(DType::kI64)]);
  add_casts<float>(table.cast[index_of(DType::kF32)]);
  add_casts<double>(table.cast[index_of(DType::kF64)]);
  table.round[index_of(DType::kF16)] = round_elements<round_half>;
  table.round[index_of(DType::kBF16)] = round_elements<round_bfloat16>;
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace segfuse::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::engine {
namespace {

HWY_EXPORT(make_table);
HWY_EXPORT(random_elements);

const LoopTable& loop_table() {
  static const LoopTable table = HWY_DYNAMIC_DISPATCH(make_table)();
  return table;
}

Loop checked(Loop loop, std::string_view what, DType dtype) {
  SEGFUSE_CHECK(loop != nullptr, "no loop for {} on {}", what, name_of(dtype));
  return loop;
}

}  // namespace

Loop pointwise_loop(ir::Op op, DType operand_type) {
  const Loop loop =
      loop_table().pointwise[static_cast<std::size_t>(op)][static_cast<std::size_t>(operand_type)];
  return checked(loop, ir::info(op).name, operand_type);
}

Loop cast_loop(DType from, DType to) {
  const Loop loop = loop_table().cast[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  return checked(loop, "cast", from);
}

void random_uniform(const std::int64_t* seed, std::int64_t stream, std::int64_t begin,
                    std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(random_elements)(seed, stream, begin, n, to);
}

Loop round_loop(DType half) {
  return checked(loop_table().round[static_cast<std::size_t>(half)], "rounding", half);
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
