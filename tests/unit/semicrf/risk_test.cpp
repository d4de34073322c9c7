// Divergences (test 7 of the design), boundaries within a tolerance, and decoders of least risk,
// against the list of all segmentations.

#include <gtest/gtest.h>

#include <numeric>

#include "scopes.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

/// Another model over the frames of p.
Problem<double> partner(const Problem<double>& p, const Draw& draw, Rng& rng) {
  auto q = random_problem<double>(p.B, p.T_, p.K, p.C, p.by_duration, draw, rng);
  q.lengths = p.lengths;
  q.with_initial = rng.below(2) == 0, q.with_start = rng.below(2) == 0;
  return q;
}

TEST(Divergence, Test07IsTheEnumeratedExpectation) {
  int infinite = 0, finite = 0;
  for_scopes([&](const Problem<double>& p, const OwnedScope&, Rng& rng) {
    const std::vector<Draw> draws = {
        gaussian, holes, wide, [](Rng& r) { return r.uniform() < 0.04 ? -kInf : r.normal(); }};
    const Problem<double> q = partner(p, draws[rng.below(draws.size())], rng);
    std::vector<double> cross(p.B), divergence(p.B), self(p.B);
    std::vector<RowStatus> status(p.B);
    Inference inference(1);
    inference.cross_entropy(p.potentials(), q.potentials(), cross, status);
    inference.kl(p.potentials(), q.potentials(), divergence);
    inference.kl(p.potentials(), p.potentials(), self);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const Oracle a(p, b), other(q, b);
      EXPECT_EQ(self[b], 0.0);
      EXPECT_EQ(status[b], a.log_partition == -kInf ? RowStatus::kNoPath : RowStatus::kOk);
      double wanted = 0.0, entropy = 0.0;
      for (std::size_t i = 0; i < a.paths.size(); ++i) {
        if (a.scores[i] == -kInf || other.log_partition == -kInf) {
          if (a.scores[i] > -kInf) wanted = kInf;
          continue;
        }
        // A path of vanishing probability still makes the sum infinite.
        if (other.scores[i] == -kInf) wanted = kInf;
        if (a.probability(i) == 0.0 || wanted == kInf) continue;
        wanted -= a.probability(i) * (other.scores[i] - other.log_partition);
        entropy -= a.probability(i) * (a.scores[i] - a.log_partition);
      }
      if (wanted == kInf) {
        EXPECT_EQ(cross[b], kInf);
        EXPECT_EQ(divergence[b], kInf);
        ++infinite;
        continue;
      }
      const double tolerance = 1e4 * (rounding(p) + rounding(q));
      EXPECT_NEAR(cross[b], wanted, tolerance);
      EXPECT_NEAR(divergence[b], wanted - entropy, tolerance);
      EXPECT_GE(divergence[b], 0.0);
      finite += a.log_partition > -kInf && p.length(b) > 0 ? 1 : 0;
    }
  });
  EXPECT_GT(infinite, 50 / scopes_step());
  EXPECT_GT(finite, 50 / scopes_step());
}

TEST(Divergence, ShapesMustAgree) {
  Rng rng(1);
  const auto p = random_problem<double>(2, 5, 3, 2, false, gaussian, rng);
  auto q = random_problem<double>(2, 5, 2, 2, false, gaussian, rng);
  std::vector<double> out(2);
  Inference inference(1);
  EXPECT_THROW(inference.kl(p.potentials(), q.potentials(), out), UsageError);
  q = p;
  q.lengths = {5, 4};
  EXPECT_THROW(inference.kl(p.potentials(), q.potentials(), out), WrongValue);
}

TEST(Windows, BoundaryWithinIsTheEnumeratedProbability) {
  for_scopes([](const Problem<double>& p, const OwnedScope& scope, Rng&) {
    const Problem<double> wide = wide_problem(p, scope);
    for (const std::int64_t w : {0, 1, 2, 5}) {
      std::vector<double> found(p.B * p.T_, 777), wanted(p.B * p.T_, 0.0);
      Inference(1).boundary_within(p.potentials(), scope.scope(), w,
                                   View<double, 2>(found.data(), {p.B, p.T_}));
      for (std::int64_t b = 0; b < p.B; ++b) {
        const ScopedOracle<double> oracle(wide, b, scope);
        for (std::int64_t t = 0; t < p.length(b); ++t) {
          for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
            const bool near =
                std::any_of(oracle.paths[i].begin(), oracle.paths[i].end(),
                            [&](const Piece& s) { return std::abs(s.start - t) <= w; });
            if (near) wanted[b * p.T_ + t] += oracle.probability_inside(i);
          }
        }
      }
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], wanted[i], 2 * rounding(wide)) << "w " << w << " at " << i;
    }
  });
}

TEST(Windows, GrowWithTheToleranceFromTheBoundaryPosterior) {
  Rng rng(4);
  auto p = random_problem<float>(2, 200, 20, 6, false, gaussian, rng);
  p.lengths = {200, 131};
  std::vector<float> boundary(400), last(400), next(400);
  Posteriors<float> result;
  result.boundary = {boundary.data(), {2, 200}};
  Engine(1).posteriors(p.potentials(), result);
  Inference inference(1);
  for (std::int64_t w = 0; w < 24; ++w) {
    inference.boundary_within(p.potentials(), {}, w, View<float, 2>(next.data(), {2, 200}));
    for (int i = 0; i < 400; ++i) {
      if (w == 0) {
        ASSERT_NEAR(next[i], boundary[i], 1e-6) << i;
      } else {
        ASSERT_GE(next[i], last[i] - 1e-6F) << i;
      }
    }
    last = next;
  }
  // No segment has more than 20 frames, so 39 frames contain a start.
  for (int i = 0; i < 200; ++i) EXPECT_NEAR(last[i], 1.0, 1e-6);
}

TEST(Marginals, ExpectedDurationsAreSummedOverRows) {
  Rng rng(9);
  auto p = random_problem<double>(3, 30, 5, 4, false, gaussian, rng);
  p.lengths = {30, 0, 11};
  std::vector<double> by_row(3 * 5 * 4), total(5 * 4);
  Posteriors<double> result;
  result.duration = {by_row.data(), {3, 5, 4}};
  Engine(1).posteriors(p.potentials(), result);
  Inference(1).expected_durations(p.potentials(), {}, View<double, 2>(total.data(), {5, 4}));
  for (int i = 0; i < 20; ++i)
    EXPECT_NEAR(total[i], by_row[i] + by_row[20 + i] + by_row[40 + i], 1e-12);
}

TEST(Marginals, MaxMarginalIsTheLikeliestLabelOfEachFrame) {
  Rng rng(10);
  auto p = random_problem<double>(2, 40, 5, 7, false, gaussian, rng);
  p.lengths = {40, 13};
  std::vector<double> label(2 * 40 * 7);
  Posteriors<double> result;
  result.label = {label.data(), {2, 40, 7}};
  Engine(1).posteriors(p.potentials(), result);
  std::vector<std::int32_t> found(80, 777);
  Inference(1).max_marginal(p.potentials(), {}, View<std::int32_t, 2>(found.data(), {2, 40}));
  for (std::int64_t i = 0; i < 80; ++i) {
    const auto frame = label.begin() + i * 7;
    const bool padding = i >= 40 + 13;
    EXPECT_EQ(found[i], padding ? -100 : std::max_element(frame, frame + 7) - frame);
  }
  // Everything alike: the smallest label.
  const auto flat = random_problem<double>(1, 6, 3, 3, false, zero, rng);
  std::vector<std::int32_t> labels(6, 777);
  Inference(1).max_marginal(flat.potentials(), {}, View<std::int32_t, 2>(labels.data(), {1, 6}));
  for (int t = 0; t < 6; ++t) EXPECT_GE(labels[t], 0);
}

/// Starts of y that z has within w frames.
double found_by(const Path& z, const Path& y, std::int64_t w) {
  double found = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t j = 0; j < z.size(); ++j)
      if (std::abs(y[i].start - z[j].start) <= w) {
        found += 1.0;
        break;
      }
  return found;
}

TEST(MinimumRisk, NoSegmentationHasABetterExpectedF1) {
  int checked = 0;
  for_scopes([&](const Problem<double>& p, const OwnedScope& scope, Rng& rng) {
    const Problem<double> wide = wide_problem(p, scope);
    const auto w = static_cast<std::int64_t>(rng.below(3));
    Segmentations best;
    std::vector<double> f1(p.B, 777);
    Inference(1).minimum_risk(p.potentials(), scope.scope(), w, best, f1);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      const Path path = unpacked(best, b);
      if (oracle.constrained == -kInf) {
        EXPECT_TRUE(path.empty());
        EXPECT_EQ(f1[b], 0.0);
        continue;
      }
      if (oracle.paths.size() > 1500) continue;
      std::vector<double> label(p.T_ * p.C, 0.0);
      double expected = 0.0;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double probability = oracle.probability_inside(i);
        if (oracle.paths[i].empty() || probability == 0.0) continue;
        expected += probability * static_cast<double>(oracle.paths[i].size());
        for (const auto& [s, d, c] : oracle.paths[i])
          for (std::int64_t t = s; t < s + d; ++t) label[t * p.C + c] += probability;
      }
      const auto f1_of = [&](const Path& z) {
        double found = 0.0;
        for (std::size_t i = 0; i < oracle.paths.size(); ++i)
          if (oracle.probability_inside(i) > 0.0)
            found += oracle.probability_inside(i) * found_by(z, oracle.paths[i], w);
        return z.empty() ? 1.0 : 2.0 * found / (expected + static_cast<double>(z.size()));
      };
      const auto right = [&](const Path& z) {
        double sum = 0.0;
        for (const auto& [s, d, c] : z)
          for (std::int64_t t = s; t < s + d; ++t) sum += label[t * p.C + c];
        return sum;
      };
      const auto starts = [](const Path& z) {
        std::vector<std::int64_t> all;
        for (const Piece& s : z) all.push_back(s.start);
        return all;
      };
      // The path returned is one of those that are possible; none is better.
      const auto self = std::find(oracle.paths.begin(), oracle.paths.end(), path);
      ASSERT_NE(self, oracle.paths.end());
      ASSERT_GT(oracle.inside[self - oracle.paths.begin()], -kInf);
      const double tolerance = 100 * rounding(wide);
      EXPECT_NEAR(f1[b], f1_of(path), tolerance);
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        if (oracle.inside[i] == -kInf) continue;
        ASSERT_LE(f1_of(oracle.paths[i]), f1[b] + tolerance);
        if (starts(oracle.paths[i]) == starts(path)) {
          ASSERT_LE(right(oracle.paths[i]), right(path) + tolerance);
        }
      }
      ++checked;
    }
  });
  EXPECT_GT(checked, 200 / scopes_step());
}

TEST(MinimumRisk, BeatsViterbiOnItsOwnMeasureAtAnySize) {
  Rng rng(12);
  auto p = random_problem<float>(4, 150, 12, 8, false, gaussian, rng);
  p.lengths = {150, 149, 0, 1};
  Segmentations viterbi, best;
  Engine(1).viterbi(p.potentials(), viterbi);
  std::vector<double> f1(4);
  Inference inference(2);
  inference.minimum_risk(p.potentials(), {}, 1, best, f1);
  SegmentationLists drawn;
  inference.sample(p.potentials(), {}, 2000, 3, drawn);
  for (std::int64_t b = 0; b < 2; ++b) {
    double f1_best = 0.0, found[2] = {0, 0}, size = 0.0;
    const Path paths[2] = {unpacked(best, b), unpacked(viterbi, b)};
    for (std::int64_t i = drawn.list_pointer[b]; i < drawn.list_pointer[b + 1]; ++i) {
      const Path y = unpacked(drawn.segmentations, i);
      size += static_cast<double>(y.size()) / 2000;
      for (int k = 0; k < 2; ++k) found[k] += found_by(paths[k], y, 1) / 2000;
    }
    double f1_found[2];
    for (int k = 0; k < 2; ++k)
      f1_found[k] = 2 * found[k] / (size + static_cast<double>(paths[k].size()));
    f1_best = f1_found[0];
    EXPECT_NEAR(f1_best, f1[b], 0.02);
    EXPECT_GT(f1_best, f1_found[1]);
  }
  EXPECT_EQ(f1[2], 1.0);
  EXPECT_NEAR(f1[3], 1.0, 1e-12);
  EXPECT_EQ(unpacked(best, 3).size(), 1u);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
