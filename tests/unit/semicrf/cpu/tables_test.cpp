// Tables of segment scores and of transitions by time, against the list of all segmentations.

#include "tables.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "segfuse/semicrf_tools.h"

namespace segfuse::semicrf::testing {
namespace {

const TableSize kSizes[] = {{1, 1, 1}, {1, 3, 2}, {2, 4, 2}, {4, 2, 3},
                            {5, 4, 2}, {6, 3, 2}, {5, 7, 2}, {5, 1, 3}};

/// Runs body(problem, algorithm, rng) over draws, sizes, kinds of transitions and tables, lengths.
template <class T, class Body>
void for_tables(const Body& body) {
  std::uint64_t seed = 9000;
  for (const Draw& draw : all_draws()) {
    for (const TableSize& size : kSizes) {
      for (int option = 0; option < 8; ++option) {
        Rng rng(++seed);
        auto base = random_problem<T>(2, size.frames, size.K, size.C, option % 2 == 1, draw, rng);
        const std::uint64_t mask = option < 2 ? 15 : rng.below(16);
        base.with_initial = mask & 1, base.with_final = mask & 2;
        base.with_start = mask & 4, base.with_end = mask & 8;
        if (option % 4 >= 2)
          base.lengths = {size.frames, static_cast<std::int64_t>(rng.below(size.frames + 1))};
        const auto changes = static_cast<Changes>((option / 2 + option) % 3);
        const bool with_segments = changes == Changes::kNone || option % 4 != 1;
        const auto p = random_tables<T>(base, with_segments, changes, draw, rng);
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
class Tables : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Tables, Types);

TYPED_TEST(Tables, LogPartitionScoreAndLossAreThoseOfTheListOfAllSegmentations) {
  for_tables<TypeParam>([](const auto& p, Algorithm algorithm, Rng& rng) {
    Engine engine(1, {algorithm});
    const Segmentations gold = random_gold(p.base, rng);
    std::vector<double> loss(2), log_partition(2), score(2), alone(2);
    std::vector<RowStatus> status(2);
    engine.loss(p.potentials(), gold, {loss, log_partition, score, status});
    engine.score(p.potentials(), gold, alone);
    for (std::int64_t b = 0; b < 2; ++b) {
      const TableOracle oracle(p, b);
      const double wanted = p.score(b, unpacked(gold, b));
      EXPECT_EQ(score[b], alone[b]);
      if (wanted == -kInf)
        EXPECT_EQ(score[b], -kInf);
      else
        EXPECT_NEAR(score[b], wanted, rounding(p));
      if (oracle.log_partition == -kInf) {
        EXPECT_EQ(log_partition[b], -kInf);
        EXPECT_EQ(status[b], RowStatus::kNoPath);
        continue;
      }
      EXPECT_NEAR(log_partition[b], oracle.log_partition, rounding(p));
      EXPECT_EQ(status[b], wanted == -kInf ? RowStatus::kImpossibleGold : RowStatus::kOk);
      if (wanted == -kInf) continue;
      EXPECT_NEAR(loss[b], oracle.log_partition - wanted, 2 * rounding(p));
    }
  });
}

TYPED_TEST(Tables, GradientsAreExpectationsOverTheList) {
  for_tables<TypeParam>([](const auto& p, Algorithm algorithm, Rng& rng) {
    const double tolerance = rounding(p) + (sizeof(TypeParam) == 4 ? 4e-6 : 0.0);
    Engine engine(1, {algorithm});
    const Segmentations gold = random_gold(p.base, rng);
    const std::vector<double> choices[] = {{1.0, 1.0}, {0.0, 2.5}, {-1.5, 0.25}};
    const std::vector<double>& weights = choices[rng.below(3)];
    TableGradientsOwned<TypeParam> of_partition(p), of_loss(p);
    engine.log_partition(p.potentials(), {}, of_partition.views(p), weights);
    engine.loss(p.potentials(), gold, {}, of_loss.views(p), weights);
    for (const bool loss : {false, true}) {
      const auto expected = expected_parts(p, weights, loss ? &gold : nullptr);
      const auto found = (loss ? of_loss : of_partition).parts();
      for (std::size_t part = 0; part < expected.size(); ++part) {
        ASSERT_EQ(found[part].second.size(), expected[part].size());
        for (std::size_t i = 0; i < expected[part].size(); ++i)
          ASSERT_NEAR(found[part].second[i], expected[part][i], tolerance)
              << found[part].first << " at " << i << " of the " << (loss ? "loss" : "partition");
      }
    }
    // A gradient that is requested alone is the same.
    TableGradientsOwned<TypeParam> alone(p);
    Gradients<TypeParam> only;
    only.segment_scores = alone.views(p).segment_scores;
    only.transition_scores = alone.views(p).transition_scores;
    engine.loss(p.potentials(), gold, {}, only, weights);
    EXPECT_EQ(alone.segments, of_loss.segments);
    EXPECT_EQ(alone.pairs, of_loss.pairs);
  });
}

TYPED_TEST(Tables, TheBestPathsAreTheBestOfTheList) {
  for_tables<TypeParam>([](const auto& p, Algorithm algorithm, Rng&) {
    if (algorithm == Algorithm::kReference) return;
    Engine engine(1);
    Inference inference(1);
    Segmentations best;
    std::vector<double> score(2);
    engine.viterbi(p.potentials(), best, {score, {}});
    SegmentationLists lists;
    inference.k_best(p.potentials(), {}, 3, lists);
    for (std::int64_t b = 0; b < 2; ++b) {
      TableOracle oracle(p, b);
      const Path path = unpacked(best, b);
      const std::int64_t first = lists.list_pointer[b];
      const double wanted = *std::max_element(oracle.scores.begin(), oracle.scores.end());
      if (wanted == -kInf) {
        EXPECT_TRUE(path.empty());
        EXPECT_EQ(score[b], -kInf);
        EXPECT_EQ(lists.list_pointer[b + 1], first);
        continue;
      }
      EXPECT_NEAR(score[b], wanted, rounding(p));
      EXPECT_NEAR(p.score(b, path), wanted, rounding(p));
      EXPECT_EQ(path, unpacked(lists.segmentations, first));
      std::sort(oracle.scores.rbegin(), oracle.scores.rend());
      for (std::int64_t i = first; i < lists.list_pointer[b + 1]; ++i)
        EXPECT_NEAR(lists.score[i], oracle.scores[i - first], rounding(p));
    }
  });
}

TYPED_TEST(Tables, PosteriorsAreThoseOfTheList) {
  for_tables<TypeParam>([](const auto& p, Algorithm algorithm, Rng& rng) {
    const double tolerance = rounding(p) + (sizeof(TypeParam) == 4 ? 4e-6 : 0.0);
    const Problem<TypeParam>& q = p.base;
    Engine engine(1, {algorithm});
    const auto frames = static_cast<std::size_t>(q.B * q.T_ * q.C);
    std::vector<TypeParam> label(frames, 7), start(frames, 7), end(frames, 7);
    std::vector<TypeParam> duration(static_cast<std::size_t>(q.B * q.K * q.C), 7);
    std::vector<double> entropy(2);
    Posteriors<TypeParam> result;
    result.label = {label.data(), {q.B, q.T_, q.C}};
    result.start = {start.data(), {q.B, q.T_, q.C}};
    result.end = {end.data(), {q.B, q.T_, q.C}};
    result.duration = {duration.data(), {q.B, q.K, q.C}};
    result.entropy = entropy;
    engine.posteriors(p.potentials(), result);
    const Segmentations some = random_gold(q, rng);
    std::vector<double> probability(some.start.size());
    engine.segment_posteriors(p.potentials(), some, probability);
    std::vector<double> labels(frames, 0.0), starts(frames, 0.0), ends(frames, 0.0);
    std::vector<double> durations(duration.size(), 0.0), segments(probability.size(), 0.0);
    for (std::int64_t b = 0; b < q.B; ++b) {
      const TableOracle oracle(p, b);
      double expected = 0.0;
      const std::int64_t first = some.row_pointer[b];
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double weight = oracle.log_partition == -kInf ? 0.0 : oracle.probability(i);
        if (weight == 0.0) continue;
        expected -= weight * std::log(weight);
        for (const auto& [s, d, c] : oracle.paths[i]) {
          for (std::int64_t t = s; t < s + d; ++t) labels[(b * q.T_ + t) * q.C + c] += weight;
          starts[(b * q.T_ + s) * q.C + c] += weight;
          ends[(b * q.T_ + s + d - 1) * q.C + c] += weight;
          durations[(b * q.K + d - 1) * q.C + c] += weight;
          for (std::int64_t j = first; j < some.row_pointer[b + 1]; ++j)
            if (some.start[j] == s && some.duration[j] == d && some.label[j] == c)
              segments[j] += weight;
        }
      }
      // Expected scores of 1e4 leave few digits of their difference.
      if (rounding(p) > 1e-10) continue;
      EXPECT_NEAR(entropy[b], expected, 20 * rounding(p));
    }
    for (std::size_t i = 0; i < frames; ++i) {
      EXPECT_NEAR(label[i], labels[i], tolerance);
      EXPECT_NEAR(start[i], starts[i], tolerance);
      EXPECT_NEAR(end[i], ends[i], tolerance);
    }
    for (std::size_t i = 0; i < durations.size(); ++i)
      EXPECT_NEAR(duration[i], durations[i], tolerance);
    for (std::size_t i = 0; i < segments.size(); ++i)
      EXPECT_NEAR(probability[i], segments[i], tolerance);
  });
}

/// The same segmentations with a tail: as a problem of longer segments, whose table goes on with
/// its last row.
TableProblem<double> with_long_segments(const TableProblem<double>& p,
                                        const std::vector<double>& tail) {
  TableProblem<double> q = p;
  const Problem<double>& from = p.base;
  q.base.K = from.T_;
  q.base.duration.assign(static_cast<std::size_t>(from.T_ * from.C), 0.0);
  q.segments.assign(static_cast<std::size_t>(from.B * from.T_ * from.T_ * from.C), kNaN);
  for (std::int64_t d = 1; d <= from.T_; ++d) {
    const std::int64_t k = std::min(d, from.K);
    for (std::int64_t c = 0; c < from.C; ++c) {
      q.base.duration[(d - 1) * from.C + c] =
          from.duration[(k - 1) * from.C + c] + static_cast<double>(d - k) * tail[c];
      for (std::int64_t b = 0; b < from.B; ++b)
        for (std::int64_t s = 0; s + d <= from.length(b); ++s)
          q.segments[q.segment_at(b, s, d, c)] = p.segments[p.segment_at(b, s, k, c)];
    }
  }
  return q;
}

TEST(TablesInScopes, ATailGoesOnWithTheScoreOfKFrames) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const auto p = some_tables(2, 6, 2, 2, false, static_cast<Changes>(seed % 3), seed);
    const std::vector<double> tail = {-0.3, -1.1};
    const auto q = with_long_segments(p, tail);
    Scope scope;
    scope.tail = tail;
    Inference inference(1);
    std::vector<double> log_partition(2), tail_gradient(2), entropy(2);
    TableGradientsOwned<double> gradients(p);
    inference.log_partition(p.potentials(), scope, {log_partition, {}}, gradients.views(p),
                            tail_gradient);
    Posteriors<double> posteriors;
    posteriors.entropy = entropy;
    inference.posteriors(p.potentials(), scope, posteriors);
    std::vector<double> segments(p.segments.size(), 0.0);
    for (std::int64_t b = 0; b < 2; ++b) {
      const TableOracle oracle(q, b);
      EXPECT_NEAR(log_partition[b], oracle.log_partition, 1e-12);
      double expected = 0.0;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double weight = oracle.probability(i);
        expected -= weight * std::log(weight);
        for (const auto& [s, d, c] : oracle.paths[i])
          segments[p.segment_at(b, s, std::min(d, p.base.K), c)] += weight;
      }
      EXPECT_NEAR(entropy[b], expected, 1e-11);
    }
    for (std::size_t i = 0; i < segments.size(); ++i)
      EXPECT_NEAR(gradients.segments[i], segments[i], 1e-12);
    SegmentationLists best;
    inference.k_best(p.potentials(), scope, 2, best);
    for (std::int64_t b = 0; b < 2; ++b) {
      TableOracle oracle(q, b);
      std::sort(oracle.scores.rbegin(), oracle.scores.rend());
      for (std::int64_t i = best.list_pointer[b]; i < best.list_pointer[b + 1]; ++i)
        EXPECT_NEAR(best.score[i], oracle.scores[i - best.list_pointer[b]], 1e-12);
    }
  }
}

TEST(TablesInScopes, PartialLossAndItsGradientsAreThoseOfTheList) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto p =
        some_tables(2, 5, 3, 2, seed % 2 == 0, static_cast<Changes>(seed % 3), seed + 50);
    std::vector<std::int32_t> label(10, -1);
    std::vector<std::int8_t> boundary(10, -1);
    label[1] = 1, label[6] = 0, boundary[2] = 1, boundary[3] = 0;
    Scope scope;
    scope.constraints.label = {label.data(), {2, 5}};
    if (seed % 4 < 2) scope.constraints.boundary = {boundary.data(), {2, 5}};
    Inference inference(1);
    const std::vector<double> weights = {0.5, 2.0};
    std::vector<double> loss(2);
    LossResult result;
    result.loss = loss;
    TableGradientsOwned<double> gradients(p);
    inference.partial_loss(p.potentials(), scope, result, gradients.views(p), {}, weights);
    std::vector<double> segments(p.segments.size(), 0.0);
    std::vector<double> pairs(p.pairs.size(), 0.0);
    for (std::int64_t b = 0; b < 2; ++b) {
      const TableOracle oracle(p, b);
      std::vector<double> within;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        bool holds = true;
        for (const auto& [s, d, c] : oracle.paths[i]) {
          for (std::int64_t t = s; t < s + d; ++t) {
            const std::size_t at = static_cast<std::size_t>(b * 5 + t);
            holds = holds && (label[at] < 0 || label[at] == c);
            if (seed % 4 < 2) holds = holds && (boundary[at] < 0 || boundary[at] == (t == s));
          }
        }
        within.push_back(holds ? oracle.scores[i] : -kInf);
      }
      const double inside = log_sum(within);
      if (p.base.length(b) == 0) {
        EXPECT_EQ(loss[b], 0.0);
        continue;
      }
      ASSERT_GT(inside, -kInf);
      EXPECT_NEAR(loss[b], oracle.log_partition - inside, 1e-12);
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double amount = weights[b] * (oracle.probability(i) - std::exp(within[i] - inside));
        const Path& path = oracle.paths[i];
        for (std::size_t j = 0; j < path.size(); ++j) {
          const auto [s, d, c] = path[j];
          segments[p.segment_at(b, s, d, c)] += amount;
          if (p.changes != Changes::kNone && j > 0)
            pairs[p.pair_at(b, s, path[j - 1].label, c)] += amount;
        }
      }
    }
    for (std::size_t i = 0; i < segments.size(); ++i)
      EXPECT_NEAR(gradients.segments[i], segments[i], 1e-12);
    for (std::size_t i = 0; i < gradients.pairs.size(); ++i)
      EXPECT_NEAR(gradients.pairs[i], pairs[i], 1e-12);
  }
}

TEST(TablesInScopes, SamplesBoundariesAndTheLeastRiskFollowTheList) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    auto p = some_tables(1, 4, 3, 2, seed % 2 == 0, Changes::kByRow, seed + 90);
    p.segments[p.segment_at(0, 1, 2, 1)] = -kInf;
    p.pairs[p.pair_at(0, 2, 0, 1)] = -kInf;
    const TableOracle oracle(p, 0);
    Inference inference(1);
    constexpr std::int64_t kDraws = 20000;
    SegmentationLists drawn;
    inference.sample(p.potentials(), {}, kDraws, seed, drawn);
    std::map<std::string, std::int64_t> times;
    const auto name = [](const Path& path) {
      std::string text;
      for (const auto& [s, d, c] : path) text += fmt::format("{} {} {};", s, d, c);
      return text;
    };
    for (std::int64_t i = 0; i < kDraws; ++i) {
      const Path path = unpacked(drawn.segmentations, i);
      ++times[name(path)];
      EXPECT_NEAR(drawn.score[i], p.score(0, path), 1e-12);
    }
    std::vector<double> within(4, 0.0), best_f1{0.0};
    double segments = 0.0;
    for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
      const double weight = oracle.probability(i);
      EXPECT_NEAR(static_cast<double>(times[name(oracle.paths[i])]) / kDraws, weight,
                  5.0 * std::sqrt((weight + 1e-6) / kDraws));
      segments += weight * static_cast<double>(oracle.paths[i].size());
      for (std::int64_t t = 0; t < 4; ++t) {
        bool near = false;
        for (const auto& [s, d, c] : oracle.paths[i]) near = near || std::abs(s - t) <= 1;
        within[t] += near ? weight : 0.0;
      }
    }
    std::vector<double> found(4);
    inference.boundary_within(p.potentials(), {}, 1, View<double, 2>(found.data(), {1, 4}));
    for (std::int64_t t = 0; t < 4; ++t) EXPECT_NEAR(found[t], within[t], 1e-12);
    for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
      if (oracle.scores[i] == -kInf) continue;
      double hits = 0.0;
      for (std::size_t j = 0; j < oracle.paths.size(); ++j)
        for (const auto& theirs : oracle.paths[j])
          for (const auto& mine : oracle.paths[i])
            if (mine.start == theirs.start) hits += oracle.probability(j);
      best_f1[0] = std::max(best_f1[0],
                            2.0 * hits / (static_cast<double>(oracle.paths[i].size()) + segments));
    }
    Segmentations best;
    std::vector<double> f1(1);
    inference.minimum_risk(p.potentials(), {}, 0, best, f1);
    EXPECT_NEAR(f1[0], best_f1[0], 1e-12);
    EXPECT_GT(p.score(0, unpacked(best, 0)), -kInf);
  }
}

// Sums of infinity less infinity once sent viterbi and sample beyond their arrays.
TEST(TablesInScopes, ScoresWhoseSumOverflowsAreRefused) {
  Rng rng(77);
  const Draw draw = all_draws().front();
  for (const double huge : {1.7e308, -1.7e308}) {
    for (const Changes changes : {Changes::kNone, Changes::kByRow}) {
      auto p = random_tables<double>(random_problem<double>(1, 5, 2, 2, false, draw, rng),
                                     changes == Changes::kNone, changes, draw, rng);
      std::fill(p.segments.begin(), p.segments.end(), huge);
      std::fill(p.pairs.begin(), p.pairs.end(), huge);
      Engine engine(1);
      Inference inference(1);
      Segmentations best;
      SegmentationLists several;
      std::vector<double> number(1);
      EXPECT_THROW(engine.viterbi(p.potentials(), best), DataError);
      EXPECT_THROW(engine.log_partition(p.potentials(), {number, {}}), DataError);
      EXPECT_THROW(inference.sample(p.potentials(), {}, 2, 1, several), DataError);
      EXPECT_THROW(inference.k_best(p.potentials(), {}, 2, several), DataError);
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
