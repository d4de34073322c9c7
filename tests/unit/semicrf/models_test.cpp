// Duration families, linear chains, and training that recovers durations (test 26 of the design).

#include <gtest/gtest.h>

#include <numeric>

#include "problems.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::semicrf::testing {
namespace {

const DurationFamily kFamilies[] = {
    DurationFamily::kTable,   DurationFamily::kGeometric, DurationFamily::kNegativeBinomial,
    DurationFamily::kPoisson, DurationFamily::kLogNormal, DurationFamily::kBuckets};

struct Durations {
  DurationModel model;
  std::int64_t C;
  std::vector<double> parameters;
  std::int64_t P() const { return duration_parameters(model); }
  std::vector<double> scores() const {
    std::vector<double> out(model.longest * C);
    duration_scores(model, View<const double, 2>(parameters.data(), {P(), C}),
                    View<double, 2>(out.data(), {model.longest, C}));
    return out;
  }
};

TEST(Durations, ScoresAreTheFamiliesLogProbabilities) {
  // One label each; probabilities from the textbook formulas, at q = 0.8, r = 2.5, rate 3, ...
  const std::int64_t K = 60;
  const double q = 0.8, r = 2.5, rate = 3.0, mu = 1.2, sigma = 0.6;
  const double logit = std::log(q / (1 - q));
  const auto one = [&](DurationFamily family, std::vector<double> parameters, std::int64_t d) {
    return std::exp(Durations{{family, K, 8, false}, 1, parameters}.scores()[d - 1]);
  };
  for (std::int64_t d = 1; d <= K; ++d) {
    const auto x = static_cast<double>(d - 1);
    EXPECT_NEAR(one(DurationFamily::kGeometric, {logit}, d), (1 - q) * std::pow(q, x), 1e-14);
    EXPECT_NEAR(one(DurationFamily::kNegativeBinomial, {std::log(r), logit}, d),
                std::exp(std::lgamma(x + r) - std::lgamma(r) - std::lgamma(x + 1)) *
                    std::pow(1 - q, r) * std::pow(q, x),
                1e-13);
    EXPECT_NEAR(one(DurationFamily::kPoisson, {std::log(rate)}, d),
                std::exp(x * std::log(rate) - rate - std::lgamma(x + 1)), 1e-14);
    const double z = (std::log(static_cast<double>(d)) - mu) / sigma;
    EXPECT_NEAR(one(DurationFamily::kLogNormal, {mu, std::log(sigma)}, d),
                std::exp(-0.5 * z * z) / (static_cast<double>(d) * sigma * std::sqrt(2 * M_PI)),
                1e-14);
  }
  // r = 1 is geometric; a large r with the same mean is nearly Poisson.
  EXPECT_NEAR(one(DurationFamily::kNegativeBinomial, {0.0, logit}, 7),
              one(DurationFamily::kGeometric, {logit}, 7), 1e-14);
  EXPECT_NEAR(one(DurationFamily::kNegativeBinomial, {std::log(1e6), std::log(rate / 1e6)}, 4),
              one(DurationFamily::kPoisson, {std::log(rate)}, 4), 1e-5);
}

TEST(Durations, NormalisedScoresAreADistributionProportionalToTheOthers) {
  Rng rng(1);
  for (const DurationFamily family : kFamilies) {
    Durations x{{family, 13, 4, true}, 3, {}};
    fill(x.parameters, x.P() * x.C, gaussian, rng);
    const std::vector<double> normalised = x.scores();
    x.model.normalise = false;
    const std::vector<double> plain = x.scores();
    for (std::int64_t c = 0; c < 3; ++c) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < 13; ++k) {
        sum += std::exp(normalised[k * 3 + c]);
        EXPECT_NEAR(normalised[k * 3 + c] - normalised[c], plain[k * 3 + c] - plain[c], 1e-12);
      }
      EXPECT_NEAR(sum, 1.0, 1e-14);
    }
  }
}

TEST(Durations, GradientsAreCentralDifferences) {
  Rng rng(2);
  for (const DurationFamily family : kFamilies) {
    for (const bool normalise : {false, true}) {
      Durations x{{family, 11, 4, normalise}, 2, {}};
      const std::int64_t P = x.P();
      fill(x.parameters, P * 2, gaussian, rng);
      std::vector<double> g, found(P * 2, 777);
      fill(g, 22, gaussian, rng);
      duration_gradient(x.model, View<const double, 2>(x.parameters.data(), {P, 2}),
                        View<const double, 2>(g.data(), {11, 2}),
                        View<double, 2>(found.data(), {P, 2}));
      for (std::size_t i = 0; i < x.parameters.size(); ++i) {
        const double kept = x.parameters[i];
        double difference = 0.0;
        for (const double side : {1e-5, -1e-5}) {
          x.parameters[i] = kept + side;
          const std::vector<double> scores = x.scores();
          difference += std::inner_product(g.begin(), g.end(), scores.begin(), 0.0) / (2 * side);
        }
        x.parameters[i] = kept;
        EXPECT_NEAR(found[i], difference, 1e-7 * std::max(1.0, std::abs(difference)))
            << static_cast<int>(family) << " " << normalise << " " << i;
      }
    }
  }
}

TEST(Durations, ParametersFarOutStayFinite) {
  for (const DurationFamily family : kFamilies) {
    for (const double far : {-30.0, 30.0, 300.0, 720.0}) {
      if (family == DurationFamily::kLogNormal && far == 720.0) continue;
      Durations x{{family, 50, 6, true}, 1, {}};
      x.parameters.assign(x.P(), far);
      if (family == DurationFamily::kLogNormal) x.parameters[1] = 0.5;
      const std::vector<double> scores = x.scores();
      double sum = 0.0;
      for (const double s : scores) sum += std::exp(s);
      EXPECT_NEAR(sum, 1.0, 1e-12);
      std::vector<double> g(50, 0.0), found(x.P(), 777);
      g[3] = 1.0;
      duration_gradient(x.model, View<const double, 2>(x.parameters.data(), {x.P(), 1}),
                        View<const double, 2>(g.data(), {50, 1}),
                        View<double, 2>(found.data(), {x.P(), 1}));
      for (const double v : found) EXPECT_TRUE(std::isfinite(v));
    }
  }
}

TEST(Durations, BucketsCoverAllDurationsOnce) {
  for (const std::int64_t K : {1, 2, 7, 100, 3000}) {
    for (const std::int64_t n : {1, 3, 16, 5000}) {
      const DurationModel model{DurationFamily::kBuckets, K, n, true};
      const std::vector<std::int64_t> starts = duration_buckets(model);
      EXPECT_EQ(starts.front(), 1);
      EXPECT_LE(starts.back(), K);
      EXPECT_LE(static_cast<std::int64_t>(starts.size()), n);
      for (std::size_t i = 1; i < starts.size(); ++i) EXPECT_GT(starts[i], starts[i - 1]);
      EXPECT_EQ(duration_parameters(model), static_cast<std::int64_t>(starts.size()));
    }
  }
  const std::vector<std::int64_t> starts =
      duration_buckets({DurationFamily::kBuckets, 255, 4, true});
  EXPECT_EQ(starts, (std::vector<std::int64_t>{1, 4, 16, 64}));
}

TEST(Durations, WrongInputIsRefused) {
  std::vector<double> parameters = {0.0, kNaN}, scores(10);
  const View<const double, 2> views[] = {View<const double, 2>(parameters.data(), {1, 2})};
  const View<double, 2> out(scores.data(), {5, 2});
  const DurationModel geometric{DurationFamily::kGeometric, 5, 8, true};
  EXPECT_THROW(duration_scores(geometric, views[0], out), DataError);
  parameters[1] = -kInf;
  EXPECT_THROW(duration_scores(geometric, views[0], out), DataError);
  parameters[1] = 0.0;
  EXPECT_NO_THROW(duration_scores(geometric, views[0], out));
  EXPECT_THROW(duration_scores({DurationFamily::kLogNormal, 5, 8, true}, views[0], out),
               UsageError);
  EXPECT_THROW(duration_parameters({DurationFamily::kGeometric, 0, 8, true}), UsageError);
  const std::vector<double> none(5, -kInf);
  EXPECT_THROW(duration_scores({DurationFamily::kTable, 5, 8, true},
                               View<const double, 2>(none.data(), {5, 1}),
                               View<double, 2>(scores.data(), {5, 1})),
               DataError);
}

/// The forward algorithm of a hidden Markov model, in probabilities.
double forward_probability(const std::vector<double>& start, const std::vector<double>& step,
                           const std::vector<double>& observed, std::int64_t T_, std::int64_t C) {
  std::vector<double> f(C), g(C);
  for (std::int64_t c = 0; c < C; ++c) f[c] = start[c] * observed[c];
  for (std::int64_t t = 1; t < T_; ++t) {
    for (std::int64_t c = 0; c < C; ++c) {
      g[c] = 0.0;
      for (std::int64_t i = 0; i < C; ++i) g[c] += f[i] * step[i * C + c];
      g[c] *= observed[t * C + c];
    }
    std::swap(f, g);
  }
  return std::accumulate(f.begin(), f.end(), 0.0);
}

TEST(LinearChain, Test16IsTheForwardAlgorithm) {
  Rng rng(3);
  const std::int64_t T_ = 12, C = 4;
  std::vector<double> start, step, observed;
  const Draw probability = [](Rng& r) { return 0.05 + r.uniform(); };
  fill(start, C, probability, rng);
  fill(step, C * C, probability, rng);
  fill(observed, T_ * C, probability, rng);
  const auto logs = [](std::vector<double> v) {
    for (double& x : v) x = std::log(x);
    return v;
  };
  const std::vector<double> e = logs(observed), a = logs(step), i = logs(start);
  const LinearChain<double> chain(View<const double, 3>(e.data(), {1, T_, C}),
                                  View<const double, 2>(a.data(), {C, C}), i);
  std::vector<double> z(1);
  Engine engine(1);
  engine.log_partition(chain.potentials(), {z, {}});
  EXPECT_NEAR(z[0], std::log(forward_probability(start, step, observed, T_, C)), 1e-12);
  // A label sequence scores as the product of its factors.
  std::vector<std::int64_t> labels(T_);
  for (std::int64_t& c : labels) c = static_cast<std::int64_t>(rng.below(C));
  double product = start[labels[0]] * observed[labels[0]];
  for (std::int64_t t = 1; t < T_; ++t)
    product *= step[labels[t - 1] * C + labels[t]] * observed[t * C + labels[t]];
  const Segmentations gold =
      chain_from_labels(View<const std::int64_t, 2>(labels.data(), {1, T_}), {}, {.classes = C});
  EXPECT_EQ(gold.segments(), T_);
  std::vector<double> score(1);
  engine.score(chain.potentials(), gold, score);
  EXPECT_NEAR(score[0], std::log(product), 1e-12);
}

TEST(Training, Test26RecoversTheDurationsOfTheModelThatMadeTheData) {
  // Segments of label 0 last about 9 frames, of label 1 about 4. The frames say little; gradient
  // descent on negative-binomial parameters and on a table finds the peaks.
  const std::int64_t K = 24, C = 2, rows = 60, frames = 120;
  Rng rng(26);
  Durations truth{{DurationFamily::kNegativeBinomial, K, 8, true}, C, {}};
  truth.parameters = {std::log(20.0), std::log(20.0), std::log(0.4 / 1.0), std::log(0.15)};
  const std::vector<double> duration = truth.scores();
  const std::vector<double> alternate = {-kInf, 0.0, 0.0, -kInf};
  Segmentations gold;
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < rows; ++b) {
    sample_prior({{},
                  View<const double, 2>(alternate.data(), {C, C}),
                  View<const double, 2>(duration.data(), {K, C})},
                 frames, 7, static_cast<std::uint64_t>(b), gold);
    lengths.push_back(gold.start.back() + gold.duration.back());
  }
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::int32_t> labels(rows * longest);
  labels_from_segmentations(gold, View<std::int32_t, 2>(labels.data(), {rows, longest}));
  std::vector<double> emission(rows * longest * C);
  for (std::size_t i = 0; i < labels.size(); ++i)
    for (std::int64_t c = 0; c < C; ++c)
      emission[i * C + c] = (labels[i] == c ? 0.5 : 0.0) + 0.7 * rng.normal();

  const auto peaks = [&](const std::vector<double>& scores) {
    std::vector<std::int64_t> best(C, 0);
    for (std::int64_t c = 0; c < C; ++c)
      for (std::int64_t k = 0; k < K; ++k)
        if (scores[k * C + c] > scores[best[c] * C + c]) best[c] = k;
    return best;
  };
  std::vector<double> weights(rows, 1.0 / rows);
  Engine engine(1);
  for (const DurationFamily family : {DurationFamily::kNegativeBinomial, DurationFamily::kTable}) {
    Durations learned{{family, K, 8, true}, C, {}};
    learned.parameters.assign(learned.P() * C, 0.0);
    std::vector<double> scores, score_gradient(K * C), step(learned.P() * C), mean(step.size()),
        square(step.size());
    double first = 0.0, last = 0.0;
    for (int iteration = 0; iteration < 150; ++iteration) {
      scores = learned.scores();
      Potentials<double> p;
      p.emission = {emission.data(), {rows, longest, C}};
      p.transition = with_leading_axis(View<const double, 2>(alternate.data(), {C, C}));
      p.duration = {scores.data(), {K, C}};
      p.lengths = View<const std::int64_t, 1>(lengths);
      std::vector<double> loss(rows);
      LossResult result;
      result.loss = loss;
      Gradients<double> gradients;
      gradients.duration = {score_gradient.data(), {K, C}};
      engine.loss(p, gold, result, gradients, weights);
      last = std::accumulate(loss.begin(), loss.end(), 0.0);
      if (iteration == 0) first = last;
      duration_gradient(learned.model,
                        View<const double, 2>(learned.parameters.data(), {learned.P(), C}),
                        View<const double, 2>(score_gradient.data(), {K, C}),
                        View<double, 2>(step.data(), {learned.P(), C}));
      for (std::size_t i = 0; i < step.size(); ++i) {  // Adam
        mean[i] = 0.9 * mean[i] + 0.1 * step[i];
        square[i] = 0.99 * square[i] + 0.01 * step[i] * step[i];
        const double n = iteration + 1;
        learned.parameters[i] -= 0.1 * mean[i] / (1 - std::pow(0.9, n)) /
                                 (std::sqrt(square[i] / (1 - std::pow(0.99, n))) + 1e-9);
      }
    }
    EXPECT_LT(last, 0.8 * first);
    const std::vector<std::int64_t> found = peaks(scores), wanted = peaks(duration);
    for (std::int64_t c = 0; c < C; ++c) EXPECT_LE(std::abs(found[c] - wanted[c]), 1) << c;
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
