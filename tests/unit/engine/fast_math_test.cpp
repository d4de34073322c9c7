// The single-precision loops against the C library in double, over all magnitudes.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/rng.h"
#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {
namespace {

using ir::Op;

struct Function {
  Op op;
  std::function<double(double)> exact;
  double ulps;  ///< allowed
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

const std::vector<Function>& functions() {
  static const std::vector<Function> all = {
      {Op::exp, [](double x) { return std::exp(x); }, 2},
      {Op::expm1, [](double x) { return std::expm1(x); }, 3},
      {Op::log, [](double x) { return std::log(x); }, 2},
      {Op::log1p, [](double x) { return std::log1p(x); }, 3},
      {Op::tanh, [](double x) { return std::tanh(x); }, 4},
      {Op::sigmoid, sigmoid, 4},
      {Op::softplus, softplus, 4},
      {Op::erf, [](double x) { return std::erf(x); }, 2},
  };
  return all;
}

std::vector<float> apply_loop(Op op, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  pointwise_loop(op, DType::kF32)(y.data(), {{x.data(), nullptr, nullptr}, {1, 0, 0}},
                                  static_cast<std::int64_t>(x.size()));
  return y;
}

/// Distance in units of the last place of the exact value's float.
double ulps(float found, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded) || std::isnan(exact))
    return found == rounded || (std::isnan(found) && std::isnan(exact)) ? 0 : 1e9;
  const double magnitude = std::max(std::abs(exact), 0x1p-126);
  const double unit = std::exp2(std::floor(std::log2(magnitude)) - 23);
  return std::abs(static_cast<double>(found) - exact) / unit;
}

TEST(FastMath, ErrorsAreWithinTheStatedBounds) {
  Rng rng(5);
  std::vector<float> x;
  for (int i = 0; i < 400000; ++i) x.push_back(std::bit_cast<float>(rng.bits()));
  for (int i = 0; i < 400000; ++i) x.push_back(static_cast<float>(-12 + 24 * rng.uniform()));
  for (int i = 0; i < 200000; ++i) x.push_back(static_cast<float>(-110 + 220 * rng.uniform()));
  for (const Function& f : functions()) {
    const std::vector<float> y = apply_loop(f.op, x);
    double worst = 0;
    float at = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], f.exact(static_cast<double>(x[i])));
      if (error > worst) {
        worst = error;
        at = x[i];
      }
    }
    EXPECT_LE(worst, f.ulps) << ir::info(f.op).name << " at " << at << " is "
                             << apply_loop(f.op, {at})[0];
    RecordProperty(std::string(ir::info(f.op).name), std::to_string(worst));
  }
}

TEST(FastMath, SpecialValuesAreThoseOfTheLibrary) {
  constexpr float kInf32 = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0F,    -0.0F,     kInf32,     -kInf32, std::nanf(""), 1.0F,
                                -1.0F,   0x1p-149F, -0x1p-149F, 88.72F,  88.73F,        -103.0F,
                                -104.5F, 3.4e38F,   -3.4e38F,   1e-30F,  -2.0F};
  for (const Function& f : functions()) {
    const std::vector<float> y = apply_loop(f.op, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto expected = static_cast<float>(f.exact(static_cast<double>(x[i])));
      EXPECT_LE(ulps(y[i], f.exact(static_cast<double>(x[i]))), f.ulps)
          << ir::info(f.op).name << "(" << x[i] << ") = " << y[i] << ", not " << expected;
      if (expected == 0 && y[i] == 0 && f.op != Op::log) {
        EXPECT_EQ(std::signbit(y[i]), std::signbit(expected)) << ir::info(f.op).name << " " << x[i];
      }
    }
  }
}

}  // namespace
}  // namespace segfuse::engine
