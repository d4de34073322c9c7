#pragma once
// Elementary functions of f64. Error bounds: docs/codegen.md. Polynomials are minimax fits.

#include "compiler/codegen/cpu/prelude/arithmetic.h"
#include "compiler/codegen/cpu/prelude/types.h"

//: sf_reduce_exp_f64 sf_scale_f64
// a = n log 2 + r with |r| <= log(2) / 2; and r * 2^n, which may leave the range by rounding only.
// n is shifted by 2^12, so that it is positive.
SF_INLINE sf_f64 sf_reduce_exp_f64(sf_f64 a, sf_u64* n) {
  const sf_f64 shifted = a * 0x1.71547652b82fep+0 + (0x1.8p52 + 4096.0);
  const sf_f64 whole = shifted - (0x1.8p52 + 4096.0);
  *n = sf_bits_f64(shifted) & 0x1FFFu;
  return (a - whole * 0x1.62e42feep-1) - whole * 0x1.a39ef35793c76p-33;
}
SF_INLINE sf_f64 sf_scale_f64(sf_f64 r, sf_u64 n) {
  const sf_u64 half = n >> 1;
  const sf_u64 rest = n - half;
  return r * sf_from_bits_f64((half - 1025u) << 52) * sf_from_bits_f64((rest - 1025u) << 52);
}

//: sf_exp_tail_f64
// (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2.
SF_INLINE sf_f64 sf_exp_tail_f64(sf_f64 r) {
  sf_f64 q = r * 0x1.1f8b4c6b3c913p-29 + 0x1.af4deb0af45a9p-26;
  q = q * r + 0x1.27e4cccdeb2f7p-22;
  q = q * r + 0x1.71de0230beb99p-19;
  q = q * r + 0x1.a01a01acfacc0p-16;
  q = q * r + 0x1.a01a01abe84bap-13;
  q = q * r + 0x1.6c16c16c151fcp-10;
  q = q * r + 0x1.11111111100dbp-7;
  q = q * r + 0x1.5555555555558p-5;
  q = q * r + 0x1.5555555555557p-3;
  return q * r + 0.5;
}

//: sf_exp_f64
SF_INLINE sf_f64 sf_exp_f64(sf_f64 a) {
  sf_u64 n;
  const sf_f64 r = sf_reduce_exp_f64(sf_clamp_f64(a, -746.0, 710.0), &n);
  return sf_scale_f64((sf_exp_tail_f64(r) * (r * r) + r) + 1.0, n);
}

//: sf_exp2_f64
// 2^n exp(f log 2) for the fraction f, whose first 25 bits are multiplied without rounding.
SF_INLINE sf_f64 sf_exp2_f64(sf_f64 a) {
  const sf_f64 x = sf_clamp_f64(a, -1100.0, 1100.0);
  const sf_f64 shifted = x + (0x1.8p52 + 4096.0);
  const sf_f64 f = x - (shifted - (0x1.8p52 + 4096.0));
  const sf_f64 first = (f + 0x1.8p27) - 0x1.8p27;
  const sf_f64 high = first * 0x1.62e42fep-1;
  const sf_f64 low = first * 0x1.f473de6af278fp-30 + (f - first) * 0x1.62e42fefa39efp-1;
  const sf_f64 r = high + low;
  const sf_f64 power = ((sf_exp_tail_f64(r) * (r * r) + low) + high) + 1.0;
  return sf_scale_f64(power, sf_bits_f64(shifted) & 0x1FFFu);
}

//: sf_expm1_f64
SF_INLINE sf_f64 sf_expm1_f64(sf_f64 a) {
  sf_u64 n;
  const sf_f64 x = sf_clamp_f64(a, -60.0, 710.0);
  const sf_f64 r = sf_reduce_exp_f64(x, &n);
  const sf_f64 p = sf_exp_tail_f64(r) * (r * r) + r;
  const sf_f64 power = sf_scale_f64(sf_all_f64(1), n);
  const sf_f64 near = p * power + (power - 1.0);
  const sf_f64 r_far = sf_scale_f64(p + 1.0, n);  // the power alone may be infinite
  const sf_f64 result = sf_select_f64(SF_TEST64(x > 200.0), r_far, near);
  return sf_select_f64(SF_TEST64(a == 0.0), a, result);  // keeps -0
}

//: sf_log_normal_f64
// log(a) - shift log 2 of a normal a > 0.
SF_INLINE sf_f64 sf_log_normal_f64(sf_f64 a, sf_f64 shift) {
  const sf_u64 t = sf_bits_f64(a) - 0x3FE6A09E667F3BCDu + 0x3FF0000000000000u;
  const sf_f64 m = sf_from_bits_f64((t & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
  const sf_f64 biased = sf_from_bits_f64((t >> 52) + 0x4338000000000000u);
  const sf_f64 e = (biased - (0x1.8p52 + 1023.0)) - shift;
  const sf_f64 f = m - 1.0;  // in [sqrt(1/2) - 1, sqrt(2) - 1]
  const sf_f64 s = f / (f + 2.0);
  const sf_f64 z = s * s;
  sf_f64 p = z * 0x1.0f63f1f318807p-3 + 0x1.0f5cb09931127p-3;  // (log((1+s)/(1-s)) - 2s) / s z
  p = p * z + 0x1.3b20aca20b21cp-3;
  p = p * z + 0x1.745cde2f6a58bp-3;
  p = p * z + 0x1.c71c725911426p-3;
  p = p * z + 0x1.249249242b30ep-2;
  p = p * z + 0x1.9999999999e00p-2;
  p = p * z + 0x1.5555555555555p-1;
  // 2s = f - f^2/2 + s f^2/2
  const sf_f64 half = f * f * 0.5;
  const sf_f64 low = s * (half + z * p) + e * 0x1.a39ef35793c76p-33;
  return e * 0x1.62e42feep-1 - ((half - low) - f);
}

//: sf_log_f64
SF_INLINE sf_f64 sf_log_f64(sf_f64 a) {
  const sf_bool tiny = SF_TEST64(a < 0x1p-1022);
  const sf_f64 shift = sf_select_f64(tiny, sf_all_f64(54), sf_all_f64(0));
  sf_f64 r = sf_log_normal_f64(sf_select_f64(tiny, a * 0x1p54, a), shift);
  const sf_f64 infinity = sf_from_bits_f64((sf_u64)sf_all_i64(0x7FF0000000000000));
  r = sf_select_f64(SF_TEST64(a == infinity), infinity, r);
  r = sf_select_f64(SF_TEST64(a == 0.0), -infinity, r);
  return sf_select_f64(SF_TEST64(a >= 0.0), r, infinity - infinity);
}

//: sf_log1p_f64
SF_INLINE sf_f64 sf_log1p_f64(sf_f64 a) {
  const sf_f64 u = a + 1.0;
  const sf_f64 lost = (a - (u - 1.0)) / u;  // what the addition rounded away
  const sf_bool some = SF_TEST64(u > 0.0) & SF_TEST64(u < 0x1p53);
  const sf_f64 r = sf_log_f64(u) + sf_select_f64(some, lost, sf_all_f64(0));
  return sf_select_f64(SF_TEST64(a == 0.0), a, r);  // keeps -0
}

//: sf_tanh_f64
SF_INLINE sf_f64 sf_tanh_f64(sf_f64 a) {
  const sf_f64 t = sf_expm1_f64(sf_clamp_f64(sf_magnitude_f64(a), 0.0, 22.0) * 2.0);
  return sf_copysign_f64(t / (t + 2.0), a);
}

//: sf_sigmoid_f64
SF_INLINE sf_f64 sf_sigmoid_f64(sf_f64 a) {
  const sf_f64 e = sf_exp_f64(-sf_magnitude_f64(a));
  return sf_select_f64(SF_TEST64(a < 0.0), e, sf_all_f64(1)) / (e + 1.0);
}

//: sf_softplus_f64
SF_INLINE sf_f64 sf_softplus_f64(sf_f64 a) {
  const sf_f64 positive = sf_select_f64(SF_TEST64(a < 0.0), sf_all_f64(0), a);
  const sf_f64 e = sf_exp_f64(-sf_magnitude_f64(a));  // in [0, 1]
  const sf_f64 u = e + 1.0;
  const sf_f64 lost = (e - (u - 1.0)) / u;
  return positive + (sf_log_normal_f64(u, sf_all_f64(0)) + lost);
}

//: sf_erf_f64
SF_INLINE sf_f64 sf_erf_f64(sf_f64 a) {
  const sf_f64 m = sf_magnitude_f64(a);
  const sf_f64 z = a * a;
  sf_f64 p = z * -0x1.acdff90b8ebd8p-31 + 0x1.d784936618cc2p-27;  // erf(a) / a - 1 on [0, 1]
  p = p * z - 0x1.5c16e30fb0d45p-23;
  p = p * z + 0x1.b9827b1885f9bp-20;
  p = p * z - 0x1.f4ca94990cb86p-17;
  p = p * z + 0x1.f9a2bf73f0c68p-14;
  p = p * z - 0x1.c02db072f3fe0p-11;
  p = p * z + 0x1.565bccfa9a825p-8;
  p = p * z - 0x1.b82ce312062bcp-6;
  p = p * z + 0x1.ce2f21a041018p-4;
  p = p * z - 0x1.812746b0379c2p-2;
  p = p * z + 0x1.06eba8214db68p-3;
  const sf_f64 small = a * p + a;
  const sf_f64 x = sf_clamp_f64(m, 0.0, 6.0);
  const sf_f64 t = 2.0 / (x + 2.0);
  sf_f64 q = t * 0x1.53188d57909f5p-2 - 0x1.2b81395e35a35p+1;  // log(erfc(x) exp(x^2) / t), [1, 6]
  q = q * t + 0x1.d3b1ebc26bd94p+2;
  q = q * t - 0x1.a40f3adefdf04p+3;
  q = q * t + 0x1.dac53810c5f9fp+3;
  q = q * t - 0x1.61d0ab82c57b5p+3;
  q = q * t + 0x1.77f24c5fd0c05p+2;
  q = q * t - 0x1.3d86e5d7ba85ap+1;
  q = q * t + 0x1.28b083c3c55eep-1;
  q = q * t - 0x1.a52026dd861cep-5;
  q = q * t + 0x1.92e3aebbb8981p-2;
  q = q * t + 0x1.ff36eb5c303e4p-1;
  q = q * t - 0x1.43f4c2b3b3349p+0;
  const sf_f64 large = sf_copysign_f64(1.0 - t * sf_exp_f64(q - x * x), a);
  return sf_select_f64(SF_TEST64(m > 1.0), large, small);
}

//: sf_sin_f64 sf_cos_f64
// The C library, lane by lane.
#define SF_BY_LANE(name)                                              \
  SF_INLINE sf_f64 sf_##name##_f64(sf_f64 a) {                        \
    double r[SF_LANES];                                               \
    __builtin_memcpy(r, &a, sizeof r);                                \
    for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_##name(r[i]); \
    __builtin_memcpy(&a, r, sizeof r);                                \
    return a;                                                         \
  }
SF_BY_LANE(sin)
SF_BY_LANE(cos)

//: sf_fmod_f64
// The C library, lane by lane: exact.
SF_INLINE sf_f64 sf_fmod_f64(sf_f64 a, sf_f64 b) {
  double r[SF_LANES], by[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  __builtin_memcpy(by, &b, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_fmod(r[i], by[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}

//: sf_atan2_f64
// The C library, lane by lane.
SF_INLINE sf_f64 sf_atan2_f64(sf_f64 a, sf_f64 b) {
  double r[SF_LANES], x[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  __builtin_memcpy(x, &b, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_atan2(r[i], x[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}

//: sf_pow_f64
// The C library, lane by lane.
SF_INLINE sf_f64 sf_pow_f64(sf_f64 a, sf_f64 b) {
  double r[SF_LANES], exponent[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  __builtin_memcpy(exponent, &b, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_pow(r[i], exponent[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}
