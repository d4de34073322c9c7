#include "learn/metrics/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "learn/metrics/counts_json.h"
#include "learn/metrics/measures.h"
#include "segfuse/error.h"

namespace segfuse::metrics {
namespace {

const std::vector<double> kTolerances = {0.02, 0.05};

MetricsConfig config() {
  MetricsConfig config;
  config.tolerances = kTolerances;
  return config;
}

/// Segments of 10 to 80 ms over one second, so that all pairs start and end together.
Annotation random_annotation(Rng& rng) {
  Annotation out;
  std::int64_t at = 0;
  while (at < 100) {
    const std::int64_t end =
        std::min<std::int64_t>(100, at + 1 + static_cast<std::int64_t>(rng.below(8)));
    out.segments.push_back({static_cast<double>(at) / 100, static_cast<double>(end) / 100,
                            std::string(1, static_cast<char>('a' + rng.below(3))), 0});
    at = end;
  }
  out.duration = 1;
  return out;
}

struct Pair {
  Annotation gold, predicted;
};

std::vector<Pair> some_pairs(std::size_t count, std::uint64_t seed) {
  Rng gold(7), predicted(seed);
  std::vector<Pair> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back({random_annotation(gold), random_annotation(predicted)});
  return all;
}

std::vector<MetricCounts> counts_of(const std::vector<Pair>& pairs) {
  std::vector<MetricCounts> all;
  for (const Pair& pair : pairs) {
    Metrics metrics(config());
    metrics.add(pair.gold, pair.predicted);
    all.push_back(metrics.counts());
  }
  return all;
}

/// Every draw measured from its recordings again, as if they were a test set.
std::vector<Metrics> plain_draws(const std::vector<Pair>& pairs) {
  Rng rng(kBootstrapSeed);
  std::vector<Metrics> draws;
  for (int draw = 0; draw < kResamples; ++draw) {
    Metrics& metrics = draws.emplace_back(config());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair& pair = pairs[rng.below(pairs.size())];
      metrics.add(pair.gold, pair.predicted);
    }
  }
  return draws;
}

std::vector<double> values_of(const std::vector<Metrics>& draws, const Measure& measure) {
  std::vector<double> values;
  for (const Metrics& metrics : draws) values.push_back(measure.value(metrics.counts()));
  return values;
}

/// 2.5 % of 1999 steps are 49.975: between the 50th and the 51st value.
Interval plain_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto between = [&](double rank) {
    const auto i = static_cast<std::size_t>(rank);
    return values[i] + (rank - static_cast<double>(i)) * (values[i + 1] - values[i]);
  };
  return {between(49.975), between(1949.025)};
}

TEST(Bootstrap, IntervalsAreThoseOfTestSetsDrawnAnew) {
  const std::vector<Pair> a = some_pairs(7, 1), b = some_pairs(7, 2);
  const std::vector<MetricCounts> draws_a = resample(counts_of(a)),
                                  draws_b = resample(counts_of(b));
  const std::vector<Metrics> plain_a = plain_draws(a), plain_b = plain_draws(b);
  for (const Measure& measure : measures_of(kTolerances)) {
    const std::vector<double> of_a = values_of(plain_a, measure),
                              of_b = values_of(plain_b, measure);
    const Interval expected = plain_interval(of_a);
    const Interval found = interval_of(draws_a, measure.value).value();
    EXPECT_NEAR(found.low, expected.low, 1e-12) << measure.key;
    EXPECT_NEAR(found.high, expected.high, 1e-12) << measure.key;
    EXPECT_LT(found.low, found.high) << measure.key;
    std::vector<double> differences;
    for (std::size_t i = 0; i < of_a.size(); ++i) differences.push_back(of_a[i] - of_b[i]);
    const Interval paired = plain_interval(differences);
    const Interval difference = difference_interval(draws_a, draws_b, measure.value).value();
    EXPECT_NEAR(difference.low, paired.low, 1e-12) << measure.key;
    EXPECT_NEAR(difference.high, paired.high, 1e-12) << measure.key;
  }
}

TEST(Bootstrap, OfAMeanItIsTheStandardErrorOfTheMean) {
  Rng rng(3);
  std::vector<MetricCounts> recordings;
  double sum = 0, squares = 0;
  for (int i = 0; i < 200; ++i) {
    MetricCounts& one = recordings.emplace_back();
    one.frames = 100;
    one.correct_frames = static_cast<std::int64_t>(rng.below(101));
    const double share = static_cast<double>(one.correct_frames) / 100;
    sum += share;
    squares += share * share;
  }
  const double mean = sum / 200;
  const double error = std::sqrt((squares / 200 - mean * mean) / 200);
  const auto accuracy = [](const MetricCounts& c) { return c.frame_accuracy(); };
  const Interval interval = interval_of(resample(recordings), accuracy).value();
  EXPECT_NEAR(interval.half_width(), 1.96 * error, 0.08 * error);
  EXPECT_NEAR((interval.low + interval.high) / 2, mean, 0.2 * error);
}

TEST(Bootstrap, WhatIsCommonToBothSystemsCancels) {
  const std::vector<MetricCounts> counts = counts_of(some_pairs(9, 4));
  const std::vector<MetricCounts> draws = resample(counts);
  for (const Measure& measure : measures_of(kTolerances)) {
    const Interval none = difference_interval(draws, draws, measure.value).value();
    EXPECT_EQ(none.low, 0) << measure.key;
    EXPECT_EQ(none.high, 0) << measure.key;
  }
  const std::vector<MetricCounts> equal(9, counts[0]);
  for (const Measure& measure : measures_of(kTolerances)) {
    const Interval one = interval_of(resample(equal), measure.value).value();
    EXPECT_NEAR(one.half_width(), 0, 1e-15) << measure.key;
  }
}

TEST(Bootstrap, OfOneRecordingThereIsNoInterval) {
  const std::vector<MetricCounts> one = counts_of(some_pairs(1, 5));
  const auto errors = [](const MetricCounts& c) { return c.labels.rate(); };
  EXPECT_TRUE(resample(one).empty());
  EXPECT_TRUE(resample({}).empty());
  EXPECT_FALSE(interval_of(resample(one), errors));
  EXPECT_FALSE(difference_interval(resample(one), resample(one), errors));
}

TEST(Bootstrap, CountsComeBackFromJson) {
  for (const MetricCounts& counts : counts_of(some_pairs(3, 6))) {
    const Json json = counts_json(counts, kTolerances);
    const MetricCounts back = counts_from_json(JsonPlace(json, "test"), kTolerances);
    for (const Measure& measure : measures_of(kTolerances))
      EXPECT_EQ(measure.value(back), measure.value(counts)) << measure.key;
    EXPECT_EQ(counts_json(back, kTolerances), json);
  }
  Json broken = counts_json(counts_of(some_pairs(1, 6))[0], kTolerances);
  broken["labels"]["gold"] = -1;
  EXPECT_THROW(counts_from_json(JsonPlace(broken, "test"), kTolerances), DataError);
}

}  // namespace
}  // namespace segfuse::metrics
