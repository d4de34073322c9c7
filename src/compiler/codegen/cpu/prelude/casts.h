#pragma once
// sf_TO_from_FROM, and random numbers.

#include "compiler/codegen/cpu/prelude/arithmetic.h"
#include "compiler/codegen/cpu/prelude/types.h"

//: sf_{f32_from_f32,f64_from_f64,i32_from_i32,i64_from_i64,bool_from_bool}
SF_INLINE sf_f32 sf_f32_from_f32(sf_f32 a) { return a; }
SF_INLINE sf_f64 sf_f64_from_f64(sf_f64 a) { return a; }
SF_INLINE sf_i32 sf_i32_from_i32(sf_i32 a) { return a; }
SF_INLINE sf_i64 sf_i64_from_i64(sf_i64 a) { return a; }
SF_INLINE sf_bool sf_bool_from_bool(sf_bool a) { return a; }

//: sf_{f64_from_f32,f32_from_f64}
SF_INLINE sf_f64 sf_f64_from_f32(sf_f32 a) { return SF_CONVERT(a, sf_f64); }
SF_INLINE sf_f32 sf_f32_from_f64(sf_f64 a) { return SF_CONVERT(a, sf_f32); }

//: sf_narrowed_from_{f64,i32,i64}
// Toward zero with the last bit set when inexact: rounded to 16 bits, it is rounded once.
SF_INLINE sf_f32 sf_narrowed_from_f64(sf_f64 a) {
  const sf_f32 nearest = SF_CONVERT(a, sf_f32);
  const sf_f64 back = SF_CONVERT(nearest, sf_f64);
  const sf_bool beyond = SF_TEST64(sf_abs_f64(back) > sf_abs_f64(a));
  const sf_u32 bits = sf_bits_f32(nearest) - (sf_u32)(beyond & 1);
  return sf_from_bits_f32(bits | (sf_u32)(SF_TEST64(back != a) & 1));
}
SF_INLINE sf_f32 sf_narrowed_from_i32(sf_i32 a) {
  return sf_narrowed_from_f64(SF_CONVERT(a, sf_f64));
}
SF_INLINE sf_f32 sf_narrowed_from_i64(sf_i64 a) {
  return sf_narrowed_from_f64(SF_CONVERT(a, sf_f64));
}

//: sf_{f32,f64}_from_{i32,i64}
SF_INLINE sf_f32 sf_f32_from_i32(sf_i32 a) { return SF_CONVERT(a, sf_f32); }
SF_INLINE sf_f64 sf_f64_from_i32(sf_i32 a) { return SF_CONVERT(a, sf_f64); }
SF_INLINE sf_f32 sf_f32_from_i64(sf_i64 a) { return SF_CONVERT(a, sf_f32); }
SF_INLINE sf_f64 sf_f64_from_i64(sf_i64 a) { return SF_CONVERT(a, sf_f64); }

//: sf_{i64_from_i32,i32_from_i64}
SF_INLINE sf_i64 sf_i64_from_i32(sf_i32 a) { return SF_CONVERT(a, sf_i64); }
SF_INLINE sf_i32 sf_i32_from_i64(sf_i64 a) { return (sf_i32)SF_CONVERT(a, sf_u32); }

//: sf_i32_from_{f32,f64}
// Toward zero; out of range the nearest end; NaN is 0.
SF_INLINE sf_i32 sf_i32_from_f64(sf_f64 a) {
  const sf_f64 x = sf_select_f64(sf_ne_f64(a, a), sf_all_f64(0), a);
  return SF_CONVERT(sf_clamp_f64(x, -0x1p31, 0x1.fffffffcp30), sf_i32);
}
SF_INLINE sf_i32 sf_i32_from_f32(sf_f32 a) {
  const sf_f32 x = sf_select_f32(sf_ne_f32(a, a), sf_all_f32(0), a);
  const sf_i32 r = SF_CONVERT(sf_clamp_f32(x, -0x1p31f, 0x1.fffffep30f), sf_i32);
  return sf_select_i32(SF_TEST32(a >= 0x1p31f), sf_all_i32(0x7FFFFFFF), r);
}

//: sf_i64_from_{f32,f64}
// Toward zero; out of range the nearest end; NaN is 0.
SF_INLINE sf_i64 sf_i64_from_f64(sf_f64 a) {
  const sf_f64 x = sf_select_f64(sf_ne_f64(a, a), sf_all_f64(0), a);
  const sf_i64 r = SF_CONVERT(sf_clamp_f64(x, -0x1p63, 0x1.fffffffffffffp62), sf_i64);
  return sf_select_i64(SF_TEST64(a >= 0x1p63), sf_all_i64(0x7FFFFFFFFFFFFFFF), r);
}
SF_INLINE sf_i64 sf_i64_from_f32(sf_f32 a) { return sf_i64_from_f64(sf_f64_from_f32(a)); }

//: sf_{f32,f64,i32,i64}_from_bool
SF_INLINE sf_i32 sf_i32_from_bool(sf_bool a) { return a & 1; }
SF_INLINE sf_i64 sf_i64_from_bool(sf_bool a) { return SF_CONVERT(a & 1, sf_i64); }
SF_INLINE sf_f32 sf_f32_from_bool(sf_bool a) { return SF_CONVERT(a & 1, sf_f32); }
SF_INLINE sf_f64 sf_f64_from_bool(sf_bool a) { return SF_CONVERT(a & 1, sf_f64); }

//: sf_bool_from_{f32,f64,i32,i64}
SF_INLINE sf_bool sf_bool_from_f32(sf_f32 a) { return SF_TEST32(a != 0); }
SF_INLINE sf_bool sf_bool_from_f64(sf_f64 a) { return SF_TEST64(a != 0); }
SF_INLINE sf_bool sf_bool_from_i32(sf_i32 a) { return SF_TEST32(a != 0); }
SF_INLINE sf_bool sf_bool_from_i64(sf_i64 a) { return SF_TEST64(a != 0); }

//: sf_random_uniform
// Philox of the index under key, counter (sequence, stream): multiples of 2^-24 in [0, 1).
SF_INLINE sf_u64 sf_times(sf_u32 a, uint64_t factor) { return SF_CONVERT(a, sf_u64) * factor; }
SF_INLINE sf_u32 sf_low_word(sf_u64 a) { return SF_CONVERT(a & 0xFFFFFFFFu, sf_u32); }
SF_INLINE sf_f32 sf_random_uniform(int64_t key, int64_t sequence, int64_t stream, sf_i64 index) {
  const sf_u64 block = (sf_u64)index >> 2;
  const uint64_t high = (uint64_t)sequence + ((uint64_t)stream << 40);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)((uint64_t)key >> 32);
  sf_u32 c0 = sf_low_word(block), c1 = sf_low_word(block >> 32);
  sf_u32 c2 = (sf_u32)sf_all_i32((int32_t)(uint32_t)high);
  sf_u32 c3 = (sf_u32)sf_all_i32((int32_t)(uint32_t)(high >> 32));
  for (int round = 0; round < 10; ++round) {
    const sf_u64 p0 = sf_times(c0, 0xD2511F53u);
    const sf_u64 p1 = sf_times(c2, 0xCD9E8D57u);
    c0 = sf_low_word(p1 >> 32) ^ c1 ^ k0;
    c1 = sf_low_word(p1);
    c2 = sf_low_word(p0 >> 32) ^ c3 ^ k1;
    c3 = sf_low_word(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const sf_i32 word = sf_i32_from_i64(index) & 3;
  const sf_i32 even = sf_select_i32(SF_TEST32(word == 0), (sf_i32)c0, (sf_i32)c2);
  const sf_i32 odd = sf_select_i32(SF_TEST32(word == 1), (sf_i32)c1, (sf_i32)c3);
  const sf_u32 bits = (sf_u32)sf_select_i32(SF_TEST32((word & 1) == 0), even, odd);
  return sf_f32_from_i32((sf_i32)(bits >> 8)) * 0x1p-24f;
}
