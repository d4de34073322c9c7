// Loops over the formulas of ops.def, for any type. Included once per SIMD target (and once for the
// types that are not worth one) inside a namespace; no include guard.

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

#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  struct Unary_##name {                                                                        \
    template <class T>                                                                         \
    static HWY_INLINE auto apply(T a) {                                                        \
      return formula;                                                                          \
    }                                                                                          \
  };
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  struct Binary_##name {                                                                          \
    template <class T>                                                                            \
    static HWY_INLINE auto apply(T a, T b) {                                                      \
      return formula;                                                                             \
    }                                                                                             \
  };
#include "segfuse/ops.def"

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

/// To what is rounded to a half afterwards.
template <class T>
void narrow_elements(void* out, const LoopOperands& in, std::int64_t n) {
  float* to = static_cast<float*>(out);
  const T* from = static_cast<const T*>(in.data[0]);
  for (std::int64_t i = 0; i < n; ++i)
    to[i] = narrowed(static_cast<double>(from[i * in.stride[0]]));
}

// --- the table

constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

template <class T>
constexpr bool admits(ir::DTypeRule rule) {
  switch (rule) {
    case ir::DTypeRule::kFloat:
    case ir::DTypeRule::kTest: return std::is_floating_point_v<T>;
    case ir::DTypeRule::kNumeric: return !std::is_same_v<T, std::uint8_t>;
    case ir::DTypeRule::kLogical: return std::is_same_v<T, std::uint8_t>;
    case ir::DTypeRule::kInteger: return std::is_integral_v<T> && !std::is_same_v<T, std::uint8_t>;
    default: return true;
  }
}

/// What a rule gives for operands of type T.
template <class T, ir::DTypeRule rule>
using Result = std::conditional_t<rule == ir::DTypeRule::kTest || rule == ir::DTypeRule::kCompare,
                                  std::uint8_t, T>;

template <class T, class F, ir::DTypeRule rule>
void add_unary(LoopTable& table, ir::Op op) {
  if constexpr (admits<T>(rule))
    table.pointwise[static_cast<std::size_t>(op)][index_of(DTypeOf<T>::value)] =
        unary_loop<F, T, Result<T, rule>>;
}

template <class T, class F, ir::DTypeRule rule>
void add_binary(LoopTable& table, ir::Op op) {
  if constexpr (admits<T>(rule))
    table.pointwise[static_cast<std::size_t>(op)][index_of(DTypeOf<T>::value)] =
        binary_loop<F, T, Result<T, rule>>;
}

/// All loops whose operands are T.
template <class T>
void add_loops(LoopTable& table) {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  add_unary<T, Unary_##name, ir::DTypeRule::rule>(table, ir::Op::name);
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  add_binary<T, Binary_##name, ir::DTypeRule::rule>(table, ir::Op::name);
#include "segfuse/ops.def"
  constexpr std::size_t kType = index_of(DTypeOf<T>::value);
  table.pointwise[static_cast<std::size_t>(ir::Op::where)][kType] = where_loop<T>;
  auto& casts = table.cast[kType];
  casts[index_of(DType::kBool)] = cast_elements<T, std::uint8_t, true>;
  casts[index_of(DType::kI32)] = cast_elements<T, std::int32_t, false>;
  casts[index_of(DType::kI64)] = cast_elements<T, std::int64_t, false>;
  casts[index_of(DType::kF32)] = cast_elements<T, float, false>;
  casts[index_of(DType::kF64)] = cast_elements<T, double, false>;
  constexpr bool exact = std::is_same_v<T, float> || std::is_same_v<T, std::uint8_t>;
  const Loop halves = exact ? cast_elements<T, float, false> : narrow_elements<T>;
  casts[index_of(DType::kF16)] = casts[index_of(DType::kBF16)] = halves;
}
