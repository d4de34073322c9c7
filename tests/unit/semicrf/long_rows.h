#pragma once
// Long rows against a recursion of their own: the factored sums in the log domain, in long double.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "problems.h"

namespace segfuse::semicrf::testing {

/// Log-partition and label posteriors of row 0, without start and end scores.
class LongReference {
 public:
  explicit LongReference(const Problem<float>& p) : p_(p), label(p.T_ * p.C) {
    const std::int64_t L = p.T_, C = p.C;
    std::vector<long double> entry(row(L + 1)), value(row(L + 1)), rest(row(L + 1)),
        follow(row(L + 1));
    for (std::int64_t c = 0; c < C; ++c) entry[c] = p.initial[c];
    for (std::int64_t t = 1; t <= L; ++t) {
      for (std::int64_t c = 0; c < C; ++c) value[row(t) + c] = window(entry, t, c, -1);
      for (std::int64_t c = 0; c < C; ++c) {
        terms_.clear();
        for (std::int64_t i = 0; i < C; ++i)
          terms_.push_back(value[row(t) + i] + p.transition[i * C + c]);
        entry[row(t) + c] = log_sum_terms();
      }
    }
    terms_.clear();
    for (std::int64_t c = 0; c < C; ++c) terms_.push_back(value[row(L) + c] + p.final[c]);
    log_partition = log_sum_terms();
    std::vector<long double> cover(C, 0.0L);
    for (std::int64_t c = 0; c < C; ++c) rest[row(L) + c] = p.final[c];
    for (std::int64_t s = L - 1; s >= 0; --s) {
      for (std::int64_t c = 0; c < C; ++c) {
        cover[c] += std::exp(value[row(s + 1) + c] + rest[row(s + 1) + c] - log_partition);
        label[s * C + c] = static_cast<double>(cover[c]);
        follow[row(s) + c] = window(rest, s, c, 1);
        cover[c] -= std::exp(entry[row(s) + c] + follow[row(s) + c] - log_partition);
      }
      for (std::int64_t i = 0; i < C; ++i) {
        terms_.clear();
        for (std::int64_t c = 0; c < C; ++c)
          terms_.push_back(p.transition[i * C + c] + follow[row(s) + c]);
        rest[row(s) + i] = log_sum_terms();
      }
    }
  }

 private:
  std::int64_t row(std::int64_t t) const { return t * p_.C; }
  /// The sum over segments of label c between boundary t and those on one side of it.
  long double window(const std::vector<long double>& source, std::int64_t t, std::int64_t c,
                     std::int64_t side) {
    terms_.clear();
    long double content = 0.0L;
    for (std::int64_t k = 1; k <= p_.K; ++k) {
      const std::int64_t other = t + side * k;
      if (other < 0 || other > p_.T_) break;
      content += p_.emission[(side < 0 ? other : other - 1) * p_.C + c];
      terms_.push_back(source[row(other) + c] + content + p_.duration[(k - 1) * p_.C + c]);
    }
    return log_sum_terms();
  }
  long double log_sum_terms() const {
    long double max = -std::numeric_limits<long double>::infinity();
    for (const long double x : terms_) max = std::max(max, x);
    // Relative to the largest, double is enough: each sum is rounded once to 1e-16.
    double sum = 0.0;
    for (const long double x : terms_) sum += std::exp(static_cast<double>(x - max));
    return max + std::log(static_cast<long double>(sum));
  }

  const Problem<float>& p_;
  std::vector<long double> terms_;

 public:
  std::vector<double> label;
  long double log_partition = 0.0L;
};

inline Problem<float> long_problem(std::int64_t frames, std::int64_t K, std::int64_t C,
                                   double scale, std::uint64_t seed) {
  Rng rng(seed);
  auto p = random_problem<float>(
      1, frames, K, C, false, [scale](Rng& r) { return scale * r.normal(); }, rng);
  p.with_start = p.with_end = false;
  return p;
}

/// The errors that the design allows to single precision: 1e-6 and 1e-5; ours are far smaller.
inline void expect_accurate(std::int64_t frames, std::int64_t K, std::int64_t C, double scale) {
  const auto p = long_problem(frames, K, C, scale, 11);
  const LongReference wanted(p);
  std::vector<float> label(frames * C);
  std::vector<double> log_partition(1);
  Posteriors<float> result;
  result.label = {label.data(), {1, frames, C}};
  result.log_partition = log_partition;
  Engine(2).posteriors(p.potentials(), result);
  const auto exact = static_cast<double>(wanted.log_partition);
  EXPECT_LT(std::abs(log_partition[0] / exact - 1.0), 1e-12);
  double worst = 0.0;
  for (std::int64_t i = 0; i < frames * C; ++i)
    worst = std::max(worst, std::abs(label[i] - wanted.label[i]));
  EXPECT_LT(worst, 1e-7);  // a float's rounding
}

/// Posteriors sum to 1, and offsets of 10 up or down a frame change no gradient.
inline void expect_offsets_do_not_matter(std::int64_t frames, std::int64_t K, std::int64_t C) {
  auto p = long_problem(frames, K, C, 1.0, 12);
  Rng rng(13);
  // Multiples of 1/1024, so that an offset rounds nothing.
  for (float& v : p.emission) v = std::round(v * 1024.0F) / 1024.0F;
  auto q = p;
  for (std::int64_t t = 0; t < frames; ++t) {
    const float offset = rng.uniform() < 0.5 ? 10.0F : -10.0F;
    for (std::int64_t c = 0; c < C; ++c) q.emission[t * C + c] += offset;
  }
  OwnedGradients<float> a(p), b(q);
  Engine engine(2);
  engine.log_partition(p.potentials(), {}, a.views());
  engine.log_partition(q.potentials(), {}, b.views());
  double worst = 0.0, difference = 0.0;
  for (std::int64_t t = 0; t < frames; ++t) {
    const float* row = &a.emission[t * C];
    worst = std::max(worst, std::abs(std::accumulate(row, row + C, 0.0) - 1.0));
    for (std::int64_t c = 0; c < C; ++c)
      difference = std::max(difference, std::abs(double{row[c]} - b.emission[t * C + c]));
  }
  EXPECT_LT(worst, 1e-6);
  EXPECT_LT(difference, 1e-6);
  for (std::size_t i = 0; i < a.duration.size(); ++i)
    ASSERT_NEAR(a.duration[i], b.duration[i], 1e-6 * (1.0 + a.duration[i]));
  for (std::size_t i = 0; i < a.transition.size(); ++i)
    ASSERT_NEAR(a.transition[i], b.transition[i], 1e-6 * (1.0 + a.transition[i]));
}

}  // namespace segfuse::semicrf::testing
