// Elementary functions in single precision as branch-free C++, so that loops over them are
// vectorised. Included once per SIMD target inside HWY_NAMESPACE; no include guard.
//
// Errors against the exact result, over all floats: exp 2 ulp, expm1 3 ulp, log 2 ulp, log1p 3 ulp,
// tanh 4 ulp, sigmoid 4 ulp, softplus 4 ulp, erf 2 ulp (tests/unit/engine/fast_math_test.cpp).
// Zeros, infinities and NaN give what the C library gives. Polynomials are minimax fits.

HWY_INLINE float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
HWY_INLINE std::uint32_t as_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2High = 0x1.62e4p-1F;  // 16 bits: exact times an exponent
constexpr float kLog2Low = 1.42860682e-06F;
constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
constexpr std::uint32_t kRounderBits = 0x4B400000U;

struct Reduced {
  float r;          ///< x - n log 2, |r| <= log(2) / 2
  std::uint32_t n;  ///< two's complement
};

HWY_INLINE Reduced reduce_by_log2(float x) {
  const float shifted = x * 1.44269504F + kRounder;
  const float n = shifted - kRounder;
  return {(x - n * kLog2High) - n * kLog2Low, as_bits(shifted) - kRounderBits};
}

/// 2^(n/2) and 2^(n - n/2): their product may leave the range of floats only by rounding.
struct Scale {
  float first;
  float second;
};

HWY_INLINE Scale power_of_two(std::uint32_t n) {
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
  return {as_float((half + 127U) << 23), as_float((n - half + 127U) << 23)};
}

HWY_INLINE float fast_exp(float a) {
  float x = a < -104.0F ? -104.0F : a;
  x = x > 89.0F ? 89.0F : x;
  const Reduced red = reduce_by_log2(x);
  const float r = red.r;
  float q = 0.00138144672F;
  q = q * r + 0.00836878084F;
  q = q * r + 0.0416683927F;
  q = q * r + 0.166665196F;
  q = q * r + 0.49999994F;
  const float p = (q * r * r + r) + 1.0F;
  const Scale scale = power_of_two(red.n);
  return p * scale.first * scale.second;
}

HWY_INLINE float fast_expm1(float a) {
  float x = a < -30.0F ? -30.0F : a;
  x = x > 89.0F ? 89.0F : x;
  const Reduced red = reduce_by_log2(x);
  const float r = red.r;
  float q = 0.000198458845F;
  q = q * r + 0.00139407197F;
  q = q * r + 0.00833338965F;
  q = q * r + 0.0416663587F;
  q = q * r + 0.166666657F;
  q = q * r + 0.5F;
  const float p = q * r * r + r;  // exp(r) - 1
  const Scale scale = power_of_two(red.n);
  const float high = scale.first * scale.second;
  // (2^n - 1) + 2^n p, kept in range for n = 128 by halves
  const float normal = p * high + (high - 1.0F);
  const float huge = ((p + 1.0F) * scale.first) * scale.second;
  const float result = x > 80.0F ? huge : normal;
  return a == 0.0F ? a : result;  // keeps -0
}

/// log(a * 2^-shift) of a normal number.
HWY_INLINE float log_of_normal(float a, float shift) {
  const std::uint32_t bits = as_bits(a);
  const std::uint32_t shifted = (bits - 0x3F3504F3U) & 0xFF800000U;  // exponent of a / sqrt(1/2)
  const float f = as_float(bits - shifted) - 1.0F;
  const float e = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23) - shift;
  float p = -0.0763449296F;
  p = p * f + 0.12761575F;
  p = p * f - 0.131601825F;
  p = p * f + 0.142017588F;
  p = p * f - 0.166233569F;
  p = p * f + 0.200012267F;
  p = p * f - 0.250008196F;
  p = p * f + 0.333333313F;
  const float square = f * f;
  const float low = square * f * p + e * kLog2Low;
  return (low - 0.5F * square) + f + e * kLog2High;
}

HWY_INLINE float fast_log(float a) {
  const bool tiny = a < 0x1p-126F;
  float result = log_of_normal(tiny ? a * 0x1p23F : a, tiny ? 23.0F : 0.0F);
  result = a == kInf ? kInf : result;
  result = a == 0.0F ? -kInf : result;
  return a >= 0.0F ? result : a - a + std::numeric_limits<float>::quiet_NaN();
}

HWY_INLINE float fast_log1p(float a) {
  const float u = 1.0F + a;
  const float lost = (a - (u - 1.0F)) / u;  // what the addition rounded away
  const float result = fast_log(u) + (u > 0.0F && u < kInf ? lost : 0.0F);
  return a == 0.0F ? a : result;
}

HWY_INLINE float fast_tanh(float a) {
  const float magnitude = std::abs(a);
  const float x = magnitude > 10.0F ? 10.0F : magnitude;
  const float t = fast_expm1(2.0F * x);
  return std::copysign(t / (t + 2.0F), a);
}

HWY_INLINE float fast_sigmoid(float a) {
  const float e = fast_exp(-std::abs(a));
  return (a < 0.0F ? e : 1.0F) / (1.0F + e);
}

HWY_INLINE float fast_softplus(float a) {
  const float positive = a < 0.0F ? 0.0F : a;  // NaN stays
  const float e = fast_exp(-std::abs(a));      // in [0, 1]: log1p needs none of its special cases
  const float u = 1.0F + e;
  return positive + (log_of_normal(u, 0.0F) + (e - (u - 1.0F)) / u);
}

HWY_INLINE float fast_erf(float a) {
  const float magnitude = std::abs(a);
  const float s = a * a;
  float p = 7.85386073e-05F;
  p = p * s - 0.000801019371F;
  p = p * s + 0.00518832775F;
  p = p * s - 0.0268538129F;
  p = p * s + 0.112835854F;
  p = p * s - 0.37612626F;
  p = p * s + 0.128379167F;  // the leading 1 is added exactly
  const float small = a * p + a;
  const float t = magnitude > 4.0F ? 4.0F : magnitude;
  float q = 0.00018557407F;  // log(erfc(t)) on [1, 4]
  q = q * t - 0.00293960795F;
  q = q * t + 0.0218053199F;
  q = q * t - 0.103037372F;
  q = q * t - 0.638225675F;
  q = q * t - 1.12704003F;
  q = q * t - 0.000353718788F;
  const float large = std::copysign(1.0F - fast_exp(q), a);
  return magnitude > 1.0F ? large : small;
}
