// Awkward sizes, special cases with their own simple algorithms, and agreement of the algorithms:
// tests 16 to 18 of the design.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "outcome.h"
#include "problems.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(Sizes, Test16EveryNumberOfClasses) {
  for (const std::int64_t C : {1, 3, 8, 24, 31, 32, 33, 39, 64, 65, 200}) {
    SCOPED_TRACE(C);
    Rng rng(static_cast<std::uint64_t>(C));
    const auto p = random_problem<double>(1, 12, 5, C, false, gaussian, rng);
    expect_same(p, random_gold(p, rng), 1e-11);
    expect_same(p.to<float>(), random_gold(p, rng), 2e-6);
  }
}

TEST(Sizes, Test16DurationsAroundTheLength) {
  for (const std::int64_t frames : {1, 2, 3, 7, 30}) {
    for (const std::int64_t K :
         {std::int64_t{1}, std::int64_t{2}, frames - 1, frames, frames + 1, frames + 40}) {
      if (K < 1) continue;
      SCOPED_TRACE(fmt::format("T {} K {}", frames, K));
      Rng rng(static_cast<std::uint64_t>(100 * frames + K));
      const auto p = random_problem<double>(2, frames, K, 4, false, gaussian, rng);
      expect_same(p, random_gold(p, rng), 1e-11);
    }
  }
}

TEST(Sizes, Test16AnEmptyRowHasTheEmptySegmentation) {
  for (const Algorithm algorithm : {Algorithm::kFast, Algorithm::kReference}) {
    Rng rng(3);
    auto p = random_problem<double>(2, 5, 3, 2, false, gaussian, rng);
    p.lengths = {0, 0};
    Segmentations gold;
    gold.end_row(), gold.end_row();
    Outcome<double> run(p, gold, algorithm);
    EXPECT_EQ(run.log_partition, (std::vector<double>{0.0, 0.0}));
    EXPECT_EQ(run.loss, (std::vector<double>{0.0, 0.0}));
    EXPECT_EQ(run.status[0], RowStatus::kOk);
    for (const double g : run.gradients.flat()) EXPECT_EQ(g, 0.0);
    Segmentations best;
    std::vector<double> score(2, 777);
    Engine(1).viterbi(p.potentials(), best, {score, {}});
    EXPECT_EQ(best, gold);
    EXPECT_EQ(score, (std::vector<double>{0.0, 0.0}));
  }
  // No frames at all, and no rows at all.
  Rng rng(4);
  for (const std::int64_t B : {0, 3}) {
    const auto p = random_problem<float>(B, 0, 3, 2, false, gaussian, rng);
    OwnedGradients<float> gradients(p);
    std::vector<double> log_partition(B, 777);
    Engine(1).log_partition(p.potentials(), {log_partition, {}}, gradients.views());
    for (const double v : log_partition) EXPECT_EQ(v, 0.0);
    for (const float g : gradients.flat()) EXPECT_EQ(g, 0.0f);
  }
}

/// A linear-chain CRF by the textbook: scores u[t][c] and A[c'][c], no segments anywhere.
struct LinearChain {
  double log_partition;
  std::vector<double> marginal;
  LinearChain(const std::vector<double>& u, const std::vector<double>& A, std::int64_t T_,
              std::int64_t C) {
    std::vector<double> f(T_ * C), g(T_ * C, 0.0), terms(C);
    for (std::int64_t t = 0; t < T_; ++t) {
      for (std::int64_t c = 0; c < C; ++c) {
        for (std::int64_t i = 0; i < C; ++i)
          terms[i] = t == 0 ? (i == 0 ? 0.0 : -kInf) : f[(t - 1) * C + i] + A[i * C + c];
        f[t * C + c] = u[t * C + c] + log_sum(terms);
      }
    }
    for (std::int64_t t = T_ - 2; t >= 0; --t) {
      for (std::int64_t i = 0; i < C; ++i) {
        for (std::int64_t c = 0; c < C; ++c)
          terms[c] = A[i * C + c] + u[(t + 1) * C + c] + g[(t + 1) * C + c];
        g[t * C + i] = log_sum(terms);
      }
    }
    log_partition = log_sum({f.end() - C, f.end()});
    for (std::int64_t i = 0; i < T_ * C; ++i)
      marginal.push_back(std::exp(f[i] + g[i] - log_partition));
  }
};

TEST(Sizes, Test16OneFrameSegmentsAreALinearChain) {
  Rng rng(5);
  const std::int64_t frames = 25, C = 6;
  const auto p = random_problem<double>(1, frames, 1, C, false, gaussian, rng);
  std::vector<double> u = p.emission;
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t c = 0; c < C; ++c) {
      const std::int64_t at = t * C + c;
      u[at] += p.start[at] + p.end[at] + p.duration[c] + (t == 0 ? p.initial[c] : 0.0) +
               (t + 1 == frames ? p.final[c] : 0.0);
    }
  }
  const LinearChain chain(u, p.transition, frames, C);
  std::vector<double> log_partition(1);
  OwnedGradients<double> gradients(p);
  Engine(1).log_partition(p.potentials(), {log_partition, {}}, gradients.views());
  EXPECT_LT(relative(log_partition[0], chain.log_partition), 1e-13);
  for (std::size_t i = 0; i < chain.marginal.size(); ++i)
    EXPECT_NEAR(gradients.emission[i], chain.marginal[i], 1e-12);
}

TEST(Sizes, Test17EqualSlicesAreOneStaticTransition) {
  Rng rng(6);
  auto p = random_problem<double>(2, 14, 4, 5, false, gaussian, rng);
  auto q = p;
  q.by_duration = true;
  for (std::int64_t k = 1; k < p.K; ++k)
    q.transition.insert(q.transition.end(), p.transition.begin(), p.transition.end());
  const Segmentations gold = random_gold(p, rng);
  const Outcome<double> one(p, gold, Algorithm::kFast), many(q, gold, Algorithm::kFast);
  for (int b = 0; b < 2; ++b) EXPECT_NEAR(one.loss[b], many.loss[b], 1e-12);
  for (std::size_t i = 0; i < p.emission.size(); ++i)
    EXPECT_NEAR(one.gradients.emission[i], many.gradients.emission[i], 1e-12);
  for (std::int64_t i = 0; i < p.C * p.C; ++i) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < p.K; ++k) sum += many.gradients.transition[k * p.C * p.C + i];
    EXPECT_NEAR(one.gradients.transition[i], sum, 1e-12);
  }
  Segmentations a, b;
  Engine engine(1);
  engine.viterbi(p.potentials(), a);
  engine.viterbi(q.potentials(), b);
  EXPECT_EQ(a, b);
}

TEST(Sizes, Test17RowDMinusOneIsDurationDEverywhere) {
  // Only duration d is allowed: every part of the library must find segments of exactly d frames,
  // with transition slice d-1 where transitions depend on duration.
  const std::int64_t K = 4, C = 2, frames = 12;
  for (const bool by_duration : {false, true}) {
    for (const std::int64_t d : {1, 2, 3, 4}) {
      Rng rng(7);
      auto p = random_problem<double>(1, frames, K, C, by_duration, zero, rng);
      for (std::int64_t k = 0; k < K; ++k)
        for (std::int64_t c = 0; c < C; ++c) p.duration[k * C + c] = k == d - 1 ? 0.5 : -kInf;
      for (std::int64_t k = 0; by_duration && k < K; ++k)
        std::fill_n(p.transition.begin() + k * C * C, C * C, k == d - 1 ? 0.25 : -100.0);
      const auto segments = static_cast<double>(frames / d);
      const double wanted =
          segments * (std::log(2.0) + 0.5) + (by_duration ? 0.25 * (segments - 1) : 0);
      Segmentations best;
      Engine engine(1);
      std::vector<double> score(1);
      engine.viterbi(p.potentials(), best, {score, {}});
      ASSERT_EQ(best.segments(), frames / d);
      for (const std::int32_t found : best.duration) EXPECT_EQ(found, d);
      for (const Algorithm algorithm : {Algorithm::kFast, Algorithm::kReference}) {
        const Outcome<double> run(p, best, algorithm);
        EXPECT_NEAR(run.log_partition[0], wanted, 1e-12);
        EXPECT_NEAR(run.loss[0], segments * std::log(2.0), 1e-12);
        std::vector<double> counts(K * C);
        Posteriors<double> posteriors;
        posteriors.duration = {counts.data(), {1, K, C}};
        Engine(1, {algorithm}).posteriors(p.potentials(), posteriors);
        for (std::int64_t k = 0; k < K; ++k)
          EXPECT_NEAR(counts[k * C] + counts[k * C + 1], k == d - 1 ? segments : 0.0, 1e-12);
      }
      auto wrong = best;
      if (d < K) {
        wrong.clear();
        wrong.append(0, d + 1, 0);
        for (std::int64_t t = d + 1; t < frames; ++t) wrong.append(t, 1, 0);
        wrong.end_row();
        engine.score(p.potentials(), wrong, score);
        EXPECT_EQ(score[0], -kInf);
      }
    }
  }
}

TEST(Sizes, Test18FastEqualsReferenceOnRandomSizes) {
  Rng sizes(8);
  const std::vector<Draw> draws = all_draws();
  for (int round = 0; round < 60; ++round) {
    Rng rng(1000 + static_cast<std::uint64_t>(round));
    const auto pick = [&](std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + sizes.below(limit));
    };
    const std::int64_t B = pick(3), frames = pick(40), K = pick(12), C = pick(20);
    auto p = random_problem<double>(B, frames, K, C, false, draws[round % draws.size()], rng);
    SCOPED_TRACE(fmt::format("round {} B {} T {} K {} C {}", round, B, frames, K, C));
    p.with_start = round % 3 != 0, p.with_end = round % 4 != 0;
    for (std::int64_t b = 0; b < B; ++b)
      p.lengths.push_back(static_cast<std::int64_t>(sizes.below(frames + 1)));
    expect_same(p, random_gold(p, rng), 10 * rounding(p));
  }
}

TEST(Sizes, Test18ScoresFarBeyondTheLinearRange) {
  // Scores of many hundreds per frame: windows and transitions leave the range of doubles, so the
  // log-domain side has to step in, and forbidden labels empty windows half-way.
  const std::vector<Draw> draws = {
      [](Rng& r) { return 300.0 * r.normal(); },
      [](Rng& r) { return r.uniform() < 0.3 ? -kInf : 700.0 * r.normal(); },
      [](Rng& r) { return 1e4 * r.normal(); },
      [](Rng& r) { return r.uniform() < 0.02 ? -2000.0 : r.normal(); },
  };
  for (std::size_t i = 0; i < draws.size(); ++i) {
    SCOPED_TRACE(i);
    Rng rng(2000 + i);
    const auto p = random_problem<double>(2, 120, 15, 9, false, draws[i], rng);
    expect_same(p, random_gold(p, rng), 100 * rounding(p));
  }
}

TEST(Sizes, Test18ForbiddenBestPairsOfTransitions) {
  // Emissions want label 0, then 1; going from 0 to 1 is nearly or wholly forbidden.
  for (const double score : {-3000.0, -kInf}) {
    Rng rng(9);
    auto p = random_problem<double>(1, 30, 6, 3, false, gaussian, rng);
    for (std::int64_t t = 0; t < 30; ++t) p.emission[t * 3 + (t < 15 ? 0 : 1)] += 500.0;
    p.transition[0 * 3 + 1] = score;
    p.duration.assign(18, -kInf);
    for (int c = 0; c < 3; ++c) p.duration[2 * 3 + c] = 0.0;  // only three frames: 15 is a boundary
    expect_same(p, random_gold(p, rng), 1e-9);
  }
}

TEST(Sizes, Test18SharpDurations) {
  // Duration scores that span more than the range of doubles, with the likely ones long.
  Rng rng(10);
  auto p = random_problem<double>(1, 90, 20, 5, false, gaussian, rng);
  for (std::int64_t k = 0; k < 20; ++k)
    for (int c = 0; c < 5; ++c)
      p.duration[k * 5 + c] = -100.0 * static_cast<double>(19 - k) + rng.normal();
  expect_same(p, random_gold(p, rng), 1e-9);
  for (std::int64_t k = 0; k < 20; ++k)
    for (int c = 0; c < 5; ++c)
      if (k < 12) p.duration[k * 5 + c] = -kInf;
  expect_same(p, random_gold(p, rng), 1e-9);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
