#pragma once
// What kernels need besides elementwise operations.
//: SF_EACH
// count vectors beside each other: u counts them.
#if defined(__clang__)
#define SF_EACH(count) _Pragma("clang loop unroll(full)") for (int u = 0; u < (count); ++u)
#elif defined(__GNUC__)
#define SF_EACH(count) _Pragma("GCC unroll 8") for (int u = 0; u < (count); ++u)
#else
#define SF_EACH(count) for (int u = 0; u < (count); ++u)
#endif

//: sf_report
// Says that check `what` failed; of several the greatest stays, in whatever order threads come.
SF_INLINE void sf_report(int32_t* status, int32_t what) {
#if defined(__GNUC__)
  int32_t seen = __atomic_load_n(status, __ATOMIC_RELAXED);
  while (seen < what &&
         !__atomic_compare_exchange_n(status, &seen, what, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#else
  if (*status < what) *status = what;
#endif
}

//: sf_inside
// 0 <= index < bound.
SF_INLINE int sf_inside(int64_t index, int64_t bound) { return index >= 0 && index < bound; }

//: sf_min
SF_INLINE int64_t sf_min(int64_t a, int64_t b) { return a < b ? a : b; }

//: sf_within
// 0 <= index < bound.
SF_INLINE sf_bool sf_within(sf_i64 index, int64_t bound) {
  return SF_TEST64(index >= 0) & SF_TEST64(index < bound);
}

//: sf_sum_step sf_sum
// A sum of f32 that keeps what rounding would lose: it is one of f64 until it is taken.
SF_INLINE sf_f64 sf_sum_step(sf_f64 sum, sf_f32 a) { return sum + SF_CONVERT(a, sf_f64); }
SF_INLINE sf_f32 sf_sum(sf_f64 sum) { return SF_CONVERT(sum, sf_f32); }

//: sf_join_{sum,prod,max,min}_{f32,f64,i32,i64}
// One number of all lanes: halves are joined with halves.
#define SF_JOIN(name, type, element, formula)             \
  SF_INLINE element sf_join_##name(type v) {              \
    element e[SF_LANES];                                  \
    __builtin_memcpy(e, &v, sizeof e);                    \
    for (int width = SF_LANES / 2; width > 0; width /= 2) \
      for (int i = 0; i < width; ++i) {                   \
        const element a = e[i], b = e[i + width];         \
        e[i] = formula;                                   \
      }                                                   \
    return e[0];                                          \
  }
#define SF_JOIN_ORDER(name, type, element)                     \
  SF_JOIN(max_##name, type, element, a >= b || a != a ? a : b) \
  SF_JOIN(min_##name, type, element, a <= b || a != a ? a : b)
SF_JOIN(sum_f32, sf_f32, float, a + b)
SF_JOIN(sum_f64, sf_f64, double, a + b)
SF_JOIN(sum_i32, sf_i32, int32_t, (int32_t)((uint32_t)a + (uint32_t)b))
SF_JOIN(sum_i64, sf_i64, int64_t, (int64_t)((uint64_t)a + (uint64_t)b))
SF_JOIN(prod_f32, sf_f32, float, a* b)
SF_JOIN(prod_f64, sf_f64, double, a* b)
SF_JOIN(prod_i32, sf_i32, int32_t, (int32_t)((uint32_t)a*(uint32_t)b))
SF_JOIN(prod_i64, sf_i64, int64_t, (int64_t)((uint64_t)a*(uint64_t)b))
SF_JOIN_ORDER(f32, sf_f32, float)
SF_JOIN_ORDER(f64, sf_f64, double)
SF_JOIN_ORDER(i32, sf_i32, int32_t)
SF_JOIN_ORDER(i64, sf_i64, int64_t)

//: sf_argmax_step_{f32,f64,i32,i64} sf_argmax_join_{f32,f64,i32,i64}
//+ sf_{gt,ne,eq,select}_f32
// The greatest element and its position; NaN is greatest, and of equal ones the first wins. Before
// any element the position is the greatest number.
#define SF_ARGMAX(name, type, element)                                                  \
  SF_INLINE void sf_argmax_step_##name(type* best, sf_i64* at, type a, sf_i64 position, \
                                       sf_bool where) {                                 \
    const sf_bool nan = sf_ne_##name(a, a), best_nan = sf_ne_##name(*best, *best);      \
    const sf_bool better = sf_gt_##name(a, *best) | (nan & ~best_nan);                  \
    const sf_bool equal = sf_eq_##name(a, *best) | (nan & best_nan);                    \
    const sf_bool take = where & (better | (equal & SF_TEST64(position < *at)));        \
    *best = sf_select_##name(take, a, *best);                                           \
    *at = sf_select_i64(take, position, *at);                                           \
  }                                                                                     \
  SF_INLINE element sf_argmax_join_##name(type best, sf_i64 at, int64_t* position) {    \
    element b[SF_LANES];                                                                \
    int64_t p[SF_LANES];                                                                \
    int first = 0;                                                                      \
    __builtin_memcpy(b, &best, sizeof b);                                               \
    __builtin_memcpy(p, &at, sizeof p);                                                 \
    for (int i = 1; i < SF_LANES; ++i) {                                                \
      const int better = b[i] > b[first] || (b[i] != b[i] && b[first] == b[first]);     \
      const int equal = b[i] == b[first] || (b[i] != b[i] && b[first] != b[first]);     \
      if (better || (equal && p[i] < p[first])) first = i;                              \
    }                                                                                   \
    *position = p[first];                                                               \
    return b[first];                                                                    \
  }
SF_ARGMAX(f32, sf_f32, float)
SF_ARGMAX(f64, sf_f64, double)
SF_ARGMAX(i32, sf_i32, int32_t)
SF_ARGMAX(i64, sf_i64, int64_t)
