// Small problems against the list of all segmentations: tests 1 to 5 of the design.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "problems.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

struct Case {
  std::int64_t frames, K, C;
};
const Case kCases[] = {{1, 1, 1}, {2, 3, 2}, {4, 2, 3}, {5, 4, 2}, {6, 3, 2}, {7, 4, 1}, {5, 1, 3}};

/// Runs body(problem, algorithm, seed) over draws, sizes, both transitions and all sets of options.
template <class T, class Body>
void for_problems(const Body& body) {
  std::uint64_t seed = 0;
  for (const Draw& draw : all_draws()) {
    for (const Case& size : kCases) {
      for (int option = 0; option < 8; ++option) {
        Rng rng(++seed);
        const bool by_duration = option % 2 == 1;
        auto p = random_problem<T>(2, size.frames, size.K, size.C, by_duration, draw, rng);
        const std::uint64_t mask = option < 2 ? 15 : rng.below(16);
        p.with_initial = mask & 1, p.with_final = mask & 2;
        p.with_start = mask & 4, p.with_end = mask & 8;
        if (option % 4 >= 2)
          p.lengths = {size.frames, static_cast<std::int64_t>(rng.below(size.frames + 1))};
        for (const Algorithm algorithm : {Algorithm::kFast, Algorithm::kReference}) {
          SCOPED_TRACE(fmt::format("seed {} T {} K {} C {} option {} mask {} algorithm {}", seed,
                                   size.frames, size.K, size.C, option, mask,
                                   static_cast<int>(algorithm)));
          body(p, algorithm, rng);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

template <class T>
class Enumeration : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Enumeration, Types);

TYPED_TEST(Enumeration, Test01LogPartitionIsTheSumOverAllSegmentations) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng&) {
    Engine engine(1, {algorithm});
    std::vector<double> log_partition(p.B);
    std::vector<RowStatus> status(p.B);
    engine.log_partition(p.potentials(), {log_partition, status});
    for (std::int64_t b = 0; b < p.B; ++b) {
      const Oracle oracle(p, b);
      if (oracle.log_partition == -kInf)
        EXPECT_EQ(log_partition[b], -kInf);
      else
        EXPECT_NEAR(log_partition[b], oracle.log_partition, rounding(p));
      EXPECT_EQ(status[b], oracle.log_partition == -kInf ? RowStatus::kNoPath : RowStatus::kOk);
    }
  });
}

TYPED_TEST(Enumeration, Test02ProbabilitiesSumToOneAndNoLossIsNegative) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng&) {
    if (!p.lengths.empty()) return;
    Engine engine(1, {algorithm});
    const Oracle oracle(p, 0);
    if (oracle.log_partition == -kInf || oracle.paths.size() > 700) return;
    auto one = p;
    one.B = 1;
    double total = 0.0;
    std::vector<double> loss(1);
    std::vector<RowStatus> status(1);
    for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
      LossResult result;
      result.loss = loss;
      result.status = status;
      engine.loss(one.potentials(), packed({oracle.paths[i]}), result);
      EXPECT_GE(loss[0], 0.0);
      EXPECT_EQ(status[0] == RowStatus::kImpossibleGold, oracle.scores[i] == -kInf);
      total += std::exp(-loss[0]);
    }
    EXPECT_NEAR(total, 1.0, 1e-9);
  });
}

TYPED_TEST(Enumeration, Test03GoldScoreIsThePathScoreInsideThePartition) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng& rng) {
    Engine engine(1, {algorithm});
    const Segmentations gold = random_gold(p, rng);
    std::vector<double> score(p.B), loss(p.B), log_partition(p.B);
    engine.score(p.potentials(), gold, score);
    for (std::int64_t b = 0; b < p.B; ++b)
      EXPECT_TRUE(score[b] == path_score(p, b, unpacked(gold, b)) ||
                  std::abs(score[b] - path_score(p, b, unpacked(gold, b))) < rounding(p));
    // Other labels and other starts forbidden, a bonus on the gold starts: no other segmentation
    // counts, so the partition is the gold score whatever the scores are.
    auto forced = p;
    forced.with_start = true;
    if (!p.with_start) forced.start.assign(forced.start.size(), 0);
    for (std::int64_t b = 0; b < p.B; ++b) {
      for (std::int64_t i = gold.row_pointer[b]; i < gold.row_pointer[b + 1]; ++i) {
        for (std::int64_t t = gold.start[i]; t < gold.start[i] + gold.duration[i]; ++t) {
          for (std::int64_t c = 0; c < p.C; ++c) {
            const auto at = static_cast<std::size_t>((b * p.T_ + t) * p.C + c);
            if (c != gold.label[i]) forced.emission[at] = static_cast<TypeParam>(-kInf);
            forced.start[at] += static_cast<TypeParam>(t == gold.start[i] ? 1e6 : -kInf);
          }
        }
      }
    }
    LossResult result;
    result.loss = loss, result.log_partition = log_partition, result.score = score;
    engine.loss(forced.potentials(), gold, result);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const double wanted = path_score(forced, b, unpacked(gold, b));
      if (wanted == -kInf) {
        EXPECT_EQ(score[b], -kInf);
        continue;
      }
      EXPECT_LT(relative(score[b], wanted), 1e-14);
      EXPECT_LT(relative(log_partition[b], wanted), 1e-14);
    }
  });
}

/// Expected counts by enumeration, weighted, minus the gold's when given.
template <class T>
std::vector<double> expected_gradient(const Problem<T>& p, const std::vector<double>& weights,
                                      const Segmentations* gold) {
  std::vector<std::vector<double>> parts;
  for (int kind = 0; kind < 7; ++kind) parts.emplace_back(input(p, kind).size(), 0.0);
  for (std::int64_t b = 0; b < p.B; ++b) {
    const Oracle oracle(p, b);
    if (oracle.log_partition == -kInf) continue;
    if (gold && path_score(p, b, unpacked(*gold, b)) == -kInf) continue;
    const auto add = [&](const Path& path, double amount) {
      auto all = p;
      all.with_initial = all.with_final = all.with_start = all.with_end = true;
      for_features<T>(all, b, path, [&](int kind, std::int64_t i) {
        parts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(i)] += amount;
      });
    };
    for (std::size_t i = 0; i < oracle.paths.size(); ++i)
      if (oracle.probability(i) > 0.0) add(oracle.paths[i], weights[b] * oracle.probability(i));
    if (gold) add(unpacked(*gold, b), -weights[b]);
  }
  std::vector<double> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TYPED_TEST(Enumeration, Test04GradientsAreEnumeratedExpectations) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng& rng) {
    const double tolerance = rounding(p) + (sizeof(TypeParam) == 4 ? 4e-6 : 0.0);
    Engine engine(1, {algorithm});
    const Segmentations gold = random_gold(p, rng);
    const std::vector<double> choices[] = {{1.0, 1.0}, {0.0, 2.5}, {-1.5, 0.25}};
    const std::vector<double>& weights = choices[rng.below(3)];
    OwnedGradients<TypeParam> of_partition(p), of_loss(p);
    engine.log_partition(p.potentials(), {}, of_partition.views(), weights);
    engine.loss(p.potentials(), gold, {}, of_loss.views(), weights);
    const std::vector<double> expected[] = {expected_gradient(p, weights, nullptr),
                                            expected_gradient(p, weights, &gold)};
    const std::vector<TypeParam> found[] = {of_partition.flat(), of_loss.flat()};
    for (int call = 0; call < 2; ++call)
      for (std::size_t i = 0; i < expected[call].size(); ++i)
        ASSERT_NEAR(found[call][i], expected[call][i], tolerance) << "call " << call << " at " << i;
  });
}

TEST(EnumerationDouble, Test04GradientsAreCentralDifferences) {
  std::uint64_t seed = 500;
  for (const bool by_duration : {false, true}) {
    for (int round = 0; round < 3; ++round) {
      Rng rng(++seed);
      auto p = random_problem<double>(2, 6, 3, 3, by_duration, gaussian, rng);
      p.lengths = {6, 4};
      const Segmentations gold = random_gold(p, rng);
      const std::vector<double> weights = {0.7, -1.3};
      Engine engine(1);
      OwnedGradients<double> gradients(p);
      engine.loss(p.potentials(), gold, {}, gradients.views(), weights);
      const std::vector<double> flat = gradients.flat();
      std::vector<double> loss(2);
      LossResult result;
      result.loss = loss;
      std::vector<double>* inputs[] = {&p.emission, &p.transition, &p.duration, &p.initial,
                                       &p.final,    &p.start,      &p.end};
      std::size_t at = 0;
      for (std::vector<double>* values : inputs) {
        for (double& value : *values) {
          const double kept = value;
          double difference = 0.0;
          for (const double side : {1e-5, -1e-5}) {
            value = kept + side;
            engine.loss(p.potentials(), gold, result);
            difference += (weights[0] * loss[0] + weights[1] * loss[1]) / (2 * side);
          }
          value = kept;
          ASSERT_NEAR(flat[at], difference, 2e-9) << "input " << at;
          ++at;
        }
      }
    }
  }
}

/// The documented choice among equal paths, from the last segment to the first.
bool comes_first(const Path& a, const Path& b) {
  for (std::size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const Piece& x = a[a.size() - i];
    const Piece& y = b[b.size() - i];
    if (x.duration != y.duration) return x.duration < y.duration;
    if (x.label != y.label) return x.label < y.label;
  }
  return false;
}

TYPED_TEST(Enumeration, Test05ViterbiIsTheBestPathWithTiesByTheRule) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng&) {
    if (algorithm == Algorithm::kReference) return;
    Engine engine(1);
    Segmentations best;
    std::vector<double> score(p.B);
    std::vector<RowStatus> status(p.B);
    engine.viterbi(p.potentials(), best, {score, status});
    ASSERT_EQ(best.rows(), p.B);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const Oracle oracle(p, b);
      const Path path = unpacked(best, b);
      if (oracle.best() == -kInf) {
        EXPECT_EQ(score[b], -kInf);
        EXPECT_TRUE(path.empty());
        EXPECT_EQ(status[b], RowStatus::kNoPath);
        continue;
      }
      EXPECT_EQ(status[b], RowStatus::kOk);
      EXPECT_NEAR(score[b], oracle.best(), rounding(p));
      EXPECT_NEAR(path_score(p, b, path), score[b], rounding(p));
      std::int64_t covered = 0;
      for (const Piece& piece : path) {
        EXPECT_EQ(piece.start, covered);
        covered += piece.duration;
      }
      EXPECT_EQ(covered, p.length(b));
      // Exact sums (integers): the very path. Elsewhere near-ties may fall either way.
      bool exact = true;
      for (int kind = 0; kind < 7; ++kind)
        for (const auto v : input(p, kind)) exact = exact && (v == -kInf || v == std::floor(v));
      if (!exact) continue;
      Path wanted;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i)
        if (oracle.scores[i] == oracle.best() &&
            (wanted.empty() || comes_first(oracle.paths[i], wanted)))
          wanted = oracle.paths[i];
      EXPECT_EQ(path, wanted);
    }
  });
}

TYPED_TEST(Enumeration, PosteriorsAndEntropyAreEnumeratedExpectations) {
  for_problems<TypeParam>([](const auto& p, Algorithm algorithm, Rng&) {
    const double tolerance = rounding(p) + (sizeof(TypeParam) == 4 ? 1e-6 : 0.0);
    Engine engine(1, {algorithm});
    const std::int64_t frames = p.B * p.T_;
    std::vector<TypeParam> label(frames * p.C, 777), start(label), end(label);
    std::vector<TypeParam> boundary(frames, 777), duration(p.B * p.K * p.C, 777);
    std::vector<double> entropy(p.B);
    Posteriors<TypeParam> result;
    result.label = {label.data(), {p.B, p.T_, p.C}};
    result.start = {start.data(), {p.B, p.T_, p.C}};
    result.end = {end.data(), {p.B, p.T_, p.C}};
    result.boundary = {boundary.data(), {p.B, p.T_}};
    result.duration = {duration.data(), {p.B, p.K, p.C}};
    result.entropy = entropy;
    engine.posteriors(p.potentials(), result);
    std::vector<double> e_label(label.size()), e_start(label.size()), e_end(label.size());
    std::vector<double> e_boundary(boundary.size()), e_duration(duration.size());
    Segmentations queries;
    std::vector<double> wanted;
    for (std::int64_t b = 0; b < p.B; ++b) {
      const Oracle oracle(p, b);
      double expected_entropy = 0.0;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double probability = oracle.probability(i);
        if (probability == 0.0) continue;
        expected_entropy -= probability * (oracle.scores[i] - oracle.log_partition);
        for (const auto& [s, d, c] : oracle.paths[i]) {
          const std::int64_t first = b * p.T_ + s;
          for (std::int64_t t = first; t < first + d; ++t) e_label[t * p.C + c] += probability;
          e_start[first * p.C + c] += probability;
          e_end[(first + d - 1) * p.C + c] += probability;
          e_boundary[first] += probability;
          e_duration[(b * p.K + d - 1) * p.C + c] += probability;
        }
      }
      // log p is only good to rounding of the scores, which an entropy weighs with p log p.
      EXPECT_NEAR(entropy[b], expected_entropy, 1e4 * rounding(p));
      for (std::int64_t s = 0; s < p.length(b); ++s) {
        for (std::int64_t d = 1; d <= std::min(p.K, p.length(b) - s); ++d) {
          for (std::int64_t c = 0; c < p.C; ++c) {
            double probability = 0.0;
            for (std::size_t i = 0; i < oracle.paths.size(); ++i)
              for (const Piece& piece : oracle.paths[i])
                if (piece == Piece{s, d, c}) probability += oracle.probability(i);
            queries.append(s, d, c);
            wanted.push_back(probability);
          }
        }
      }
      queries.end_row();
    }
    const auto compare = [&](const auto& found, const std::vector<double>& expected) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], tolerance) << "at " << i;
    };
    compare(label, e_label);
    compare(start, e_start);
    compare(end, e_end);
    compare(boundary, e_boundary);
    compare(duration, e_duration);
    std::vector<double> found(wanted.size(), 777.0);
    engine.segment_posteriors(p.potentials(), queries, found);
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], rounding(p));
  });
}

}  // namespace
}  // namespace segfuse::semicrf::testing
