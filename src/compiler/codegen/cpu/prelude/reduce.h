#pragma once
// What kernels need besides elementwise operations.

#include "compiler/codegen/cpu/prelude/arithmetic.h"
#include "compiler/codegen/cpu/prelude/types.h"

//: SF_EACH
// Statements for each of `count` vectors beside each other; u is the vector's number.
#define SF_AT(number, ...) \
  {                        \
    enum { u = number };   \
    __VA_ARGS__            \
  }
#define SF_EACH_2(...) SF_AT(0, __VA_ARGS__) SF_AT(1, __VA_ARGS__)
#define SF_EACH_3(...) SF_EACH_2(__VA_ARGS__) SF_AT(2, __VA_ARGS__)
#define SF_EACH_4(...) SF_EACH_3(__VA_ARGS__) SF_AT(3, __VA_ARGS__)
#define SF_EACH_5(...) SF_EACH_4(__VA_ARGS__) SF_AT(4, __VA_ARGS__)
#define SF_EACH_6(...) SF_EACH_5(__VA_ARGS__) SF_AT(5, __VA_ARGS__)
#define SF_EACH_7(...) SF_EACH_6(__VA_ARGS__) SF_AT(6, __VA_ARGS__)
#define SF_EACH_8(...) SF_EACH_7(__VA_ARGS__) SF_AT(7, __VA_ARGS__)
#define SF_EACH(count, ...) SF_EACH_##count(__VA_ARGS__)

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

//: sf_sum_step
// A sum of f32 that keeps what rounding would lose: it is one of f64 until it is taken.
SF_INLINE sf_f64 sf_sum_step(sf_f64 sum, sf_f32 a) { return sum + SF_CONVERT(a, sf_f64); }

//: sf_sum
SF_INLINE sf_f32 sf_sum(sf_f64 sum) { return SF_CONVERT(sum, sf_f32); }

//: SF_JOIN
// One number of all lanes: halves are joined with halves. What is not shown of a vector (-1) does
// not matter.
#if SF_LANES == 1
#define SF_JOIN(name, type, element, lanes, join) \
  SF_INLINE element sf_join_##name(type v) { return v; }
#else
#if defined(__clang__)
#define SF_LOW(type, v, ...) \
  __builtin_shufflevector(v, v, __VA_ARGS__, -1, -1, -1, -1, -1, -1, -1, -1)
#else
#define SF_LOW(type, v, ...) \
  __builtin_shuffle(v, (type){__VA_ARGS__, -1, -1, -1, -1, -1, -1, -1, -1})
#endif
#define SF_JOIN(name, type, element, lanes, join)                 \
  SF_INLINE element sf_join_##name(type v) {                      \
    v = join(v, SF_LOW(lanes, v, 8, 9, 10, 11, 12, 13, 14, 15));  \
    v = join(v, SF_LOW(lanes, v, 4, 5, 6, 7, -1, -1, -1, -1));    \
    v = join(v, SF_LOW(lanes, v, 2, 3, -1, -1, -1, -1, -1, -1));  \
    v = join(v, SF_LOW(lanes, v, 1, -1, -1, -1, -1, -1, -1, -1)); \
    return v[0];                                                  \
  }
#endif

//: sf_join_sum_f32
SF_JOIN(sum_f32, sf_f32, float, sf_i32, sf_add_f32)

//: sf_join_sum_f64
SF_JOIN(sum_f64, sf_f64, double, sf_i64, sf_add_f64)

//: sf_join_sum_i32
SF_JOIN(sum_i32, sf_i32, int32_t, sf_i32, sf_add_i32)

//: sf_join_sum_i64
SF_JOIN(sum_i64, sf_i64, int64_t, sf_i64, sf_add_i64)

//: sf_join_prod_f32
SF_JOIN(prod_f32, sf_f32, float, sf_i32, sf_mul_f32)

//: sf_join_prod_f64
SF_JOIN(prod_f64, sf_f64, double, sf_i64, sf_mul_f64)

//: sf_join_prod_i32
SF_JOIN(prod_i32, sf_i32, int32_t, sf_i32, sf_mul_i32)

//: sf_join_prod_i64
SF_JOIN(prod_i64, sf_i64, int64_t, sf_i64, sf_mul_i64)

//: sf_join_max_f32
SF_JOIN(max_f32, sf_f32, float, sf_i32, sf_maximum_f32)

//: sf_join_max_f64
SF_JOIN(max_f64, sf_f64, double, sf_i64, sf_maximum_f64)

//: sf_join_max_i32
SF_JOIN(max_i32, sf_i32, int32_t, sf_i32, sf_maximum_i32)

//: sf_join_max_i64
SF_JOIN(max_i64, sf_i64, int64_t, sf_i64, sf_maximum_i64)

//: sf_join_min_f32
SF_JOIN(min_f32, sf_f32, float, sf_i32, sf_minimum_f32)

//: sf_join_min_f64
SF_JOIN(min_f64, sf_f64, double, sf_i64, sf_minimum_f64)

//: sf_join_min_i32
SF_JOIN(min_i32, sf_i32, int32_t, sf_i32, sf_minimum_i32)

//: sf_join_min_i64
SF_JOIN(min_i64, sf_i64, int64_t, sf_i64, sf_minimum_i64)

//: SF_ARGMAX
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

//: sf_argmax_{step,join}_f32
//+ sf_{gt,ne,eq,select}_f32
SF_ARGMAX(f32, sf_f32, float)

//: sf_argmax_{step,join}_f64
//+ sf_{gt,ne,eq,select}_f64
SF_ARGMAX(f64, sf_f64, double)

//: sf_argmax_{step,join}_i32
//+ sf_{gt,ne,eq,select}_i32
SF_ARGMAX(i32, sf_i32, int32_t)

//: sf_argmax_{step,join}_i64
//+ sf_{gt,ne,eq,select}_i64
SF_ARGMAX(i64, sf_i64, int64_t)
