// Constraints, partial labels and tails against the list of all segmentations.

#include <gtest/gtest.h>

#include <numeric>

#include "scopes.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(Scope, LogPartitionAndItsGradientsAreEnumerated) {
  for_scopes([](const Problem<double>& p, const OwnedScope& scope, Rng& rng) {
    const Problem<double> wide = wide_problem(p, scope);
    const std::vector<double> weights = {1.5, -0.5 + rng.uniform()};
    std::vector<double> log_partition(p.B), tail(p.C, 777);
    std::vector<RowStatus> status(p.B);
    OwnedGradients<double> gradients(p);
    Inference(1).log_partition(p.potentials(), scope.scope(), {log_partition, status},
                               gradients.views(), tail, weights);
    std::vector<std::tuple<std::int64_t, Path, double>> paths;
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      if (oracle.constrained == -kInf)
        EXPECT_EQ(log_partition[b], -kInf);
      else
        EXPECT_NEAR(log_partition[b], oracle.constrained, rounding(wide));
      EXPECT_EQ(status[b], oracle.constrained == -kInf ? RowStatus::kNoPath : RowStatus::kOk);
      for (std::size_t i = 0; i < oracle.paths.size(); ++i)
        if (oracle.inside[i] > -kInf)
          paths.emplace_back(b, oracle.paths[i], weights[b] * oracle.probability_inside(i));
    }
    const std::vector<double> wanted = counts_of(p, wide, paths);
    std::vector<double> found = gradients.flat();
    found.insert(found.end(), tail.begin(), tail.end());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], i + p.C >= found.size() && scope.tail.empty() ? 0.0 : wanted[i],
                  rounding(wide))
          << i;
  });
}

TEST(Scope, PartialLossIsTheProbabilityOfTheConstraintsAndItsGradients) {
  for_scopes([](const Problem<double>& p, const OwnedScope& scope, Rng&) {
    const Problem<double> wide = wide_problem(p, scope);
    const std::vector<double> weights = {0.75, 2.0};
    std::vector<double> loss(p.B), score(p.B), tail(p.C, 777);
    std::vector<RowStatus> status(p.B);
    OwnedGradients<double> gradients(p);
    LossResult result;
    result.loss = loss, result.score = score, result.status = status;
    Inference(1).partial_loss(p.potentials(), scope.scope(), result, gradients.views(), tail,
                              weights);
    std::vector<std::tuple<std::int64_t, Path, double>> paths;
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      if (oracle.constrained == -kInf) {
        EXPECT_EQ(loss[b], kInf);
        EXPECT_EQ(status[b],
                  oracle.log_partition == -kInf ? RowStatus::kNoPath : RowStatus::kImpossibleGold);
        continue;
      }
      EXPECT_GE(loss[b], 0.0);
      EXPECT_NEAR(loss[b], oracle.log_partition - oracle.constrained, 2 * rounding(wide));
      EXPECT_NEAR(score[b], oracle.constrained, rounding(wide));
      for (std::size_t i = 0; i < oracle.paths.size(); ++i)
        if (oracle.scores[i] > -kInf)
          paths.emplace_back(b, oracle.paths[i],
                             weights[b] * (oracle.probability(i) - oracle.probability_inside(i)));
    }
    const std::vector<double> wanted = counts_of(p, wide, paths);
    std::vector<double> found = gradients.flat();
    found.insert(found.end(), tail.begin(), tail.end());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], i + p.C >= found.size() && scope.tail.empty() ? 0.0 : wanted[i],
                  2 * rounding(wide))
          << i;
  });
}

TEST(Scope, PosteriorsAndEntropyAreEnumeratedExpectations) {
  for_scopes([](const Problem<double>& p, const OwnedScope& scope, Rng&) {
    const Problem<double> wide = wide_problem(p, scope);
    std::vector<double> label(p.B * p.T_ * p.C, 777), boundary(p.B * p.T_, 777), entropy(p.B, 777);
    std::vector<double> duration(p.B * p.K * p.C, 777);
    Posteriors<double> result;
    result.label = {label.data(), {p.B, p.T_, p.C}};
    result.boundary = {boundary.data(), {p.B, p.T_}};
    result.duration = {duration.data(), {p.B, p.K, p.C}};
    result.entropy = entropy;
    Inference(1).posteriors(p.potentials(), scope.scope(), result);
    std::vector<double> e_label(label.size()), e_boundary(boundary.size()), e_entropy(p.B);
    std::vector<double> e_duration(duration.size());
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double probability = oracle.probability_inside(i);
        if (probability == 0.0) continue;
        e_entropy[b] -= probability * (oracle.inside[i] - oracle.constrained);
        for (const auto& [s, d, c] : oracle.paths[i]) {
          for (std::int64_t t = s; t < s + d; ++t) e_label[(b * p.T_ + t) * p.C + c] += probability;
          e_boundary[b * p.T_ + s] += probability;
          e_duration[(b * p.K + std::min(d, p.K) - 1) * p.C + c] += probability;
        }
      }
      EXPECT_NEAR(entropy[b], e_entropy[b], 1e4 * rounding(wide));
    }
    for (std::size_t i = 0; i < label.size(); ++i)
      ASSERT_NEAR(label[i], e_label[i], rounding(wide));
    for (std::size_t i = 0; i < boundary.size(); ++i)
      ASSERT_NEAR(boundary[i], e_boundary[i], rounding(wide));
    for (std::size_t i = 0; i < duration.size(); ++i)
      ASSERT_NEAR(duration[i], e_duration[i], rounding(wide));
  });
}

TEST(Scope, ConstrainedPotentialsGiveTheEngineTheSameModel) {
  for_scopes([](const Problem<double>& p, const OwnedScope&, Rng& rng) {
    const OwnedScope scope = random_scope(p, rng, false);
    const ConstrainedPotentials<double> constrained(p.potentials(), scope.scope().constraints);
    std::vector<double> engine(p.B), inference(p.B);
    Engine(1).log_partition(constrained.potentials(), {engine, {}});
    Inference(1).log_partition(p.potentials(), scope.scope(), {inference, {}});
    for (std::int64_t b = 0; b < p.B; ++b) {
      if (inference[b] == -kInf)
        EXPECT_EQ(engine[b], -kInf);
      else
        EXPECT_NEAR(engine[b], inference[b], rounding(p));
    }
  });
}

TEST(Scope, KnowingEveryFrameIsTheOrdinaryLoss) {
  Rng rng(1);
  auto p = random_problem<float>(3, 50, 7, 10, false, gaussian, rng);
  p.lengths = {50, 1, 33};
  const Segmentations gold = random_gold(p, rng);
  const KnownFrames known(gold, p.T_);
  std::vector<double> wanted(3), found(3);
  LossResult result;
  result.loss = wanted;
  OwnedGradients<float> a(p), b(p);
  Engine(1).loss(p.potentials(), gold, result, a.views());
  result.loss = found;
  Inference(2).partial_loss(p.potentials(), {known.constraints(), {}}, result, b.views());
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-10);
  const std::vector<float> x = a.flat(), y = b.flat();
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-6);
}

TEST(Scope, GradientsAreCentralDifferencesWithATail) {
  for (const bool by_duration : {false, true}) {
    Rng rng(by_duration ? 31 : 30);
    auto p = random_problem<double>(2, 9, 2, 3, by_duration, gaussian, rng);
    OwnedScope scope;
    scope.B = 2, scope.T_ = 9, scope.C = 3;
    fill(scope.tail, 3, gaussian, rng);
    scope.boundary.assign(18, -1);
    scope.boundary[4] = 1, scope.boundary[15] = 0;
    std::vector<double> loss(2), tail(3);
    LossResult result;
    result.loss = loss;
    OwnedGradients<double> gradients(p);
    Inference inference(1);
    inference.partial_loss(p.potentials(), scope.scope(), result, gradients.views(), tail);
    std::vector<double> flat = gradients.flat();
    flat.insert(flat.end(), tail.begin(), tail.end());
    std::vector<double>* inputs[] = {&p.emission, &p.transition, &p.duration, &p.initial,
                                     &p.final,    &p.start,      &p.end,      &scope.tail};
    std::size_t at = 0;
    for (std::vector<double>* values : inputs) {
      for (double& value : *values) {
        const double kept = value;
        double difference = 0.0;
        for (const double side : {1e-5, -1e-5}) {
          value = kept + side;
          inference.partial_loss(p.potentials(), scope.scope(), result);
          difference += (loss[0] + loss[1]) / (2 * side);
        }
        value = kept;
        ASSERT_NEAR(flat[at], difference, 2e-9) << "input " << at;
        ++at;
      }
    }
  }
}

TEST(Scope, ATailOfNothingIsTheEngineAtAnySize) {
  Rng sizes(5);
  const std::vector<Draw> draws = {gaussian, holes, [](Rng& r) { return 300.0 * r.normal(); },
                                   [](Rng& r) { return r.uniform() < 0.2 ? -2000.0 : r.normal(); },
                                   extreme};
  for (int round = 0; round < 20; ++round) {
    Rng rng(700 + static_cast<std::uint64_t>(round));
    const auto pick = [&](std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + sizes.below(limit));
    };
    const bool by_duration = round % 4 == 3;  // costs T K C^2
    const std::uint64_t most = by_duration ? 12 : 40;
    auto p = random_problem<double>(2, pick(150), pick(most), pick(most), by_duration,
                                    draws[round % draws.size()], rng);
    std::vector<double> a(2), b(2);
    OwnedGradients<double> x(p), y(p);
    Engine(1).log_partition(p.potentials(), {a, {}}, x.views());
    const std::vector<double> none(p.C, -kInf);
    Inference(1).log_partition(p.potentials(), {{}, none}, {b, {}}, y.views());
    for (int i = 0; i < 2; ++i) EXPECT_LT(relative(a[i], b[i]), 1e-13);
    const std::vector<double> u = x.flat(), v = y.flat();
    const double tolerance = 100 * rounding(p);
    for (std::size_t i = 0; i < u.size(); ++i) ASSERT_NEAR(u[i], v[i], tolerance) << round;
  }
}

TEST(Scope, LongRowsLoseNothing) {
  // Offsets of +-10 per frame change no posterior; a long row's posteriors sum to 1.
  Rng rng(6);
  auto p = random_problem<double>(1, 20000, 12, 3, false, gaussian, rng);
  auto shifted = p;
  for (std::int64_t t = 0; t < p.T_; ++t)
    for (std::int64_t c = 0; c < 3; ++c) shifted.emission[t * 3 + c] += 10.0;
  const std::vector<double> tail = {-1.0, -0.5, -2.0};
  std::vector<double> first(p.T_ * 3), second(p.T_ * 3), z(1), z_shifted(1);
  for (auto [problem, label, total] :
       {std::tuple(&p, &first, &z), std::tuple(&shifted, &second, &z_shifted)}) {
    Posteriors<double> result;
    result.label = {label->data(), {1, p.T_, 3}};
    result.log_partition = *total;
    Inference(1).posteriors(problem->potentials(), {{}, tail}, result);
  }
  EXPECT_NEAR(z_shifted[0] - z[0], 10.0 * static_cast<double>(p.T_), 1e-7);
  for (std::int64_t t = 0; t < p.T_; ++t)
    ASSERT_NEAR(first[t * 3] + first[t * 3 + 1] + first[t * 3 + 2], 1.0, 1e-10);
  for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(first[i], second[i], 1e-9);
}

TEST(Scope, SameBitsForAnyThreadsAndAnyBatch) {
  Rng rng(8);
  auto p = random_problem<float>(5, 40, 6, 9, false, gaussian, rng);
  p.lengths = {40, 3, 0, 17, 29};
  std::vector<double> one(5), four(5);
  OwnedGradients<float> a(p), b(p);
  const std::vector<double> tail(9, -0.5);
  Inference(1).log_partition(p.potentials(), {{}, tail}, {one, {}}, a.views());
  Inference(4).log_partition(p.potentials(), {{}, tail}, {four, {}}, b.views());
  EXPECT_EQ(one, four);
  EXPECT_EQ(a.flat(), b.flat());
  // Whether another row has a known boundary does not change the algorithm.
  OwnedScope scope;
  scope.B = 5, scope.T_ = 40, scope.C = 9;
  scope.boundary.assign(200, -1);
  std::vector<double> without(5), with(5);
  Inference(1).log_partition(p.potentials(), scope.scope(), {without, {}});
  scope.boundary[7] = 1;
  Inference(1).log_partition(p.potentials(), scope.scope(), {with, {}});
  EXPECT_NE(without[0], with[0]);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(without[i], with[i]);
}

TEST(Scope, WrongConstraintsAreRefused) {
  Rng rng(2);
  const auto p = random_problem<double>(1, 4, 2, 2, false, gaussian, rng);
  Inference inference(1);
  OwnedScope scope;
  scope.B = 1, scope.T_ = 4, scope.C = 2;
  const auto run = [&] { inference.log_partition(p.potentials(), scope.scope(), {}); };
  scope.label = {0, -1, 2, 0};
  EXPECT_THROW(run(), DataError);
  scope.label.clear();
  scope.boundary = {1, 2, -1, 0};
  EXPECT_THROW(run(), DataError);
  scope.boundary = {1, 1, -1, 0};
  EXPECT_THROW(ConstrainedPotentials<double>(p.potentials(), scope.scope().constraints),
               UsageError);
  scope.boundary.clear();
  scope.tail = {0.0, kNaN};
  EXPECT_THROW(run(), DataError);
  scope.tail = {0.0, -1.0};
  scope.min_duration = {1, 3};
  EXPECT_THROW(run(), WrongValue);
  scope.tail = {0.0};
  EXPECT_THROW(run(), UsageError);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
