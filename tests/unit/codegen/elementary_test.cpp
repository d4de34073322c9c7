// Errors of the prelude's elementary functions against the C library in a wider type.

#include "support/elementary.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "base/rng.h"
#include "support/c/compiled_c.h"
#include "support/c/prelude_functions.h"

namespace segfuse::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
std::vector<T> special_values() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> x;
  for (const double v :
       {0.0,  0.5,  0.7,   1.0,   1.5,   2.0,   3.0,   10.0,  21.9, 22.1, 37.0, 88.7,
        88.8, 89.5, 103.9, 104.1, 709.7, 709.8, 745.1, 745.2, 1e6,  1e15, 3e30})
    x.push_back(static_cast<T>(v));
  for (const T v : {Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min(), Limits::min(),
                    Limits::max(), Limits::epsilon(), 1 + Limits::epsilon(), 1 - Limits::epsilon()})
    x.push_back(v);
  const std::size_t positive = x.size();
  for (std::size_t i = 0; i < positive; ++i) x.push_back(-x[i]);
  return x;
}

std::vector<float> dense_floats() {
  std::vector<float> x = special_values<float>();
  for (std::uint64_t bits = 0; bits < 1ULL << 32; bits += 2039)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  x.resize((x.size() + 15) / 16 * 16, 1.0F);
  return x;
}

std::vector<double> many_doubles() {
  Rng rng(11);
  std::vector<double> x = special_values<double>();
  const auto bits = [&] { return std::uint64_t{rng.bits()} << 32 | rng.bits(); };
  for (int i = 0; i < 40000; ++i) x.push_back(std::bit_cast<double>(bits()));
  for (const double scale : {0.01, 0.7, 2.0, 8.0, 40.0, 760.0})
    for (int i = 0; i < 20000; ++i) x.push_back(scale * (2 * rng.uniform() - 1));
  for (int i = 0; i < 20000; ++i) x.push_back(0.5 + rng.uniform());
  x.resize((x.size() + 15) / 16 * 16, 1.0);
  return x;
}

std::string loops_of(const std::string& type) {
  std::string text;
  for (const PreludeFunction& f : prelude_functions())
    if (f.type == type && f.result == type) text += prelude_loop(f);
  return with_prelude(text);
}

template <class T, class Wide>
void check_bounds(const std::string& type, const std::vector<T>& x) {
  const CompiledC library(loops_of(type));
  const auto bounds = documented_bounds();
  std::vector<T> y(x.size());
  for (const Elementary<Wide>& f : elementary_functions<Wide>()) {
    const std::string name = f.op + "_" + type;
    library.get<PreludeLoop>("run_" + name)(x.data(), nullptr, y.data(),
                                            static_cast<std::int64_t>(x.size()));
    double worst = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], f.exact(static_cast<Wide>(x[i])));
      if (error > worst) {
        worst = error;
        at = i;
      }
    }
    EXPECT_LE(worst, bounds.at(name)) << name << "(" << x[at] << ") is " << y[at];
    EXPECT_GT(worst, 0.45) << name << ": nothing was measured";
    ::testing::Test::RecordProperty(name, std::to_string(worst));
  }
}

TEST(Elementary, ErrorsOfFloatsAreWithinTheDocumentedBounds) {
  check_bounds<float, double>("f32", dense_floats());
}

TEST(Elementary, ErrorsOfDoublesAreWithinTheDocumentedBounds) {
  check_bounds<double, long double>("f64", many_doubles());
}

template <class T, class Wide>
double worst_of_two(const std::string& op, Wide (*exact)(Wide, Wide), const std::string& type,
                    const std::vector<T>& a, const std::vector<T>& b) {
  const CompiledC library(loops_of(type));
  std::vector<T> y(a.size());
  library.get<PreludeLoop>("run_" + op + "_" + type)(a.data(), b.data(), y.data(),
                                                     static_cast<std::int64_t>(a.size()));
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = ulps(y[i], exact(static_cast<Wide>(a[i]), static_cast<Wide>(b[i])));
    EXPECT_LT(error, kInf) << op << "(" << a[i] << ", " << b[i] << ") is " << y[i];
    worst = std::max(worst, error);
  }
  return worst;
}

template <class T, class Wide>
void check_two(const std::string& op, Wide (*exact)(Wide, Wide), const std::string& type,
               const std::vector<T>& a, const std::vector<T>& b) {
  const double worst = worst_of_two<T, Wide>(op, exact, type, a, b);
  EXPECT_LE(worst, documented_bounds().at(op + "_" + type)) << op;
}

template <class T>
void pow_operands(std::vector<T>& a, std::vector<T>& b) {
  Rng rng(3);
  std::vector<T> special = special_values<T>();
  for (const double v : {-1.0, 3.0, -3.0, 0.25, 8388609.0, 16777216.0, 33554432.0})
    special.push_back(static_cast<T>(v));
  for (const T x : special)
    for (const T y : special) {
      a.push_back(x);
      b.push_back(y);
    }
  for (int i = 0; i < 300000; ++i) {
    a.push_back(static_cast<T>(std::exp(40 * (rng.uniform() - 0.5))));
    b.push_back(static_cast<T>(10 * (rng.uniform() - 0.5)));
    a.push_back(static_cast<T>(1 + 0.01 * (rng.uniform() - 0.5)));
    b.push_back(static_cast<T>(30000 * (rng.uniform() - 0.5)));
    a.push_back(static_cast<T>(-8 * rng.uniform()));
    b.push_back(static_cast<T>(std::floor(40 * (rng.uniform() - 0.5))));
  }
  a.resize(a.size() / 16 * 16);
  b.resize(a.size());
}

TEST(Elementary, PowersAreWithinTheDocumentedBounds) {
  std::vector<float> a, b;
  pow_operands(a, b);
  check_two<float, double>("pow", std::pow, "f32", a, b);
  std::vector<double> c, d;
  pow_operands(c, d);
  check_two<double, long double>("pow", std::pow, "f64", c, d);
}

TEST(Elementary, AnglesAreWithinTheDocumentedBounds) {
  std::vector<float> a, b;
  pow_operands(a, b);
  check_two<float, double>("atan2", std::atan2, "f32", a, b);
  std::vector<double> c, d;
  pow_operands(c, d);
  check_two<double, long double>("atan2", std::atan2, "f64", c, d);
}

}  // namespace
}  // namespace segfuse::test
