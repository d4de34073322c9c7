#pragma once
// Elementary functions of f32 without branches. Error bounds: docs/codegen.md. Polynomials are
// minimax fits.

#include "compiler/codegen/cpu/prelude/arithmetic.h"
#include "compiler/codegen/cpu/prelude/types.h"

//: sf_reduce_exp_f32 sf_scale_f32
// a = n log 2 + r with |r| <= log(2) / 2; and r * 2^n, which may leave the range by rounding only.
SF_INLINE sf_f32 sf_reduce_exp_f32(sf_f32 a, sf_i32* n) {
  const sf_f32 shifted = a * 0x1.715476p0f + 0x1.8p23f;  // rounds to a whole number
  const sf_f32 whole = shifted - 0x1.8p23f;
  *n = (sf_i32)(sf_bits_f32(shifted) - 0x4B400000u);
  return (a - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f;
}
SF_INLINE sf_f32 sf_scale_f32(sf_f32 r, sf_i32 n) {
  const sf_u32 half = (sf_u32)(n >> 1);
  const sf_u32 rest = (sf_u32)n - half;
  return r * sf_from_bits_f32((half + 127u) << 23) * sf_from_bits_f32((rest + 127u) << 23);
}

//: sf_exp_f32
SF_INLINE sf_f32 sf_exp_f32(sf_f32 a) {
  sf_i32 n;
  const sf_f32 r = sf_reduce_exp_f32(sf_clamp_f32(a, -104.0f, 89.0f), &n);
  sf_f32 q = r * 0.00138144672f + 0.00836878084f;
  q = q * r + 0.0416683927f;
  q = q * r + 0.166665196f;
  q = q * r + 0.49999994f;
  return sf_scale_f32((q * r * r + r) + 1.0f, n);
}

//: sf_expm1_f32
SF_INLINE sf_f32 sf_expm1_f32(sf_f32 a) {
  sf_i32 n;
  const sf_f32 x = sf_clamp_f32(a, -30.0f, 89.0f);
  const sf_f32 r = sf_reduce_exp_f32(x, &n);
  sf_f32 q = r * 0.000198458845f + 0.00139407197f;
  q = q * r + 0.00833338965f;
  q = q * r + 0.0416663587f;
  q = q * r + 0.166666657f;
  q = q * r + 0.5f;
  const sf_f32 p = q * r * r + r;
  const sf_f32 power = sf_scale_f32(sf_all_f32(1), n);
  const sf_f32 near = p * power + (power - 1.0f);
  const sf_f32 r_far = sf_scale_f32(p + 1.0f, n);  // the power alone may be infinite
  const sf_f32 result = sf_select_f32(SF_TEST32(x > 80.0f), r_far, near);
  return sf_select_f32(SF_TEST32(a == 0.0f), a, result);  // keeps -0
}

//: sf_log_normal_f32
// log(a) - shift log 2 of a normal a > 0.
SF_INLINE sf_f32 sf_log_normal_f32(sf_f32 a, sf_f32 shift) {
  const sf_u32 bits = sf_bits_f32(a);
  const sf_u32 power = (bits - 0x3F3504F3u) & 0xFF800000u;  // the exponent of a / sqrt(1/2)
  const sf_f32 f = sf_from_bits_f32(bits - power) - 1.0f;
  const sf_f32 e = SF_CONVERT((sf_i32)power >> 23, sf_f32) - shift;
  sf_f32 p = f * -0.0763449296f + 0.12761575f;
  p = p * f - 0.131601825f;
  p = p * f + 0.142017588f;
  p = p * f - 0.166233569f;
  p = p * f + 0.200012267f;
  p = p * f - 0.250008196f;
  p = p * f + 0.333333313f;
  const sf_f32 square = f * f;
  const sf_f32 low = square * f * p + e * 0x1.7f7d1cp-20f;
  return (low - 0.5f * square) + f + e * 0x1.62e4p-1f;
}

//: sf_log_f32
SF_INLINE sf_f32 sf_log_f32(sf_f32 a) {
  const sf_bool tiny = SF_TEST32(a < 0x1p-126f);
  const sf_f32 shift = sf_select_f32(tiny, sf_all_f32(23), sf_all_f32(0));
  sf_f32 r = sf_log_normal_f32(sf_select_f32(tiny, a * 0x1p23f, a), shift);
  const sf_f32 infinity = sf_from_bits_f32((sf_u32)sf_all_i32(0x7F800000));
  r = sf_select_f32(SF_TEST32(a == infinity), infinity, r);
  r = sf_select_f32(SF_TEST32(a == 0.0f), -infinity, r);
  return sf_select_f32(SF_TEST32(a >= 0.0f), r, infinity - infinity);
}

//: sf_log1p_f32
SF_INLINE sf_f32 sf_log1p_f32(sf_f32 a) {
  const sf_f32 u = a + 1.0f;
  const sf_f32 lost = (a - (u - 1.0f)) / u;  // what the addition rounded away
  const sf_bool some = SF_TEST32(u > 0.0f) & SF_TEST32(u < 0x1p24f);
  const sf_f32 r = sf_log_f32(u) + sf_select_f32(some, lost, sf_all_f32(0));
  return sf_select_f32(SF_TEST32(a == 0.0f), a, r);  // keeps -0
}

//: sf_tanh_f32
SF_INLINE sf_f32 sf_tanh_f32(sf_f32 a) {
  const sf_f32 m = sf_magnitude_f32(a);
  const sf_f32 z = a * a;
  sf_f32 p = z * 0x1.ec947ap-10f - 0x1.019e28p-7f;
  p = p * z + 0x1.614134p-6f;
  p = p * z - 0x1.b9b402p-5f;
  p = p * z + 0x1.110f22p-3f;
  p = p * z - 0x1.555550p-2f;
  const sf_f32 small = a * (z * p) + a;
  const sf_f32 e = sf_exp_f32(sf_clamp_f32(m, 0.0f, 10.0f) * 2.0f);
  const sf_f32 large = 1.0f - 2.0f / (e + 1.0f);
  return sf_copysign_f32(sf_select_f32(SF_TEST32(m < 0.7f), small, large), a);
}

//: sf_sigmoid_f32
SF_INLINE sf_f32 sf_sigmoid_f32(sf_f32 a) {
  const sf_f32 e = sf_exp_f32(-sf_magnitude_f32(a));
  return sf_select_f32(SF_TEST32(a < 0.0f), e, sf_all_f32(1)) / (e + 1.0f);
}

//: sf_softplus_f32
SF_INLINE sf_f32 sf_softplus_f32(sf_f32 a) {
  const sf_f32 positive = sf_select_f32(SF_TEST32(a < 0.0f), sf_all_f32(0), a);
  const sf_f32 e = sf_exp_f32(-sf_magnitude_f32(a));  // in [0, 1]
  const sf_f32 u = e + 1.0f;
  const sf_f32 lost = (e - (u - 1.0f)) / u;
  return positive + (sf_log_normal_f32(u, sf_all_f32(0)) + lost);
}

//: sf_erf_f32
SF_INLINE sf_f32 sf_erf_f32(sf_f32 a) {
  const sf_f32 m = sf_magnitude_f32(a);
  const sf_f32 z = a * a;
  sf_f32 p = z * 7.85386073e-05f - 0.000801019371f;
  p = p * z + 0.00518832775f;
  p = p * z - 0.0268538129f;
  p = p * z + 0.112835854f;
  p = p * z - 0.37612626f;
  p = p * z + 0.128379167f;  // the leading 1 is added exactly
  const sf_f32 small = a * p + a;
  const sf_f32 t = sf_clamp_f32(m, 0.0f, 4.0f);
  sf_f32 q = t * 0.00018557407f - 0.00293960795f;  // log(erfc(t)) on [1, 4]
  q = q * t + 0.0218053199f;
  q = q * t - 0.103037372f;
  q = q * t - 0.638225675f;
  q = q * t - 1.12704003f;
  q = q * t - 0.000353718788f;
  const sf_f32 large = sf_copysign_f32(1.0f - sf_exp_f32(q), a);
  return sf_select_f32(SF_TEST32(m > 1.0f), large, small);
}

//: sf_trig_f32
// sin(a + turn pi/2), in double. Beyond 2^20 the product with 2/pi is taken modulo 4 in whole
// numbers, lane by lane: 96 bits of it, from where the whole quarter turns end.
SF_INLINE double sf_reduce_far(double a, int64_t* turns) {
  static const uint32_t two_over_pi[8] = {0u,          0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u,
                                          0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu};
  uint64_t bits;
  __builtin_memcpy(&bits, &a, sizeof bits);
  const uint64_t mantissa = ((bits & 0xFFFFFFFFFFFFFu) | 0x10000000000000u) >> 29;  // 24 bits
  const int at = (int)((bits >> 52) & 0x7FF) - 1023 - 25 + 32;  // bits before the window
  const uint32_t* const word = two_over_pi + at / 32;
  const int shift = at % 32;
  uint64_t w[3];
  for (int i = 0; i < 3; ++i)
    w[i] = (uint32_t)((((uint64_t)word[i] << 32) | word[i + 1]) >> (32 - shift));
  const uint64_t low = mantissa * w[1] + ((mantissa * w[2]) >> 32);
  const uint64_t quarter = ((mantissa * w[0]) << 32) + low;  // quarter turns * 2^62
  *turns = (int64_t)((quarter >> 62) + ((quarter >> 61) & 1));
  const double r = (double)(int64_t)(quarter << 2) * 0x1.921fb54442d18p-64;
  if ((bits >> 63) == 0) return r;
  *turns = -*turns;
  return -r;
}
SF_INLINE sf_f32 sf_trig_f32(sf_f32 a, int64_t turn) {
  const sf_f64 x = SF_CONVERT(a, sf_f64);
  const sf_f64 shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  const sf_f64 whole = shifted - 0x1.8p52;
  sf_f64 r = (x - whole * 0x1.921fb544p+0) - whole * 0x1.0b4611a626331p-34;
  sf_i64 turns = (sf_i64)sf_bits_f64(shifted);
  if (sf_any(SF_TEST32(sf_magnitude_f32(a) > 0x1p20f))) {
    double xs[SF_LANES], rs[SF_LANES];
    int64_t ts[SF_LANES];
    __builtin_memcpy(xs, &x, sizeof xs);
    __builtin_memcpy(rs, &r, sizeof rs);
    __builtin_memcpy(ts, &turns, sizeof ts);
    for (int i = 0; i < SF_LANES; ++i) {
      const double m = xs[i] < 0 ? -xs[i] : xs[i];
      if (m > 0x1p20 && m < 0x1p200) rs[i] = sf_reduce_far(xs[i], &ts[i]);
    }
    __builtin_memcpy(&r, rs, sizeof rs);
    __builtin_memcpy(&turns, ts, sizeof ts);
  }
  turns = (sf_i64)((sf_u64)turns + (uint64_t)turn);
  const sf_f64 z = r * r;
  sf_f64 s = z * 0x1.6cd83cf38b87cp-19 - 0x1.a00f9d4ca4f81p-13;
  s = s * z + 0x1.11110896109fep-7;
  s = s * z - 0x1.5555554cba1c8p-3;
  sf_f64 c = z * 0x1.9933dbde0a044p-16 - 0x1.6c087d4c9bd7fp-10;
  c = c * z + 0x1.55553e0deb40bp-5;
  c = c * z - 0x1.ffffffd0c2290p-2;
  const sf_f64 chosen = sf_select_f64(SF_TEST64((turns & 1) == 0), r * (z * s + 1.0), z * c + 1.0);
  const sf_u64 sign = ((sf_u64)turns & 2u) << 62;
  const sf_f32 result = SF_CONVERT(sf_from_bits_f64(sf_bits_f64(chosen) ^ sign), sf_f32);
  return result - (a - a);  // NaN for infinities
}

//: sf_sin_f32
SF_INLINE sf_f32 sf_sin_f32(sf_f32 a) { return sf_trig_f32(a, 0); }

//: sf_cos_f32
SF_INLINE sf_f32 sf_cos_f32(sf_f32 a) { return sf_trig_f32(a, 1); }

//: sf_exp2_wide
// 2^x in double, for a float; -1000 < x < 1000.
SF_INLINE sf_f64 sf_exp2_wide(sf_f64 x) {
  const sf_f64 shifted = x + 0x1.8p52;
  const sf_f64 f = x - (shifted - 0x1.8p52);
  sf_f64 p = f * 0x1.640e1cc679ef2p-20 + 0x1.00dc676bc6560p-16;
  p = p * f + 0x1.43086fa0517edp-13;
  p = p * f + 0x1.5d87457a8c0a4p-10;
  p = p * f + 0x1.3b2ab73e29ee4p-7;
  p = p * f + 0x1.c6b08dd723700p-5;
  p = p * f + 0x1.ebfbdff8055dbp-3;
  p = p * f + 0x1.62e42fef84bf0p-1;
  p = p * f + 1.0;
  return sf_from_bits_f64(sf_bits_f64(p) + (sf_bits_f64(shifted) << 52));
}

//: sf_exp2_f32
SF_INLINE sf_f32 sf_exp2_f32(sf_f32 a) {
  const sf_f64 x = sf_clamp_f64(SF_CONVERT(a, sf_f64), -200.0, 200.0);
  return sf_select_f32(SF_TEST32(a != a), a, SF_CONVERT(sf_exp2_wide(x), sf_f32));
}

//: sf_fmod_f32
// The C library, lane by lane: exact.
SF_INLINE sf_f32 sf_fmod_f32(sf_f32 a, sf_f32 b) {
  float r[SF_LANES], by[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  __builtin_memcpy(by, &b, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = __builtin_fmodf(r[i], by[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}

//: sf_atan2_f32
// In double: the C library, lane by lane.
SF_INLINE sf_f32 sf_atan2_f32(sf_f32 a, sf_f32 b) {
  float r[SF_LANES], x[SF_LANES];
  __builtin_memcpy(r, &a, sizeof r);
  __builtin_memcpy(x, &b, sizeof r);
  for (int i = 0; i < SF_LANES; ++i) r[i] = (float)__builtin_atan2((double)r[i], (double)x[i]);
  __builtin_memcpy(&a, r, sizeof r);
  return a;
}

//: sf_pow_f32
// 2^(b log2 a), in double. log2(x) of a double x > 0 that came from a float.
SF_INLINE sf_f64 sf_log2_wide(sf_f64 x) {
  const sf_u64 t = sf_bits_f64(x) - 0x3FE6A09E667F3BCDu + 0x3FF0000000000000u;
  const sf_f64 m = sf_from_bits_f64((t & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
  const sf_f64 e = sf_from_bits_f64((t >> 52) + 0x4338000000000000u) - (0x1.8p52 + 1023.0);
  const sf_f64 s = (m - 1.0) / (m + 1.0);
  const sf_f64 z = s * s;
  sf_f64 p = z * 0x1.f18b2ee63f128p-3 + 0x1.0bb777aae0502p-2;
  p = p * z + 0x1.484fae60a7133p-2;
  p = p * z + 0x1.a617566e9edf3p-2;
  p = p * z + 0x1.2776c516b0851p-1;
  p = p * z + 0x1.ec709dc39c99ep-1;
  p = p * z + 0x1.71547652b82ffp+1;
  return s * p + e;
}
SF_INLINE sf_f32 sf_pow_f32(sf_f32 a, sf_f32 b) {
  const sf_f32 infinity = sf_from_bits_f32((sf_u32)sf_all_i32(0x7F800000));
  const sf_f32 m = sf_magnitude_f32(a);
  const sf_f64 y = sf_clamp_f64(SF_CONVERT(b, sf_f64), -0x1p100, 0x1p100);
  const sf_f64 ends = SF_CONVERT(sf_select_f32(SF_TEST32(m == 0.0f), -infinity, infinity), sf_f64);
  const sf_bool end = SF_TEST32(m == 0.0f) | SF_TEST32(m == infinity);
  const sf_f64 l = sf_select_f64(end, ends, sf_log2_wide(SF_CONVERT(m, sf_f64)));
  sf_f32 r = SF_CONVERT(sf_exp2_wide(sf_clamp_f64(y * l, -200.0, 200.0)), sf_f32);
  const sf_bool nan = SF_TEST32(a != a) | SF_TEST32(b != b);
  const sf_bool whole = SF_TEST32(sf_round_f32(b) == b);
  const sf_bool odd = whole & SF_TEST32(sf_round_f32(b * 0.5f) != b * 0.5f);
  const sf_bool negative = SF_TEST32((sf_bits_f32(a) >> 31) == 1u);
  r = sf_select_f32(negative & odd, -r, r);
  const sf_bool undefined = SF_TEST32(a < 0.0f) & SF_TEST32(m < infinity) & ~whole;
  r = sf_select_f32(undefined, infinity - infinity, r);
  r = sf_select_f32(nan, a + b, r);
  return sf_select_f32(SF_TEST32(b == 0.0f) | SF_TEST32(a == 1.0f), sf_all_f32(1), r);
}
