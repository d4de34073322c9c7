// Models with tables beside models without, in other company, and where they are refused.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <memory>

#include "segfuse/semicrf/orders.h"
#include "segfuse/semicrf_tools.h"
#include "tables.h"

namespace segfuse::semicrf::testing {
namespace {

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
  for (const TableSize& size :
       {TableSize{50, 20, 11}, TableSize{30, 40, 8}, TableSize{70, 9, 17}}) {
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
  expect_error<UsageError>(
      [&] { call(none, only); },
      "an array for the gradient of transition_scores, but no transition_scores");
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
