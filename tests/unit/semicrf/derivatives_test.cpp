// Derivatives along directions against the list of all segmentations, and as differences of
// gradients.

#include <gtest/gtest.h>

#include <cstring>

#include "scopes.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

/// A direction that owns its numbers, with NaN where the score is -inf and past a row's length:
/// those are not read.
struct OwnedDirection {
  Problem<double> scores;
  std::vector<double> tail;
  OwnedDirection(const Problem<double>& p, const OwnedScope& scope, Rng& rng) : scores(p) {
    std::vector<double>* parts[] = {&scores.emission, &scores.transition, &scores.duration,
                                    &scores.initial,  &scores.final,      &scores.start,
                                    &scores.end};
    for (std::vector<double>* part : parts)
      for (double& x : *part) x = x == -kInf ? kNaN : rng.normal();
    for (std::vector<double>* frames : {&scores.emission, &scores.start, &scores.end})
      for (std::int64_t b = 0; b < p.B; ++b)
        std::fill(frames->begin() + (b * p.T_ + p.length(b)) * p.C,
                  frames->begin() + (b + 1) * p.T_ * p.C, kNaN);
    for (const double x : scope.tail) tail.push_back(x == -kInf ? kNaN : rng.normal());
  }
  Direction<double> view() const {
    Direction<double> v{scores.potentials(), {}};
    if (!tail.empty()) v.tail = tail;
    return v;
  }
  /// In the order of OwnedGradients::flat, then the tail; 0 for NaN and for what is absent.
  std::vector<double> flat(std::int64_t classes) const {
    std::vector<double> all;
    const bool given[] = {
        true,           true, true, scores.with_initial, scores.with_final, scores.with_start,
        scores.with_end};
    for (int kind = 0; kind < 7; ++kind)
      for (const double x : input(scores, kind)) all.push_back(given[kind] ? x : 0.0);
    all.insert(all.end(), tail.begin(), tail.end());
    if (tail.empty()) all.resize(all.size() + static_cast<std::size_t>(classes), 0.0);
    for (double& x : all) x = std::isnan(x) ? 0.0 : x;
    return all;
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// What AlongResult holds, of all a call can compute.
struct OwnedResult {
  std::vector<double> derivative, curvature, tail;
  OwnedGradients<double> product;
  explicit OwnedResult(const Problem<double>& p)
      : derivative(p.B, 777), curvature(p.B, 777), tail(p.C, 777), product(p) {}
  AlongResult<double> view(const Direction<double>& other) {
    return {derivative, curvature, other, product.views(), tail};
  }
  std::vector<double> flat() const {
    std::vector<double> all = product.flat();
    all.insert(all.end(), tail.begin(), tail.end());
    return all;
  }
};

/// Derivatives of the logarithm of a sum over paths: means and covariances of what they count.
struct EnumeratedRow {
  double derivative = 0.0, curvature = 0.0;
  std::vector<double> product;

  EnumeratedRow(const Problem<double>& p, const Problem<double>& wide, std::int64_t b,
                const std::vector<Path>& paths, const std::vector<double>& scores,
                const std::vector<double>& along, const std::vector<double>& other) {
    const double total = log_sum(scores);
    product.assign(along.size(), 0.0);
    double mean = 0.0;
    for (const bool first : {true, false}) {
      for (std::size_t i = 0; i < paths.size() && total > -kInf; ++i) {
        if (scores[i] == -kInf) continue;
        const double probability = std::exp(scores[i] - total);
        const std::vector<double> counts = counts_of(p, wide, {{b, paths[i], 1.0}});
        const double step = dot(counts, along);
        if (first) mean += probability * step;
        for (std::size_t j = 0; j < counts.size() && !first; ++j)
          product[j] += probability * (step - mean) * counts[j];
      }
    }
    derivative = mean;
    curvature = dot(product, other);
  }
};

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted,
                 double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], tolerance) << i;
}

void check_enumerated(bool partial) {
  for_scopes([&](const Problem<double>& p, const OwnedScope& scope, Rng& rng) {
    const Problem<double> wide = wide_problem(p, scope);
    const OwnedDirection along(p, scope, rng), other(p, scope, rng);
    const std::vector<double> v = along.flat(p.C), u = other.flat(p.C);
    const std::vector<double> weights = {1.5, -0.5 + rng.uniform()};
    OwnedResult found(p);
    Inference(1).derivatives_along(p.potentials(), scope.scope(), partial, along.view(),
                                   found.view(other.view()), weights);
    const double tolerance = 30 * rounding(wide);
    std::vector<double> product(v.size(), 0.0);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      EnumeratedRow row(p, wide, b, oracle.paths, oracle.inside, v, u);
      if (partial && oracle.constrained > -kInf) {
        const EnumeratedRow all(p, wide, b, oracle.paths, oracle.scores, v, u);
        row.derivative = all.derivative - row.derivative;
        row.curvature = all.curvature - row.curvature;
        for (std::size_t i = 0; i < v.size(); ++i) row.product[i] = all.product[i] - row.product[i];
      }
      EXPECT_NEAR(found.derivative[b], row.derivative, tolerance);
      EXPECT_NEAR(found.curvature[b], row.curvature, tolerance);
      for (std::size_t i = 0; i < v.size(); ++i) product[i] += weights[b] * row.product[i];
    }
    for (std::int64_t c = 0; c < p.C && scope.tail.empty(); ++c)
      product[product.size() - 1 - c] = 0;
    expect_near(found.flat(), product, tolerance);
  });
}

TEST(Derivatives, OfTheLogPartitionAreEnumeratedCovariances) { check_enumerated(false); }

TEST(Derivatives, OfThePartialLossAreDifferencesOfCovariances) { check_enumerated(true); }

/// Longer rows, where sums go through many boundaries.
TEST(Derivatives, AreDifferencesOfGradients) {
  for (const int option : {0, 1, 2, 3}) {
    Rng rng(40 + static_cast<std::uint64_t>(option));
    auto p = random_problem<double>(2, 60, 5, 6, option % 2 == 1, gaussian, rng);
    OwnedScope scope;
    scope.B = 2, scope.T_ = 60, scope.C = 6;
    if (option >= 2) fill(scope.tail, 6, gaussian, rng);
    const OwnedDirection along(p, scope, rng), other(p, scope, rng);
    OwnedResult found(p);
    Inference inference(2);
    inference.derivatives_along(p.potentials(), scope.scope(), false, along.view(),
                                found.view(other.view()));
    const std::vector<double> v = along.flat(6);
    std::vector<std::vector<double>> ends, values;
    for (const double side : {1e-5, -1e-5}) {
      Problem<double> moved = p;
      OwnedScope moved_scope = scope;
      std::vector<double>* parts[] = {&moved.emission, &moved.transition, &moved.duration,
                                      &moved.initial,  &moved.final,      &moved.start,
                                      &moved.end,      &moved_scope.tail};
      std::size_t at = 0;
      for (std::vector<double>* part : parts)
        for (double& x : *part) x += side * v[at++];
      OwnedGradients<double> gradients(moved);
      std::vector<double> tail(6), value(2);
      inference.log_partition(moved.potentials(), moved_scope.scope(), {value, {}},
                              gradients.views(), tail);
      ends.push_back(gradients.flat());
      ends.back().insert(ends.back().end(), tail.begin(), tail.end());
      values.push_back(value);
    }
    std::vector<double> difference;
    for (std::size_t i = 0; i < ends[0].size(); ++i)
      difference.push_back((ends[0][i] - ends[1][i]) / 2e-5);
    expect_near(found.flat(), difference, 1e-6);
    for (std::size_t b = 0; b < 2; ++b)
      EXPECT_NEAR(found.derivative[b], (values[0][b] - values[1][b]) / 2e-5, 1e-6);
    EXPECT_NEAR(found.curvature[0] + found.curvature[1], dot(difference, other.flat(6)), 1e-5);
  }
}

TEST(Derivatives, LongRowsLoseNothing) {
  // A direction that adds the same to every label changes no posterior: all products are 0, however
  // far the tangents have come; and one more of it changes no product.
  Rng rng(50);
  const auto p = random_problem<double>(1, 20000, 12, 3, false, gaussian, rng);
  const OwnedScope scope;
  OwnedDirection along(p, scope, rng);
  Inference inference(1);
  OwnedResult first(p), second(p), nothing(p);
  inference.derivatives_along(p.potentials(), {}, false, along.view(), first.view({}));
  for (double& x : along.scores.emission) x += 10.0;
  inference.derivatives_along(p.potentials(), {}, false, along.view(), second.view({}));
  EXPECT_NEAR(second.derivative[0] - first.derivative[0], 10.0 * 20000, 1e-6);
  const std::vector<double> a = first.product.emission, b = second.product.emission;
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-10) << i;
  Direction<double> constant;
  const std::vector<double> ones(20000 * 3, 1.0);
  constant.scores.emission = {ones.data(), {1, 20000, 3}};
  inference.derivatives_along(p.potentials(), {}, false, constant, nothing.view({}));
  EXPECT_EQ(nothing.derivative[0], 20000.0);
  for (const double x : nothing.flat()) ASSERT_NEAR(x, 0.0, 1e-8);
}

TEST(Derivatives, SameBitsForAnyThreadsAndAnyBatch) {
  Rng rng(51);
  auto p = random_problem<double>(5, 40, 4, 3, false, holes, rng);
  p.lengths = {40, 0, 17, 39, 1};
  OwnedScope scope;
  fill(scope.tail, 3, gaussian, rng);
  const OwnedDirection along(p, scope, rng), other(p, scope, rng);
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    OwnedResult found(p);
    Inference(threads).derivatives_along(p.potentials(), scope.scope(), false, along.view(),
                                         found.view(other.view()));
    results.push_back(found.flat());
    for (const auto* rows : {&found.derivative, &found.curvature})
      results.back().insert(results.back().end(), rows->begin(), rows->end());
  }
  EXPECT_EQ(0, std::memcmp(results[0].data(), results[1].data(), results[0].size() * 8));
}

TEST(Derivatives, NaNInADirectionReachesWhatItTouches) {
  Rng rng(52);
  const auto p = random_problem<double>(2, 6, 3, 2, false, gaussian, rng);
  OwnedDirection along(p, {}, rng);
  along.scores.emission[5] = kNaN;  // of the first row
  OwnedResult found(p);
  Inference(1).derivatives_along(p.potentials(), {}, false, along.view(), found.view({}));
  EXPECT_TRUE(std::isnan(found.derivative[0]));
  EXPECT_FALSE(std::isnan(found.derivative[1]));
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(found.product.emission[i]), i < 12);
  EXPECT_TRUE(std::isnan(found.product.transition[0]));
}

TEST(Derivatives, WrongDirectionsAreRefused) {
  Rng rng(53);
  const auto p = random_problem<double>(2, 6, 3, 2, false, gaussian, rng);
  const std::vector<double> numbers(64, 0.0);
  Direction<double> shape, tail;
  shape.scores.duration = {numbers.data(), {2, 2}};
  tail.tail = View<const double, 1>(numbers.data(), {2});
  for (const Direction<double>& wrong : {shape, tail})
    EXPECT_THROW(Inference(1).derivatives_along(p.potentials(), {}, false, wrong, {}), UsageError);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
