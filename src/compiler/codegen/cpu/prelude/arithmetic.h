#pragma once
// Everything of the table of operations that is exact or rounded once.

#include "compiler/codegen/cpu/prelude/types.h"

//: SF_COMPARE
#define SF_COMPARE(name, test)                                                      \
  SF_INLINE sf_bool sf_eq_##name(sf_##name a, sf_##name b) { return test(a == b); } \
  SF_INLINE sf_bool sf_ne_##name(sf_##name a, sf_##name b) { return test(a != b); } \
  SF_INLINE sf_bool sf_lt_##name(sf_##name a, sf_##name b) { return test(a < b); }  \
  SF_INLINE sf_bool sf_le_##name(sf_##name a, sf_##name b) { return test(a <= b); } \
  SF_INLINE sf_bool sf_gt_##name(sf_##name a, sf_##name b) { return test(a > b); }  \
  SF_INLINE sf_bool sf_ge_##name(sf_##name a, sf_##name b) { return test(a >= b); }

//: sf_{eq,ne,lt,le,gt,ge}_f32
SF_COMPARE(f32, SF_TEST32)

//: sf_{eq,ne,lt,le,gt,ge}_f64
SF_COMPARE(f64, SF_TEST64)

//: sf_{eq,ne,lt,le,gt,ge}_i32
SF_COMPARE(i32, SF_TEST32)

//: sf_{eq,ne,lt,le,gt,ge}_i64
SF_COMPARE(i64, SF_TEST64)

//: sf_{eq,ne,lt,le,gt,ge}_bool
SF_INLINE sf_bool sf_eq_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) == (b & 1)); }
SF_INLINE sf_bool sf_ne_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) != (b & 1)); }
SF_INLINE sf_bool sf_lt_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) < (b & 1)); }
SF_INLINE sf_bool sf_le_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) <= (b & 1)); }
SF_INLINE sf_bool sf_gt_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) > (b & 1)); }
SF_INLINE sf_bool sf_ge_bool(sf_bool a, sf_bool b) { return SF_TEST32((a & 1) >= (b & 1)); }

//: sf_logical_{and,or,xor,not}_bool
SF_INLINE sf_bool sf_logical_and_bool(sf_bool a, sf_bool b) { return a & b; }
SF_INLINE sf_bool sf_logical_or_bool(sf_bool a, sf_bool b) { return a | b; }
SF_INLINE sf_bool sf_logical_xor_bool(sf_bool a, sf_bool b) { return a ^ b; }
SF_INLINE sf_bool sf_logical_not_bool(sf_bool a) { return ~a; }

//: SF_FLOAT
#define SF_FLOAT(name, type, one, test)                               \
  SF_INLINE type sf_add_##name(type a, type b) { return a + b; }      \
  SF_INLINE type sf_sub_##name(type a, type b) { return a - b; }      \
  SF_INLINE type sf_mul_##name(type a, type b) { return a * b; }      \
  SF_INLINE type sf_div_##name(type a, type b) { return a / b; }      \
  SF_INLINE type sf_neg_##name(type a) { return -a; }                 \
  SF_INLINE type sf_square_##name(type a) { return a * a; }           \
  SF_INLINE type sf_reciprocal_##name(type a) { return one / a; }     \
  SF_INLINE sf_bool sf_is_nan_##name(type a) { return test(a != a); } \
  SF_INLINE sf_bool sf_is_finite_##name(type a) { return test(a - a == 0 * one); }

//: sf_{add,sub,mul,div,neg,square,reciprocal}_f32 sf_is_{nan,finite}_f32
SF_FLOAT(f32, sf_f32, 1.0f, SF_TEST32)

//: sf_{add,sub,mul,div,neg,square,reciprocal}_f64 sf_is_{nan,finite}_f64
SF_FLOAT(f64, sf_f64, 1.0, SF_TEST64)

//: SF_INTEGER
// Integers wrap.
#define SF_INTEGER(name, type, bits)                                                 \
  SF_INLINE type sf_add_##name(type a, type b) { return (type)((bits)a + (bits)b); } \
  SF_INLINE type sf_sub_##name(type a, type b) { return (type)((bits)a - (bits)b); } \
  SF_INLINE type sf_mul_##name(type a, type b) { return (type)((bits)a * (bits)b); } \
  SF_INLINE type sf_neg_##name(type a) { return (type)(0u - (bits)a); }              \
  SF_INLINE type sf_square_##name(type a) { return (type)((bits)a * (bits)a); }

//: sf_{add,sub,mul,neg,square}_i32
SF_INTEGER(i32, sf_i32, sf_u32)

//: sf_{add,sub,mul,neg,square}_i64
SF_INTEGER(i64, sf_i64, sf_u64)

//: SF_SIGN SF_ORDER
// NaN passes through all of them.
#define SF_SIGN(name, type)                                                       \
  SF_INLINE type sf_abs_##name(type a) { /* of -0, too */                         \
    const type zero = sf_all_##name(0);                                           \
    return sf_select_##name(sf_le_##name(a, zero), sf_sub_##name(zero, a), a);    \
  }                                                                               \
  SF_INLINE type sf_sign_##name(type a) {                                         \
    const type zero = sf_all_##name(0);                                           \
    const type r = sf_select_##name(sf_lt_##name(a, zero), sf_all_##name(-1), a); \
    return sf_select_##name(sf_gt_##name(a, zero), sf_all_##name(1), r);          \
  }                                                                               \
  SF_INLINE type sf_relu_##name(type a) {                                         \
    const type zero = sf_all_##name(0);                                           \
    return sf_select_##name(sf_gt_##name(a, zero) | sf_ne_##name(a, a), a, zero); \
  }
#define SF_ORDER(name, type)                                                \
  SF_INLINE type sf_maximum_##name(type a, type b) {                        \
    return sf_select_##name(sf_ge_##name(a, b) | sf_ne_##name(a, a), a, b); \
  }                                                                         \
  SF_INLINE type sf_minimum_##name(type a, type b) {                        \
    return sf_select_##name(sf_le_##name(a, b) | sf_ne_##name(a, a), a, b); \
  }

//: sf_{abs,sign,relu}_f32
//+ sf_{lt,le,gt,ne,sub,select,all}_f32
SF_SIGN(f32, sf_f32)

//: sf_{abs,sign,relu}_f64
//+ sf_{lt,le,gt,ne,sub,select,all}_f64
SF_SIGN(f64, sf_f64)

//: sf_{abs,sign,relu}_i32
//+ sf_{lt,le,gt,ne,sub,select,all}_i32
SF_SIGN(i32, sf_i32)

//: sf_{abs,sign,relu}_i64
//+ sf_{lt,le,gt,ne,sub,select,all}_i64
SF_SIGN(i64, sf_i64)

//: sf_{maximum,minimum}_f32
//+ sf_{le,ge,ne,select}_f32
SF_ORDER(f32, sf_f32)

//: sf_{maximum,minimum}_f64
//+ sf_{le,ge,ne,select}_f64
SF_ORDER(f64, sf_f64)

//: sf_{maximum,minimum}_i32
//+ sf_{le,ge,ne,select}_i32
SF_ORDER(i32, sf_i32)

//: sf_{maximum,minimum}_i64
//+ sf_{le,ge,ne,select}_i64
SF_ORDER(i64, sf_i64)

//: sf_clamp_f32
// Into [low, high]; NaN stays.
SF_INLINE sf_f32 sf_clamp_f32(sf_f32 a, float low, float high) {
  a = sf_select_f32(SF_TEST32(a < low), sf_all_f32(low), a);
  return sf_select_f32(SF_TEST32(a > high), sf_all_f32(high), a);
}

//: sf_clamp_f64
SF_INLINE sf_f64 sf_clamp_f64(sf_f64 a, double low, double high) {
  a = sf_select_f64(SF_TEST64(a < low), sf_all_f64(low), a);
  return sf_select_f64(SF_TEST64(a > high), sf_all_f64(high), a);
}

//: SF_QUOTIENTS
// Quotients round down and are 0 where the divisor is; shifts may go beyond the bits there are.
#define SF_QUOTIENTS(name, type, bits, width, test)                                      \
  SF_INLINE type sf_floor_div_##name(type a, type b) {                                   \
    const type zero = sf_all_##name(0);                                                  \
    const sf_bool plain = test(b != zero) & test(b != sf_all_##name(-1));                \
    const type by = sf_select_##name(plain, b, sf_all_##name(1));                        \
    const type q = a / by;                                                               \
    const sf_bool below = test(a != q * by) & (test(a < zero) ^ test(by < zero));        \
    const type down = sf_select_##name(below, q - sf_all_##name(1), q);                  \
    const type turned = sf_select_##name(test(b == zero), zero, (type)(0u - (bits)a));   \
    return sf_select_##name(plain, down, turned);                                        \
  }                                                                                      \
  SF_INLINE type sf_floor_mod_##name(type a, type b) {                                   \
    const type zero = sf_all_##name(0);                                                  \
    const sf_bool plain = test(b != zero) & test(b != sf_all_##name(-1));                \
    const type by = sf_select_##name(plain, b, sf_all_##name(1));                        \
    const type rest = a - a / by * by;                                                   \
    const sf_bool other = test(rest != zero) & (test(a < zero) ^ test(by < zero));       \
    return sf_select_##name(plain, sf_select_##name(other, rest + by, rest), zero);      \
  }                                                                                      \
  SF_INLINE type sf_bit_and_##name(type a, type b) { return a & b; }                     \
  SF_INLINE type sf_bit_or_##name(type a, type b) { return a | b; }                      \
  SF_INLINE type sf_bit_xor_##name(type a, type b) { return a ^ b; }                     \
  SF_INLINE type sf_shift_left_##name(type a, type b) {                                  \
    const type zero = sf_all_##name(0);                                                  \
    const sf_bool inside = test(b >= zero) & test(b < sf_all_##name(width));             \
    const bits by = (bits)sf_select_##name(inside, b, zero);                             \
    return sf_select_##name(inside, (type)((bits)a << by), zero);                        \
  }                                                                                      \
  SF_INLINE type sf_shift_right_##name(type a, type b) {                                 \
    const sf_bool inside = test(b >= sf_all_##name(0)) & test(b < sf_all_##name(width)); \
    return a >> sf_select_##name(inside, b, sf_all_##name(width - 1));                   \
  }

//: sf_{floor_div,floor_mod,bit_and,bit_or,bit_xor,shift_left,shift_right}_i32
//+ sf_{select,all}_i32
SF_QUOTIENTS(i32, sf_i32, sf_u32, 32, SF_TEST32)

//: sf_{floor_div,floor_mod,bit_and,bit_or,bit_xor,shift_left,shift_right}_i64
//+ sf_{select,all}_i64
SF_QUOTIENTS(i64, sf_i64, sf_u64, 64, SF_TEST64)

//: sf_{magnitude,copysign}_f32
// Without its sign; with the sign of another.
SF_INLINE sf_f32 sf_magnitude_f32(sf_f32 a) {
  return sf_from_bits_f32(sf_bits_f32(a) & 0x7FFFFFFFu);
}
SF_INLINE sf_f32 sf_copysign_f32(sf_f32 a, sf_f32 sign) {
  return sf_from_bits_f32((sf_bits_f32(a) & 0x7FFFFFFFu) | (sf_bits_f32(sign) & 0x80000000u));
}

//: sf_{magnitude,copysign}_f64
SF_INLINE sf_f64 sf_magnitude_f64(sf_f64 a) {
  return sf_from_bits_f64(sf_bits_f64(a) & 0x7FFFFFFFFFFFFFFFu);
}
SF_INLINE sf_f64 sf_copysign_f64(sf_f64 a, sf_f64 sign) {
  return sf_from_bits_f64((sf_bits_f64(a) & 0x7FFFFFFFFFFFFFFFu) |
                          (sf_bits_f64(sign) & 0x8000000000000000u));
}

//: SF_WHOLE
// To whole numbers: adding and taking away 2^23 (2^52) rounds to nearest, ties to even. The sign is
// put on last: LLVM 19 takes the wrong operands when a copied sign is selected under a mask
// (vpternlog with merging).
#define SF_WHOLE(name, type, big, test)                                    \
  SF_INLINE type sf_round_##name(type a) {                                 \
    const type m = sf_magnitude_##name(a);                                 \
    const type r = sf_select_##name(test(m < big), (m + big) - big, m);    \
    return sf_copysign_##name(r, a);                                       \
  }                                                                        \
  SF_INLINE type sf_floor_##name(type a) {                                 \
    const type r = sf_round_##name(a);                                     \
    return sf_copysign_##name(sf_select_##name(test(r > a), r - 1, r), a); \
  }                                                                        \
  SF_INLINE type sf_ceil_##name(type a) {                                  \
    const type r = sf_round_##name(a);                                     \
    return sf_copysign_##name(sf_select_##name(test(r < a), r + 1, r), a); \
  }

//: sf_{round,floor,ceil}_f32
//+ sf_{magnitude,copysign,select}_f32
SF_WHOLE(f32, sf_f32, 0x1p23f, SF_TEST32)

//: sf_{round,floor,ceil}_f64
//+ sf_{magnitude,copysign,select}_f64
SF_WHOLE(f64, sf_f64, 0x1p52, SF_TEST64)

//: sf_sqrt_{f32,f64} sf_rsqrt_{f32,f64}
#if SF_LANES == 1
SF_INLINE sf_f32 sf_sqrt_f32(sf_f32 a) { return __builtin_sqrtf(a); }
SF_INLINE sf_f64 sf_sqrt_f64(sf_f64 a) { return __builtin_sqrt(a); }
#elif defined(__clang__) && __clang_major__ >= 16
SF_INLINE sf_f32 sf_sqrt_f32(sf_f32 a) { return __builtin_elementwise_sqrt(a); }
SF_INLINE sf_f64 sf_sqrt_f64(sf_f64 a) { return __builtin_elementwise_sqrt(a); }
#else
SF_INLINE sf_f32 sf_sqrt_f32(sf_f32 a) {
  float r[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_sqrtf(r[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}
SF_INLINE sf_f64 sf_sqrt_f64(sf_f64 a) {
  double r[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_sqrt(r[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}
#endif
SF_INLINE sf_f32 sf_rsqrt_f32(sf_f32 a) { return 1.0f / sf_sqrt_f32(a); }
SF_INLINE sf_f64 sf_rsqrt_f64(sf_f64 a) { return 1.0 / sf_sqrt_f64(a); }
