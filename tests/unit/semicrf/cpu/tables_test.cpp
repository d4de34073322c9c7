// Tables of segment scores and of transitions by time, against the list of all segmentations.

#include "tables.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "segfuse/semicrf/orders.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::semicrf::testing {
namespace {

struct Size {
  std::int64_t frames, K, C;
};
const Size kSizes[] = {{1, 1, 1}, {1, 3, 2}, {2, 4, 2}, {4, 2, 3},
                       {5, 4, 2}, {6, 3, 2}, {5, 7, 2}, {5, 1, 3}};

/// Runs body(problem, algorithm, rng) over draws, sizes, kinds of transitions and tables, lengths.
template <class T, class Body>
void for_tables(const Body& body) {
  std::uint64_t seed = 9000;
  for (const Draw& draw : all_draws()) {
    for (const Size& size : kSizes) {
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
    // A gradient that is asked for alone is the same.
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

/// Small random problems with tables, all scores finite.
template <class T = double>
TableProblem<T> some_tables(std::int64_t B, std::int64_t frames, std::int64_t K, std::int64_t C,
                            bool by_duration, Changes changes, std::uint64_t seed) {
  Rng rng(seed);
  auto base = random_problem<T>(B, frames, K, C, by_duration, gaussian, rng);
  for (std::int64_t b = 0; b < B; ++b)
    base.lengths.push_back(b == 0 ? frames : static_cast<std::int64_t>(rng.below(frames + 1)));
  return random_tables<T>(base, true, changes, gaussian, rng);
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

TEST(TablesAlike, ATableOfEmissionsAndDurationsIsTheOldModel) {
  for (const bool by_duration : {false, true}) {
    Rng rng(77);
    auto old = random_problem<double>(3, 40, 12, 9, by_duration, gaussian, rng);
    old.lengths = {40, 17, 0};
    auto q = random_tables<double>(old, true, Changes::kShared, zero, rng);
    for (std::int64_t b = 0; b < old.B; ++b) {
      for (std::int64_t s = 0; s < old.length(b); ++s) {
        for (std::int64_t c = 0; c < old.C; ++c) {
          double content = old.start[(b * old.T_ + s) * old.C + c];
          for (std::int64_t d = 1; d <= std::min(old.K, old.length(b) - s); ++d) {
            const std::size_t last = static_cast<std::size_t>((b * old.T_ + s + d - 1) * old.C + c);
            content += old.emission[last];
            q.segments[q.segment_at(b, s, d, c)] =
                content + old.end[last] + old.duration[(d - 1) * old.C + c];
          }
        }
      }
    }
    if (!by_duration)
      for (std::int64_t s = 1; s < old.T_; ++s)
        for (std::int64_t i = 0; i < old.C; ++i)
          for (std::int64_t c = 0; c < old.C; ++c)
            q.pairs[q.pair_at(0, s, i, c)] = old.transition[i * old.C + c];
    for (std::vector<double>* v : {&q.base.emission, &q.base.start, &q.base.end, &q.base.duration})
      v->assign(v->size(), 0.0);
    if (!by_duration) q.base.transition.assign(q.base.transition.size(), 0.0);
    Engine engine(2);
    const Segmentations gold = random_gold(old, rng);
    std::vector<double> loss_then(3), loss_now(3);
    OwnedGradients<double> then(old);
    TableGradientsOwned<double> now(q);
    LossResult result_then, result_now;
    result_then.loss = loss_then, result_now.loss = loss_now;
    engine.loss(old.potentials(), gold, result_then, then.views());
    engine.loss(q.potentials(), gold, result_now, now.views(q));
    for (int b = 0; b < 3; ++b) EXPECT_NEAR(loss_now[b], loss_then[b], 1e-10);
    const std::vector<double> flat_then = then.flat(), flat_now = now.base.flat();
    for (std::size_t i = 0; i < flat_then.size(); ++i)
      ASSERT_NEAR(flat_now[i], flat_then[i], 1e-10) << i;
    Segmentations best_then, best_now;
    engine.viterbi(old.potentials(), best_then);
    engine.viterbi(q.potentials(), best_now);
    EXPECT_EQ(best_then, best_now);
  }
}

TEST(TablesAlike, FastIsTheReferenceWhereLabelsAndDurationsFillSeveralVectors) {
  std::uint64_t seed = 400;
  for (const Size& size : {Size{50, 20, 11}, Size{30, 40, 8}, Size{70, 9, 17}}) {
    for (const bool by_duration : {false, true}) {
      for (const Changes changes : {Changes::kNone, Changes::kShared, Changes::kByRow}) {
        SCOPED_TRACE(fmt::format("seed {}", ++seed));
        const auto p = some_tables(3, size.frames, size.K, size.C, by_duration, changes, seed);
        Rng rng(seed);
        const Segmentations gold = random_gold(p.base, rng);
        std::vector<double> loss[2] = {std::vector<double>(3), std::vector<double>(3)};
        TableGradientsOwned<double> gradients[2] = {TableGradientsOwned<double>(p),
                                                    TableGradientsOwned<double>(p)};
        for (const int i : {0, 1}) {
          Engine engine(1, {i == 0 ? Algorithm::kFast : Algorithm::kReference});
          LossResult result;
          result.loss = loss[i];
          engine.loss(p.potentials(), gold, result, gradients[i].views(p));
        }
        for (int b = 0; b < 3; ++b) EXPECT_NEAR(loss[0][b], loss[1][b], 1e-10);
        const auto fast = gradients[0].parts(), plain = gradients[1].parts();
        for (std::size_t part = 0; part < fast.size(); ++part)
          for (std::size_t i = 0; i < fast[part].second.size(); ++i)
            ASSERT_NEAR(fast[part].second[i], plain[part].second[i], 1e-10) << fast[part].first;
      }
    }
  }
}

TEST(TablesAlike, ThreadsAndStridesDoNotShowInABit) {
  for (const Changes changes : {Changes::kShared, Changes::kByRow}) {
    const auto p = some_tables<float>(7, 33, 10, 5, false, changes, 500);
    Rng rng(500);
    const Segmentations gold = random_gold(p.base, rng);
    // The same tables with labels in front.
    const std::int64_t B = 7, T = 33, K = 10, C = 5;
    std::vector<float> segments(p.segments.size()), pairs(p.pairs.size());
    const View<float, 4> moved(segments.data(), {B, T, K, C}, {T * K, K, 1, B * T * K});
    const std::int64_t rows = p.pair_rows();
    const View<float, 4> moved_pairs(pairs.data(), {rows, T, C, C}, {T, 1, rows * T, rows * T * C});
    Potentials<float> other = p.potentials();
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t t = 0; t < T; ++t)
        for (std::int64_t c = 0; c < C; ++c) {
          for (std::int64_t k = 0; k < K; ++k) moved(b, t, k, c) = other.segment_scores(b, t, k, c);
          for (std::int64_t i = 0; b < rows && i < C; ++i)
            moved_pairs(b, t, i, c) = other.transition_scores(b, t, i, c);
        }
    other.segment_scores = moved;
    other.transition_scores = moved_pairs;
    std::vector<double> losses[3];
    std::vector<std::pair<std::string, std::vector<float>>> parts[3];
    Segmentations best[3];
    for (int i = 0; i < 3; ++i) {
      Engine engine(i == 0 ? 1 : 4);
      const Potentials<float> potentials = i == 2 ? other : p.potentials();
      losses[i].resize(7);
      LossResult result;
      result.loss = losses[i];
      TableGradientsOwned<float> gradients(p);
      engine.loss(potentials, gold, result, gradients.views(p));
      parts[i] = gradients.parts();
      engine.viterbi(potentials, best[i]);
    }
    for (const int i : {1, 2}) {
      EXPECT_EQ(losses[0], losses[i]);
      EXPECT_EQ(parts[0], parts[i]);
      EXPECT_EQ(best[0], best[i]);
    }
  }
}

TEST(TablesAlike, TablesInSixteenBitsAreTheirNumbers) {
  const auto p = some_tables(2, 20, 5, 3, false, Changes::kByRow, 550);
  TableProblem<BFloat16> half{p.base.to<BFloat16>(), true, p.changes, {}, {}};
  for (const double x : p.segments) half.segments.emplace_back(x);
  for (const double x : p.pairs) half.pairs.emplace_back(x);
  TableProblem<double> same{half.base.to<double>(), true, p.changes, {}, {}};
  for (const BFloat16 x : half.segments) same.segments.push_back(static_cast<double>(x));
  for (const BFloat16 x : half.pairs) same.pairs.push_back(static_cast<double>(x));
  Engine engine(1);
  std::vector<double> found(2), wanted(2);
  engine.log_partition(half.potentials(), {found, {}});
  engine.log_partition(same.potentials(), {wanted, {}});
  EXPECT_EQ(found, wanted);
}

TEST(TablesAlike, ASharedTableSumsRowsInTheirOrderInSeveralWaves) {
  constexpr std::int64_t kRows = 11, kFrames = 700, kLabels = 40;  // of which a wave has eight
  const auto p = some_tables(kRows, kFrames, 2, kLabels, false, Changes::kShared, 650);
  const auto gradient = [&](const std::vector<double>& weights) {
    Engine engine(2);
    std::vector<double> found(p.pairs.size());
    Gradients<double> gradients;
    gradients.transition_scores = {found.data(), {1, kFrames, kLabels, kLabels}};
    engine.log_partition(p.potentials(), {}, gradients, weights);
    return found;
  };
  std::vector<double> sum(p.pairs.size(), 0.0);
  std::vector<double> weights(kRows, 0.0);
  for (const std::int64_t b : {0, 8, 10}) {
    std::vector<double> one(kRows, 0.0);
    one[b] = weights[b] = 1.5 + static_cast<double>(b);
    const std::vector<double> part = gradient(one);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_EQ(gradient(weights), sum);
}

TEST(TablesAlike, ARowIsTheSameInOtherCompany) {
  const auto p = some_tables(11, 60, 4, 9, false, Changes::kByRow, 600);
  Engine engine(3);
  std::vector<double> all(11), one(1);
  engine.log_partition(p.potentials(), {all, {}});
  for (std::int64_t b = 0; b < 11; ++b) {
    TableProblem<double> alone = p;
    const Problem<double>& q = p.base;
    alone.base.B = 1;
    alone.base.lengths = {q.length(b)};
    const auto part = [&](const std::vector<double>& from, std::int64_t size) {
      return std::vector<double>(from.begin() + b * size, from.begin() + (b + 1) * size);
    };
    alone.base.emission = part(q.emission, q.T_ * q.C);
    alone.base.start = part(q.start, q.T_ * q.C);
    alone.base.end = part(q.end, q.T_ * q.C);
    alone.segments = part(p.segments, q.T_ * q.K * q.C);
    alone.pairs = part(p.pairs, q.T_ * q.C * q.C);
    engine.log_partition(alone.potentials(), {one, {}});
    EXPECT_EQ(one[0], all[b]);
  }
}

template <class Error, class Body>
void expect_error(const Body& body, const std::string& text) {
  try {
    body();
    ADD_FAILURE() << "no error, expected: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(TablesRefused, WrongShapesAndNumbersAreNamed) {
  auto p = some_tables(2, 4, 2, 3, false, Changes::kByRow, 700);
  p.base.lengths = {4, 3};
  p = random_tables<double>(p.base, true, Changes::kByRow, *std::make_unique<Draw>(gaussian),
                            *std::make_unique<Rng>(700));
  Engine engine(1);
  const auto call = [&](const Potentials<double>& potentials, Gradients<double> gradients = {}) {
    engine.log_partition(potentials, {}, gradients);
  };
  Potentials<double> wrong = p.potentials();
  wrong.segment_scores = {p.segments.data(), {2, 4, 3, 2}};
  expect_error<UsageError>([&] { call(wrong); },
                           "segment_scores has shape (2, 4, 3, 2), expected (B, T, K, C) = "
                           "(2, 4, 2, 3)");
  wrong = p.potentials();
  wrong.transition_scores = {p.pairs.data(), {2, 3, 3, 3}};
  expect_error<UsageError>([&] { call(wrong); },
                           "transition_scores has shape (2, 3, 3, 3), expected (B, T, C, C) = "
                           "(2, 4, 3, 3)");
  Potentials<double> none = p.base.potentials();
  TableGradientsOwned<double> gradients(p);
  Gradients<double> only;
  only.transition_scores = gradients.views(p).transition_scores;
  expect_error<UsageError>([&] { call(none, only); },
                           "a gradient of transition_scores was asked for without "
                           "transition_scores");
  call(p.potentials());
  const double kept = p.segments[p.segment_at(1, 1, 2, 2)];
  p.segments[p.segment_at(1, 1, 2, 2)] = kNaN;
  expect_error<DataError>([&] { call(p.potentials()); },
                          "segment_scores at batch 1, time 1, duration 2, class 2 is nan; scores "
                          "are finite or -inf");
  p.segments[p.segment_at(1, 1, 2, 2)] = kInf;
  expect_error<DataError>([&] { call(p.potentials()); }, "class 2 is inf");
  p.segments[p.segment_at(1, 1, 2, 2)] = kept;
  p.pairs[p.pair_at(1, 2, 0, 1)] = kNaN;
  expect_error<DataError>([&] { call(p.potentials()); },
                          "transition_scores at batch 1, time 2, from 0, to 1 is nan; scores are "
                          "finite or -inf");
}

TEST(TablesRefused, WhatTakesNoTablesSaysSo) {
  const auto p = some_tables(1, 4, 2, 2, false, Changes::kByRow, 800);
  const Potentials<double> with = p.potentials(), without = p.base.potentials();
  Potentials<double> by_time = without;
  by_time.transition_scores = with.transition_scores;
  Inference inference(1);
  std::vector<double> number(1);
  const View<double, 1> out = number;
  const std::string text = "this function takes no segment_scores";
  expect_error<UsageError>([&] { inference.kl(with, without, out); }, text);
  expect_error<UsageError>([&] { inference.cross_entropy(without, with, out); }, text);
  expect_error<UsageError>([&] { inference.kl(by_time, without, out); },
                           "this function takes no transition_scores");
  Direction<double> direction;
  direction.scores.emission = without.emission;
  AlongResult<double> along;
  along.derivative = number;
  expect_error<UsageError>([&] { inference.derivatives_along(with, {}, false, direction, along); },
                           text);
  expect_error<UsageError>([&] { OnlineDecoder decoder(with); }, text);
  expect_error<UsageError>([&] { BlockPosterior posterior(with); }, text);
  const LabelOrders order;
  expect_error<UsageError>(
      [&] { align(Context(), with, std::span<const LabelOrders>(&order, 1), {}); }, text);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
