// exp and log on vectors of doubles, for Highway targets. Included once per target, after
// highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_VECTOR_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_VECTOR_MATH_INL
#undef SEGFUSE_SEMICRF_VECTOR_MATH_INL
#else
#define SEGFUSE_SEMICRF_VECTOR_MATH_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// exp(r) = 1 + even r^2 + odd r for |r| <= ln(2)/2, given r^2: Taylor, two interleaved chains; the
/// remainder is under 2e-16.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void exp_polynomials(D d, V r2, V& even, V& odd) {
  even = hn::Set(d, 1.0 / 479001600);
  odd = hn::Set(d, 1.0 / 39916800);
  even = hn::MulAdd(even, r2, hn::Set(d, 1.0 / 3628800));
  odd = hn::MulAdd(odd, r2, hn::Set(d, 1.0 / 362880));
  even = hn::MulAdd(even, r2, hn::Set(d, 1.0 / 40320));
  odd = hn::MulAdd(odd, r2, hn::Set(d, 1.0 / 5040));
  even = hn::MulAdd(even, r2, hn::Set(d, 1.0 / 720));
  odd = hn::MulAdd(odd, r2, hn::Set(d, 1.0 / 120));
  even = hn::MulAdd(even, r2, hn::Set(d, 1.0 / 24));
  odd = hn::MulAdd(odd, r2, hn::Set(d, 1.0 / 6));
  even = hn::MulAdd(even, r2, hn::Set(d, 0.5));
  odd = hn::MulAdd(odd, r2, hn::Set(d, 1.0));
}

/// x = n ln 2 + r with n whole and |r| <= ln(2)/2; shifted = n + 1.5 2^52 holds n in its low bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reduce_to_log2(D d, V x, V& shifted) {
  const V shifter = hn::Set(d, 0x1.8p52);
  shifted = hn::MulAdd(x, hn::Set(d, 1.4426950408889634074), shifter);
  const V n = hn::Sub(shifted, shifter);
  const V r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e42fee00000p-1), x);
  return hn::NegMulAdd(n, hn::Set(d, 0x1.a39ef35793c76p-33), r);
}

/// exp(x) for x <= 700 to about 1 ulp; 0 below -707, -inf included.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  const hn::RebindToSigned<D> di;
  V shifted, even, odd;
  const V r = reduce_to_log2(d, x, shifted);
  const V r2 = hn::Mul(r, r);
  exp_polynomials(d, r2, even, odd);
  const V p = hn::Add(hn::Set(d, 1.0), hn::MulAdd(even, r2, hn::Mul(odd, r)));
  const auto exponent = hn::ShiftLeft<52>(hn::BitCast(di, shifted));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -707.0)), scaled);
}

/// exp(x) * 2^-shift for differences of exponents within 1000; 1 where x is -inf.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V shifted_exp(D d, V x, V shift) {
  const hn::RebindToSigned<D> di;
  V shifted, even, odd;
  const V r = reduce_to_log2(d, x, shifted);
  const V r2 = hn::Mul(r, r);
  exp_polynomials(d, r2, even, odd);
  const V one = hn::Set(d, 1.0);
  const V p = hn::Add(one, hn::MulAdd(even, r2, hn::Mul(odd, r)));
  const auto exponent = hn::ShiftLeft<52>(hn::BitCast(di, hn::Sub(shifted, shift)));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElse(hn::Eq(x, hn::Set(d, -std::numeric_limits<double>::infinity())), one,
                        scaled);
}

/// log(x) for normal x > 0 to about 1 ulp; -inf for 0 and below the normal range.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  // Split x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  const auto half_root = hn::Set(du, 0x3FE6A09E667F3BCDULL);
  const auto bits =
      hn::Sub(hn::Add(hn::BitCast(du, x), hn::Set(du, 0x3FF0000000000000ULL)), half_root);
  const auto biased = hn::Or(hn::ShiftRight<52>(bits), hn::Set(du, 0x4330000000000000ULL));
  const V e = hn::Sub(hn::BitCast(d, biased), hn::Set(d, 0x1p52 + 1023));
  const auto mantissa = hn::Add(hn::And(bits, hn::Set(du, 0x000FFFFFFFFFFFFFULL)), half_root);
  const V f = hn::Sub(hn::BitCast(d, mantissa), hn::Set(d, 1.0));
  const V s = hn::Div(f, hn::Add(hn::Set(d, 2.0), f));
  // log m = 2 atanh(s), |s| < 0.172
  const V z = hn::Mul(s, s);
  V p = hn::Set(d, 2.0 / 21);
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 19));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 17));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 15));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 13));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 11));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 9));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 7));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 5));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0 / 3));
  const V tail = hn::MulAdd(hn::Mul(p, z), s, hn::Mul(e, hn::Set(d, 0x1.a39ef35793c76p-33)));
  const V log_m = hn::Add(hn::Add(s, s), tail);
  const V result = hn::MulAdd(e, hn::Set(d, 0x1.62e42fee00000p-1), log_m);
  const V negative_infinity = hn::Set(d, -std::numeric_limits<double>::infinity());
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, 0x1p-1022)), result, negative_infinity);
}

}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
