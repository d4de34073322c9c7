// Labels to segments and back, drawing from a prior, and every refusal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "problems.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<std::int64_t>;

Segmentations from_labels(const Ints& labels, std::int64_t rows, LabelRules rules,
                          const Lengths& lengths = {}) {
  const auto frames = static_cast<std::int64_t>(labels.size()) / rows;
  return segmentations_from_labels(View<const std::int64_t, 2>(labels.data(), {rows, frames}),
                                   lengths, rules);
}

/// The message of the Expected error that `call` throws.
template <class Expected, class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

TEST(Segmentations, MaximalRunsBecomeSegments) {
  LabelRules rules{.max_duration = 4, .classes = 3};
  const Ints labels = {0, 0, 2, 1, 1, 1, 2, -100, -100, -100, -100, -100};
  const Segmentations y = from_labels(labels, 2, rules);
  EXPECT_EQ(y.row_pointer, (Ints{0, 3, 4}));
  EXPECT_EQ(unpacked(y, 0), (Path{{0, 2, 0}, {2, 1, 2}, {3, 3, 1}}));
  EXPECT_EQ(unpacked(y, 1), (Path{{0, 1, 2}}));
  Ints back(12, 5);
  labels_from_segmentations(y, View<std::int64_t, 2>(back.data(), {2, 6}));
  EXPECT_EQ(back, labels);
  // Lengths decide when they are given, whatever stands in the padding.
  const Ints lengths = {4, 0};
  const Segmentations cut = from_labels(labels, 2, rules, View<const std::int64_t, 1>(lengths));
  EXPECT_EQ(unpacked(cut, 0), (Path{{0, 2, 0}, {2, 1, 2}, {3, 1, 1}}));
  EXPECT_EQ(cut.row_pointer, (Ints{0, 3, 3}));
}

TEST(Segmentations, ALongRunIsRefusedOrSplitEvenly) {
  LabelRules rules{.max_duration = 3, .classes = 2};
  const Ints labels = {1, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_THAT(refusal<DataError>([&] { from_labels(labels, 1, rules); }),
              HasSubstr("batch 0, time 1: label 0 runs for 7 frames, the longest segment has 3"));
  rules.long_runs = LongRuns::kSplit;
  EXPECT_EQ(unpacked(from_labels(labels, 1, rules), 0),
            (Path{{0, 1, 1}, {1, 3, 0}, {4, 2, 0}, {6, 2, 0}}));
  rules.max_duration = 7;
  EXPECT_EQ(unpacked(from_labels(labels, 1, rules), 0), (Path{{0, 1, 1}, {1, 7, 0}}));
}

TEST(Segmentations, WrongLabelsAreNamed) {
  const LabelRules rules{.max_duration = 3, .classes = 2};
  EXPECT_THAT(refusal<DataError>([&] { from_labels({0, 2}, 1, rules); }),
              HasSubstr("batch 0, time 1: label 2 is not in [0, 2)"));
  EXPECT_THAT(refusal<DataError>([&] { from_labels({0, -100, 1}, 1, rules); }),
              HasSubstr("batch 0, time 2: label 1 after ignored frames from 1 on"));
  const Ints lengths = {2}, long_lengths = {3}, two = {1, 1};
  EXPECT_THAT(refusal<DataError>(
                  [&] { from_labels({0, -100}, 1, rules, View<const std::int64_t, 1>(lengths)); }),
              HasSubstr("batch 0, time 1: label -100"));
  EXPECT_THAT(refusal<UsageError>([&] {
                from_labels({0, 0}, 1, rules, View<const std::int64_t, 1>(long_lengths));
              }),
              HasSubstr("length 3 of batch 0"));
  EXPECT_THAT(
      refusal<UsageError>([&] { from_labels({0, 0}, 1, rules, View<const std::int64_t, 1>(two)); }),
      HasSubstr("2 lengths for 1 rows"));
}

TEST(SamplePrior, FrequenciesMatchTheTables) {
  const std::vector<double> initial = {std::log(0.2), std::log(0.8)};
  const std::vector<double> transition = {std::log(0.1), std::log(0.9), std::log(0.75),
                                          std::log(0.25)};
  const std::vector<double> duration = {std::log(0.5), -kInf, std::log(0.5),
                                        std::log(0.3), -kInf, std::log(0.7)};
  const Prior prior{initial, {transition.data(), {2, 2}}, {duration.data(), {3, 2}}};
  Segmentations y;
  const int rows = 3000;
  for (int b = 0; b < rows; ++b) sample_prior(prior, 40, 9, static_cast<std::uint64_t>(b), y);
  double first = 0, pairs[2][2] = {}, lengths[3][2] = {};
  for (int b = 0; b < rows; ++b) {
    std::int64_t frames = 0;
    for (std::int64_t i = y.row_pointer[b]; i < y.row_pointer[b + 1]; ++i) {
      EXPECT_EQ(y.start[i], frames);
      EXPECT_LT(frames, 40);
      frames += y.duration[i];
      lengths[y.duration[i] - 1][y.label[i]] += 1;
      if (i == y.row_pointer[b])
        first += y.label[i];
      else
        pairs[y.label[i - 1]][y.label[i]] += 1;
    }
    EXPECT_GE(frames, 40);
  }
  EXPECT_NEAR(first / rows, 0.8, 0.03);
  EXPECT_NEAR(pairs[0][1] / (pairs[0][0] + pairs[0][1]), 0.9, 0.01);
  EXPECT_NEAR(pairs[1][0] / (pairs[1][0] + pairs[1][1]), 0.75, 0.01);
  EXPECT_NEAR(lengths[0][0] / (lengths[0][0] + lengths[1][0]), 0.5, 0.01);
  EXPECT_NEAR(lengths[1][1] / (lengths[1][1] + lengths[2][1]), 0.3, 0.01);
  EXPECT_EQ(lengths[2][0], 0.0);  // forbidden
  EXPECT_EQ(lengths[0][1], 0.0);
  Segmentations again;
  for (int b = 0; b < rows; ++b) sample_prior(prior, 40, 9, static_cast<std::uint64_t>(b), again);
  EXPECT_EQ(y, again);
}

TEST(Segmentations, WithoutALimitARunIsOneSegment) {
  for (const LongRuns how : {LongRuns::kError, LongRuns::kSplit}) {
    const LabelRules rules{.max_duration = std::numeric_limits<std::int64_t>::max(),
                           .classes = std::numeric_limits<std::int64_t>::max(),
                           .long_runs = how};
    EXPECT_EQ(unpacked(from_labels({7, 7, 7, 0}, 1, rules), 0), (Path{{0, 3, 7}, {3, 1, 0}}));
    EXPECT_THAT(refusal<UsageError>([&] { from_labels({0, std::int64_t{1} << 32}, 1, rules); }),
                HasSubstr("label 4294967296 at frame 1 does not fit 32 bits"));
  }
}

TEST(Segmentations, WhatDoesNotFitIsRefusedAndChangesNothing) {
  const std::int64_t large = std::int64_t{1} << 31;
  Segmentations y;
  EXPECT_THROW(y.append(large, 1, 0), UsageError);
  EXPECT_THROW(y.append(0, large, 0), UsageError);
  EXPECT_THROW(y.append(0, 1, -large - 1), UsageError);
  EXPECT_EQ(y, Segmentations());
  y.append(large - 1, large - 1, -large);
  EXPECT_EQ(y.start[0], std::numeric_limits<std::int32_t>::max());
}

TEST(Segmentations, MalformedOnesAreNoLabels) {
  Ints labels(4);
  const View<std::int64_t, 2> to(labels.data(), {1, 4});
  Segmentations y;
  y.row_pointer = {0, 2};
  EXPECT_THAT(refusal<UsageError>([&] { labels_from_segmentations(y, to); }),
              HasSubstr("batch 0 has the segments [0, 2) of 0 starts"));
  y.row_pointer = {-1, 0};
  EXPECT_THAT(refusal<UsageError>([&] { labels_from_segmentations(y, to); }),
              HasSubstr("batch 0 has the segments [-1, 0)"));
  y = {};
  y.append(2, -1, 0);
  y.end_row();
  EXPECT_THAT(refusal<UsageError>([&] { labels_from_segmentations(y, to); }),
              HasSubstr("covers frames 2 to 1"));
}

TEST(Segmentations, MovedFromOnesAreEmptyAndCanBeFilled) {
  Segmentations y;
  y.append(0, 2, 1);
  y.end_row();
  const Segmentations moved = std::move(y);
  EXPECT_EQ(y.rows(), 0);  // NOLINT(bugprone-use-after-move)
  y.append(0, 3, 1);
  y.end_row();
  EXPECT_EQ(y.row_pointer, (Ints{0, 1}));
}

TEST(KnownFrames, OfSegmentsThatOverlapOrDoNotFitAreRefused) {
  Segmentations y;
  y.append(0, 3, 0);
  y.append(2, 2, 1);
  y.end_row();
  EXPECT_THAT(refusal<DataError>([&] { KnownFrames(y, 4); }),
              HasSubstr("segments of batch 0 overlap the one at frame 2"));
  EXPECT_THAT(refusal<UsageError>([&] { KnownFrames(y, -4); }), HasSubstr("[1, -4]"));
  EXPECT_THAT(refusal<UsageError>([&] { KnownFrames(SegmentationsView(), 4); }),
              HasSubstr("[-1, 4]"));
  y = {};
  y.append(0, 3, 0);
  y.end_row();
  KnownFrames known(y, 4);
  const KnownFrames moved = std::move(known);
  EXPECT_THAT(refusal<UsageError>([&] { static_cast<void>(known.constraints()); }),
              HasSubstr("KnownFrames was used after it was moved from"));
}

TEST(SamplePrior, DeadEndsAndWrongShapesAreRefused) {
  const std::vector<double> dead = {-kInf, -kInf, 0.0, 0.0};
  const std::vector<double> duration = {0.0, 0.0};
  Segmentations y;
  Prior prior{{}, {dead.data(), {2, 2}}, {duration.data(), {1, 2}}};
  EXPECT_THAT(refusal<UsageError>([&] { sample_prior(prior, 100, 1, 1, y); }),
              HasSubstr("label 0 no successor"));
  const std::vector<double> nan = {0.0, kNaN};
  prior.duration = {nan.data(), {1, 2}};
  prior.initial = {nan.data(), {2}};
  EXPECT_THAT(refusal<UsageError>([&] { sample_prior(prior, 100, 1, 1, y); }),
              HasSubstr("a score of the prior is nan"));
  prior.initial = {};
  prior.transition = {dead.data(), {1, 4}};
  EXPECT_THAT(refusal<UsageError>([&] { sample_prior(prior, 100, 1, 1, y); }),
              HasSubstr("the prior's tables disagree"));
}

/// A problem of (2, 5, 3 classes, K = 2) whose potentials `change` spoils.
template <class Expected>
std::string refused_potentials(
    const std::function<void(Problem<float>&, Potentials<float>&)>& change) {
  Rng rng(1);
  auto p = random_problem<float>(2, 5, 2, 3, false, gaussian, rng);
  Potentials<float> potentials = p.potentials();
  change(p, potentials);
  return refusal<Expected>([&] { Engine(1).log_partition(potentials, {}); });
}

TEST(Refusals, WrongShapesAreUsageErrors) {
  const auto usage = refused_potentials<UsageError>;
  using P = Problem<float>;
  using In = Potentials<float>;
  EXPECT_THAT(usage([](P& p, In& in) { in.duration = {p.duration.data(), {3, 2}}; }),
              HasSubstr("duration has shape (3, 2), expected (K, C) = (3, 3)"));
  EXPECT_THAT(usage([](P&, In& in) { in.duration = {}; }), HasSubstr("duration has 0 rows"));
  EXPECT_THAT(usage([](P& p, In& in) { in.transition = {p.transition.data(), {3, 3, 3}}; }),
              HasSubstr("transition has shape (3, 3, 3), expected (1, C, C) = (1, 3, 3)"));
  EXPECT_THAT(usage([](P&, In& in) { in.transition = {}; }), HasSubstr("transition is missing"));
  EXPECT_THAT(usage([](P& p, In& in) { in.initial = {p.initial.data(), {2}}; }),
              HasSubstr("initial has shape (2), expected (C) = (3)"));
  EXPECT_THAT(usage([](P& p, In& in) { in.end = {p.end.data(), {2, 3, 5}}; }),
              HasSubstr("end has shape (2, 3, 5), expected (B, T, C) = (2, 5, 3)"));
  EXPECT_THAT(usage([](P& p, In& in) { in.emission = {p.emission.data(), {2, 5, 0}}; }),
              HasSubstr("at least one class"));
  static const Ints negative = {1, -1}, large = {6, 1}, three = {1, 1, 1};
  EXPECT_THAT(usage([](P&, In& in) { in.lengths = View<const std::int64_t, 1>(negative); }),
              HasSubstr("length -1 of batch 1 is not in [0, 5]"));
  EXPECT_THAT(usage([](P&, In& in) { in.lengths = View<const std::int64_t, 1>(large); }),
              HasSubstr("length 6 of batch 0"));
  EXPECT_THAT(usage([](P&, In& in) { in.lengths = View<const std::int64_t, 1>(three); }),
              HasSubstr("lengths has 3 elements, expected 2"));
}

TEST(Refusals, WrongScoresAreDataErrorsWithTheirPlace) {
  const auto data = refused_potentials<DataError>;
  using P = Problem<float>;
  using In = Potentials<float>;
  const auto nan = static_cast<float>(kNaN);
  const auto inf = static_cast<float>(kInf);
  EXPECT_THAT(data([&](P& p, In&) { p.emission[(1 * 5 + 2) * 3 + 1] = nan; }),
              HasSubstr("emission at batch 1, time 2, class 1 is nan"));
  EXPECT_THAT(data([&](P& p, In&) { p.start[4 * 3 + 2] = inf; }),
              HasSubstr("start at batch 0, time 4, class 2 is inf"));
  EXPECT_THAT(data([&](P& p, In&) { p.end[(1 * 5 + 0) * 3] = inf; }),
              HasSubstr("end at batch 1, time 0, class 0 is inf"));
  EXPECT_THAT(data([&](P& p, In&) { p.transition[5] = nan; }),
              HasSubstr("transition[1, 2] is nan"));
  EXPECT_THAT(data([&](P& p, In&) { p.duration[3] = inf; }), HasSubstr("duration[1, 0] is inf"));
  EXPECT_THAT(data([&](P& p, In&) { p.final[2] = nan; }), HasSubstr("final[2] is nan"));
  // The first row wins, whatever the threads do.
  Rng rng(2);
  auto p = random_problem<double>(40, 30, 2, 3, false, gaussian, rng);
  p.emission[(7 * 30 + 29) * 3] = kNaN;
  p.emission[(8 * 30 + 0) * 3] = kNaN;
  Engine engine(4);
  for (int call = 0; call < 10; ++call)
    EXPECT_THAT(refusal<DataError>([&] { engine.log_partition(p.potentials(), {}); }),
                HasSubstr("emission at batch 7, time 29, class 0"));
}

TEST(Refusals, WrongGoldIsNamed) {
  Rng rng(3);
  const auto p = random_problem<double>(2, 5, 2, 3, false, gaussian, rng);
  const auto with = [&](const Path& second) {
    const Segmentations gold = packed({{{0, 2, 0}, {2, 2, 1}, {4, 1, 2}}, second});
    return refusal<DataError>([&] { Engine(1).loss(p.potentials(), gold, {}); });
  };
  EXPECT_EQ(with({{0, 1, 0}, {1, 2, 1}, {3, 2, 2}}), "no error");
  EXPECT_THAT(with({{0, 3, 0}, {3, 2, 1}}),
              HasSubstr("segment 0 of batch 1 has 3 frames, but the model allows 1 to 2"));
  EXPECT_THAT(with({{0, 2, 0}, {2, 2, 1}}), HasSubstr("end at frame 4, the row at 5"));
  EXPECT_THAT(with({{0, 2, 0}, {3, 2, 1}}), HasSubstr("starts at 3, expected 2"));
  EXPECT_THAT(with({{0, 2, 0}, {2, 2, 3}, {4, 1, 0}}),
              HasSubstr("segment 1 of batch 1 has label 3"));
  EXPECT_THAT(with({{0, 2, 0}, {2, 2, 1}, {4, 2, 0}}), HasSubstr("covers frames 4 to 6"));
  EXPECT_THAT(with({{0, 2, 0}, {2, 0, 1}, {2, 2, 0}, {4, 1, 0}}), HasSubstr("has 0 frames"));
  const Segmentations one_row = packed({{{0, 2, 0}, {2, 2, 1}, {4, 1, 2}}});
  EXPECT_THAT(refusal<UsageError>([&] { Engine(1).loss(p.potentials(), one_row, {}); }),
              HasSubstr("row pointer of the segmentations has 2 elements, expected 3"));
}

TEST(Refusals, WrongOutputsAndWeightsAreUsageErrors) {
  Rng rng(4);
  const auto p = random_problem<double>(2, 5, 2, 3, false, gaussian, rng);
  Engine engine(1);
  std::vector<double> three(3), odd = {1.0, kNaN};
  OwnedGradients<double> owned(p);
  EXPECT_THAT(refusal<UsageError>([&] { engine.log_partition(p.potentials(), {three, {}}); }),
              HasSubstr("log_partition has 3 elements, expected 2"));
  EXPECT_THAT(refusal<UsageError>([&] { engine.log_partition(p.potentials(), {}, {}, odd); }),
              HasSubstr("weight nan of batch 1 is not finite"));
  Gradients<double> gradients = owned.views();
  gradients.duration = {owned.duration.data(), {3, 2}};
  EXPECT_THAT(refusal<UsageError>([&] { engine.log_partition(p.potentials(), {}, gradients); }),
              HasSubstr("the duration gradient has shape (3, 2), expected (K, C) = (2, 3)"));
  Posteriors<double> posteriors;
  posteriors.boundary = {owned.start.data(), {2, 6}};
  EXPECT_THAT(refusal<UsageError>([&] { engine.posteriors(p.potentials(), posteriors); }),
              HasSubstr("the boundary posterior has shape (2, 6)"));
}

TEST(Refusals, AFailedCallLeavesTheEngineUsable) {
  Rng rng(5);
  auto p = random_problem<double>(2, 5, 2, 3, false, gaussian, rng);
  std::vector<double> before(2), after(2);
  Engine engine(2);
  engine.log_partition(p.potentials(), {before, {}});
  auto broken = p;
  broken.emission[3] = kNaN;
  EXPECT_THROW(engine.log_partition(broken.potentials(), {after, {}}), DataError);
  engine.log_partition(p.potentials(), {after, {}});
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
