#pragma once
//: sf_base
// Written by segfuse. C11 with GNU vectors of 16 lanes, whatever the machine has, so that results
// have the same bits on all; one lane with other compilers, or with -DSF_SCALAR. Needs IEEE
// arithmetic: no -ffast-math. A mask has 0 or -1 in each lane.
#if defined(__FAST_MATH__)
#error "compile without -ffast-math: NaN, infinities and rounding have to be those of IEEE 754"
#endif
#if defined(__GNUC__)
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
#define SF_INLINE static inline __attribute__((always_inline, unused))
#define SF_INFINITY __builtin_inff()
#define SF_NAN __builtin_nanf("")
#pragma GCC diagnostic ignored "-Wpsabi"  // gcc may still say a note; -Wno-psabi
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif !defined(__cplusplus)
#pragma GCC optimize("fp-contract=off", "no-math-errno", "no-trapping-math")
#endif
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define SF_INLINE static inline
#define SF_INFINITY INFINITY
#define SF_NAN NAN
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_sin sin
#define __builtin_cos cos
#define __builtin_pow pow
#define __builtin_atan2 atan2
#define __builtin_fmod fmod
#define __builtin_fmodf fmodf
#define __builtin_memcpy memcpy
#endif
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9) && !defined(SF_SCALAR)
#define SF_LANES 16
#define SF_VECTOR(element, size) element __attribute__((vector_size(SF_LANES * (size)), may_alias))
#define SF_UNALIGNED(element, size) \
  element __attribute__((vector_size(SF_LANES * (size)), aligned(size), may_alias))
#define SF_SPLAT(c) {c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c}
#define SF_CONVERT(value, type) __builtin_convertvector(value, type)
#define SF_TEST32(condition) ((sf_bool)(condition))
#define SF_TEST64(condition) __builtin_convertvector(condition, sf_bool)
#else
#define SF_LANES 1
#define SF_VECTOR(element, size) element
#define SF_UNALIGNED(element, size) element
#define SF_SPLAT(c) (c)
#define SF_CONVERT(value, type) ((type)(value))
#define SF_TEST32(condition) (-(sf_bool)(condition))
#define SF_TEST64(condition) (-(sf_bool)(condition))
#endif
typedef SF_VECTOR(float, 4) sf_f32;
typedef SF_VECTOR(double, 8) sf_f64;
typedef SF_VECTOR(int32_t, 4) sf_i32;
typedef SF_VECTOR(int64_t, 8) sf_i64;
typedef SF_VECTOR(uint8_t, 1) sf_u8;
typedef SF_VECTOR(uint16_t, 2) sf_u16;
typedef SF_VECTOR(uint32_t, 4) sf_u32;
typedef SF_VECTOR(uint64_t, 8) sf_u64;
typedef sf_i32 sf_bool;

//: sf_all_f32
// One number in all lanes.
SF_INLINE sf_f32 sf_all_f32(float a) {
  const sf_f32 r = SF_SPLAT(a);
  return r;
}

//: sf_all_f64
SF_INLINE sf_f64 sf_all_f64(double a) {
  const sf_f64 r = SF_SPLAT(a);
  return r;
}

//: sf_all_i32
SF_INLINE sf_i32 sf_all_i32(int32_t a) {
  const sf_i32 r = SF_SPLAT(a);
  return r;
}

//: sf_all_i64
SF_INLINE sf_i64 sf_all_i64(int64_t a) {
  const sf_i64 r = SF_SPLAT(a);
  return r;
}

//: sf_all_bool
SF_INLINE sf_bool sf_all_bool(int a) { return sf_all_i32(-(int32_t)(a != 0)); }

//: SF_FIRST
// The number in the first lane.
#if SF_LANES == 1
#define SF_FIRST(a) (a)
#else
#define SF_FIRST(a) ((a)[0])
#endif

//: sf_first_f32
SF_INLINE float sf_first_f32(sf_f32 a) { return SF_FIRST(a); }

//: sf_first_f64
SF_INLINE double sf_first_f64(sf_f64 a) { return SF_FIRST(a); }

//: sf_first_i32
SF_INLINE int32_t sf_first_i32(sf_i32 a) { return SF_FIRST(a); }

//: sf_first_i64
SF_INLINE int64_t sf_first_i64(sf_i64 a) { return SF_FIRST(a); }

//: sf_first_bool
SF_INLINE int sf_first_bool(sf_bool a) { return SF_FIRST(a) != 0; }

//: sf_lanes_i64
// first, first + 1, ...
SF_INLINE sf_i64 sf_lanes_i64(int64_t first) {
#if SF_LANES == 1
  return first;
#else
  const sf_i64 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lanes + sf_all_i64(first);
#endif
}

//: sf_lanes_i32
SF_INLINE sf_i32 sf_lanes_i32(int32_t first) {
#if SF_LANES == 1
  return first;
#else
  const sf_u32 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (sf_i32)(lanes + (uint32_t)first);
#endif
}

//: sf_lanes_below
// The first n lanes.
SF_INLINE sf_bool sf_lanes_below(int64_t n) { return SF_TEST32(sf_lanes_i32(0) < (int32_t)n); }

//: sf_{,from_}bits_{f32,f64}
// The bits of a number, and back.
#if SF_LANES == 1
SF_INLINE sf_u32 sf_bits_f32(sf_f32 a) {
  sf_u32 r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
SF_INLINE sf_u64 sf_bits_f64(sf_f64 a) {
  sf_u64 r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
SF_INLINE sf_f32 sf_from_bits_f32(sf_u32 a) {
  sf_f32 r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
SF_INLINE sf_f64 sf_from_bits_f64(sf_u64 a) {
  sf_f64 r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
#else
SF_INLINE sf_u32 sf_bits_f32(sf_f32 a) { return (sf_u32)a; }
SF_INLINE sf_u64 sf_bits_f64(sf_f64 a) { return (sf_u64)a; }
SF_INLINE sf_f32 sf_from_bits_f32(sf_u32 a) { return (sf_f32)a; }
SF_INLINE sf_f64 sf_from_bits_f64(sf_u64 a) { return (sf_f64)a; }
#endif

//: SF_SELECT
// a where the mask holds, b elsewhere.
#if SF_LANES == 1
#define SF_SELECT(type, lanes, mask) return (mask) ? a : b
#else
#define SF_SELECT(type, lanes, mask) \
  const lanes m = mask;              \
  return (type)((m & (lanes)a) | (~m & (lanes)b))
#endif

//: sf_select_f32
SF_INLINE sf_f32 sf_select_f32(sf_bool where, sf_f32 a, sf_f32 b) {
  SF_SELECT(sf_f32, sf_i32, where);
}

//: sf_select_f64
SF_INLINE sf_f64 sf_select_f64(sf_bool where, sf_f64 a, sf_f64 b) {
  SF_SELECT(sf_f64, sf_i64, SF_CONVERT(where, sf_i64));
}

//: sf_select_i32
SF_INLINE sf_i32 sf_select_i32(sf_bool where, sf_i32 a, sf_i32 b) {
  SF_SELECT(sf_i32, sf_i32, where);
}

//: sf_select_i64
SF_INLINE sf_i64 sf_select_i64(sf_bool where, sf_i64 a, sf_i64 b) {
  SF_SELECT(sf_i64, sf_i64, SF_CONVERT(where, sf_i64));
}

//: sf_select_bool
SF_INLINE sf_bool sf_select_bool(sf_bool where, sf_bool a, sf_bool b) {
  SF_SELECT(sf_bool, sf_i32, where);
}

//: sf_any
// Whether the mask holds anywhere.
SF_INLINE int sf_any(sf_bool a) {
#if SF_LANES == 1
  return a != 0;
#else
  typedef SF_VECTOR(int64_t, 4) halves;  // eight pairs of lanes
  const halves pairs = (halves)a;
  int64_t any = 0;
  for (int i = 0; i < 8; ++i) any |= pairs[i];
  return any != 0;
#endif
}
