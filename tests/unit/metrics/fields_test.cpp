// Chunks, edges and segment errors, against hand-made cases and enumeration.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "learn/metrics/alignment.h"
#include "learn/metrics/counts_json.h"
#include "segfuse/error.h"
#include "segfuse/metrics.h"

namespace segfuse {
namespace {

using metrics::EdgePairs;

Annotation tiled(const std::vector<std::pair<double, std::string>>& ends) {
  Annotation out;
  double at = 0;
  for (const auto& [end, label] : ends) {
    out.segments.push_back({at, end, label, 0});
    at = end;
  }
  out.duration = at;
  return out;
}

Annotation random_tiling(Rng& rng, double step = 0.01) {
  std::vector<std::pair<double, std::string>> ends;
  double at = 0;
  for (std::uint64_t i = 2 + rng.below(9); i > 0; --i) {
    at += step * static_cast<double>(1 + rng.below(5));
    ends.emplace_back(at, std::string(1, static_cast<char>('a' + rng.below(3))));
  }
  return tiled(ends);
}

/// All one-to-one matchings, in any order.
struct BestPairs {
  std::int64_t hits = 0, distance = 0;
};
BestPairs all_matchings(const std::vector<std::int64_t>& gold,
                        const std::vector<std::int64_t>& predicted, std::int64_t tolerance,
                        std::size_t i, std::set<std::size_t>& taken) {
  if (i == gold.size()) return {};
  BestPairs best = all_matchings(gold, predicted, tolerance, i + 1, taken);
  for (std::size_t j = 0; j < predicted.size(); ++j) {
    const std::int64_t distance = std::abs(gold[i] - predicted[j]);
    if (distance > tolerance || !taken.insert(j).second) continue;
    BestPairs rest = all_matchings(gold, predicted, tolerance, i + 1, taken);
    taken.erase(j);
    ++rest.hits;
    rest.distance += distance;
    if (rest.hits > best.hits || (rest.hits == best.hits && rest.distance < best.distance))
      best = rest;
  }
  return best;
}

TEST(Edges, TheMatchingIsTheBestOfAll) {
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> times[2];
    for (auto& list : times) {
      for (std::uint64_t i = rng.below(7); i > 0; --i)
        list.push_back(static_cast<std::int64_t>(1'000'000 * rng.below(40)));
      std::ranges::sort(list);
    }
    const auto tolerance = static_cast<std::int64_t>(1'000'000 * rng.below(12));
    std::set<std::size_t> taken;
    const BestPairs expected = all_matchings(times[0], times[1], tolerance, 0, taken);
    const EdgePairs found = metrics::match_edges(times[0], times[1], tolerance);
    ASSERT_EQ(found.hits, expected.hits);
    ASSERT_EQ(found.distance, expected.distance);
    ASSERT_EQ(found.hits, metrics::match_times(times[0], times[1], tolerance));
    ASSERT_LE(std::abs(found.error_us), found.distance / 1000);
    ASSERT_GE(found.square_us * static_cast<double>(found.hits),
              static_cast<double>(found.error_us) * static_cast<double>(found.error_us));
  }
}

TEST(Edges, ThePartnerIsTheNearestAndOneOnly) {
  // The first gold edge could have the predicted one as well.
  const std::vector<std::int64_t> gold{0, 140'000'000}, predicted{140'000'000};
  EdgePairs pairs = metrics::match_edges(gold, predicted, 150'000'000);
  EXPECT_EQ(pairs.hits, 1);
  EXPECT_EQ(pairs.error_us, 0);
  // Two predicted edges for one gold edge: one is a false one.
  pairs = metrics::match_edges(predicted, gold, 150'000'000);
  EXPECT_EQ(pairs.hits, 1);
  EXPECT_EQ(pairs.error_us, 0);
  // As many pairs as there can be, though the nearest ones make less.
  const std::vector<std::int64_t> near{100'000'000, 200'000'000}, far{0, 110'000'000};
  pairs = metrics::match_edges(near, far, 100'000'000);
  EXPECT_EQ(pairs.hits, 2);
  EXPECT_EQ(pairs.error_us, -190'000);
  // Of equals the earlier.
  pairs = metrics::match_edges(std::vector<std::int64_t>{100'000},
                               std::vector<std::int64_t>{0, 200'000}, 1'000'000);
  EXPECT_EQ(pairs.error_us, -100);
}

TEST(Edges, SensitivityPpvMeanAndDeviationOfEachLabel) {
  MetricsConfig config;
  config.background = {"-"};
  Metrics metrics(config);
  // Onsets of P: 0.20, 1.20; offsets: 0.30, 1.30. QRS is missed once and found once too often.
  metrics.add(tiled({{0.2, "-"},
                     {0.3, "P"},
                     {0.4, "-"},
                     {0.5, "QRS"},
                     {1.2, "-"},
                     {1.3, "P"},
                     {2.0, "-"},
                     {2.1, "QRS"},
                     {2.5, "-"}}),
              tiled({{0.21, "-"},
                     {0.3, "P"},
                     {0.4, "-"},
                     {0.5, "QRS"},
                     {1.17, "-"},
                     {1.3, "P"},
                     {1.5, "-"},
                     {1.6, "QRS"},
                     {2.5, "-"}}));
  const LabelCounts& p = metrics.counts().by_label.at("P");
  EXPECT_EQ(p.onsets.hits, 2);
  EXPECT_EQ(p.onsets.recall(), 1);
  EXPECT_NEAR(p.onsets.mean_ms(), (10.0 - 30.0) / 2, 1e-9);
  EXPECT_NEAR(p.onsets.deviation_ms(), std::sqrt(2 * 20.0 * 20.0), 1e-9);  // n - 1 = 1
  EXPECT_NEAR(p.offsets.mean_ms(), 0, 1e-9);
  EXPECT_EQ(p.chunks.hits, 0);
  const LabelCounts& qrs = metrics.counts().by_label.at("QRS");
  EXPECT_EQ(qrs.onsets.gold, 2);
  EXPECT_EQ(qrs.onsets.predicted, 2);
  EXPECT_EQ(qrs.onsets.hits, 1);
  EXPECT_EQ(qrs.onsets.precision(), 0.5);
  EXPECT_TRUE(std::isnan(qrs.onsets.deviation_ms()));
  EXPECT_EQ(qrs.chunks.f1(), 0.5);
  EXPECT_FALSE(metrics.counts().by_label.contains("-"));
  EXPECT_EQ(metrics.counts().edges.gold, 8);
  EXPECT_EQ(metrics.counts().edges.hits, 6);
  EXPECT_EQ(metrics.counts().chunks.hits, 1);
  EXPECT_EQ(metrics.counts().chunk_f1_macro(), 0.25);
}

TEST(Edges, TheEndsOfTheRecordingAreNone) {
  Metrics metrics;
  metrics.add(tiled({{1, "a"}}), tiled({{1, "a"}}));
  const LabelCounts& a = metrics.counts().by_label.at("a");
  EXPECT_EQ(a.onsets.gold + a.offsets.gold + a.onsets.predicted + a.offsets.predicted, 0);
  EXPECT_EQ(a.onsets.recall(), 1);
  EXPECT_TRUE(std::isnan(a.onsets.mean_ms()));
  EXPECT_EQ(a.chunks.hits, 1);
  metrics.add(tiled({{0.5, "a"}, {1, "b"}}), tiled({{0.5, "a"}, {1, "b"}}));
  EXPECT_EQ(metrics.counts().by_label.at("a").offsets.hits, 1);
  EXPECT_EQ(metrics.counts().by_label.at("b").onsets.hits, 1);
  EXPECT_EQ(metrics.counts().by_label.at("b").offsets.gold, 0);
}

TEST(Edges, TheToleranceIsTheConfigured) {
  MetricsConfig config;
  config.edge_tolerance = 0.05;
  for (const auto& [off, hits] : {std::pair(0.05, 1), {0.0501, 0}}) {
    Metrics metrics(config);
    metrics.add(tiled({{1, "a"}, {2, "b"}}), tiled({{1 + off, "a"}, {2, "b"}}));
    EXPECT_EQ(metrics.counts().by_label.at("b").onsets.hits, hits);
  }
  config.edge_tolerance = 1.5;
  EXPECT_THROW(Metrics{config}, UsageError);
}

/// (start, end, label) in frames of 10 ms, as the CoNLL evaluation compares chunks.
using Chunk = std::tuple<std::int64_t, std::int64_t, std::string>;
std::vector<Chunk> chunks_of(const Annotation& annotation,
                             const std::set<std::string>& background) {
  std::vector<Chunk> out;
  for (const LabelSegment& s : annotation.segments)
    if (!background.contains(s.label))
      out.emplace_back(std::llround(s.start * 100), std::llround(s.end * 100), s.label);
  return out;
}

TEST(Chunks, AreCountedAsSetsOfChunks) {
  Rng rng(8);
  MetricsConfig config;
  config.background = {"c"};
  Metrics all(config);
  std::map<std::string, std::array<std::int64_t, 3>> expected;
  for (int round = 0; round < 500; ++round) {
    const Annotation gold = random_tiling(rng);
    Annotation predicted = rng.below(3) == 0 ? gold : random_tiling(rng);
    for (LabelSegment& s : predicted.segments)
      if (rng.below(4) == 0) s.label = "b";
    all.add(gold, predicted);
    const std::vector<Chunk> of_gold = chunks_of(gold, {"c"});
    const std::vector<Chunk> of_predicted = chunks_of(predicted, {"c"});
    for (const Chunk& chunk : of_gold) {
      ++expected[std::get<2>(chunk)][0];
      expected[std::get<2>(chunk)][2] += std::ranges::count(of_predicted, chunk);
    }
    for (const Chunk& chunk : of_predicted) ++expected[std::get<2>(chunk)][1];
  }
  double macro = 0;
  std::int64_t hits = 0;
  ASSERT_EQ(all.counts().by_label.size(), 2U);
  for (const auto& [label, counted] : expected) {
    const MatchCounts& found = all.counts().by_label.at(label).chunks;
    EXPECT_EQ(found.gold, counted[0]);
    EXPECT_EQ(found.predicted, counted[1]);
    EXPECT_EQ(found.hits, counted[2]);
    macro += 2.0 * static_cast<double>(counted[2]) / static_cast<double>(counted[0] + counted[1]);
    hits += counted[2];
  }
  EXPECT_NEAR(all.counts().chunk_f1_macro(), macro / 2, 1e-12);
  EXPECT_EQ(all.counts().chunks.hits, hits);
}

TEST(Chunks, WithoutABackgroundTheyAreTheExactSegments) {
  Rng rng(9);
  Metrics all;
  for (int round = 0; round < 100; ++round) {
    const Annotation gold = random_tiling(rng, 0.007);
    all.add(gold, rng.below(2) == 0 ? gold : random_tiling(rng, 0.007));
  }
  EXPECT_EQ(all.counts().chunks.gold, all.exact_segments().gold);
  EXPECT_EQ(all.counts().chunks.predicted, all.exact_segments().predicted);
  EXPECT_EQ(all.counts().chunks.hits, all.exact_segments().hits);
  EXPECT_EQ(all.counts().foreground.rate(), all.label_error_rate());
}

/// Edit distance.
std::int64_t edits(const std::string& a, const std::string& b) {
  std::vector<std::int64_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<std::int64_t>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::int64_t diagonal = row[0]++;
    for (std::size_t j = 1; j < row.size(); ++j) {
      const std::int64_t next =
          std::min({diagonal + (a[i - 1] == b[j - 1] ? 0 : 1), row[j] + 1, row[j - 1] + 1});
      diagonal = std::exchange(row[j], next);
    }
  }
  return row.back();
}

// Gaps are left out; what they part stays two, as in the syllable error rate.
TEST(SegmentErrors, AreEditsOfTheLabelsWithoutTheBackground) {
  Rng rng(10);
  MetricsConfig config;
  config.background = {"c", "nothing has this label"};
  Metrics all(config);
  std::int64_t sum = 0, gold_labels = 0;
  const auto text = [](const Annotation& annotation) {
    std::string out;
    for (const LabelSegment& s : annotation.segments)
      if (s.label != "c") out += s.label;
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    const Annotation gold = random_tiling(rng), predicted = random_tiling(rng);
    all.add(gold, predicted);
    sum += edits(text(gold), text(predicted));
    gold_labels += std::ssize(text(gold));
  }
  const LabelErrors& found = all.counts().foreground;
  EXPECT_EQ(found.gold, gold_labels);
  EXPECT_EQ(found.substitutions + found.insertions + found.deletions, sum);
  Metrics song(config);
  song.add(tiled({{1, "a"}, {2, "c"}, {3, "a"}}), tiled({{1, "a"}, {3, "c"}}));
  EXPECT_EQ(song.counts().foreground.gold, 2);
  EXPECT_EQ(song.counts().foreground.deletions, 1);
}

TEST(Fields, FoldingComesFirst) {
  MetricsConfig config;
  config.folding.set("sil", "gap");
  config.folding.set("x", std::nullopt);
  config.background = {"gap"};
  Metrics metrics(config);
  metrics.add(tiled({{1, "sil"}, {2, "a"}, {3, "x"}, {4, "a"}, {5, "gap"}}),
              tiled({{1, "gap"}, {2, "a"}, {3, "x"}, {4, "a"}, {5, "sil"}}));
  EXPECT_EQ(metrics.counts().by_label.size(), 1U);
  EXPECT_EQ(metrics.counts().chunks.gold, 2);
  EXPECT_EQ(metrics.counts().foreground.gold, 1);  // what the deleted one parted is one
  EXPECT_EQ(metrics.counts().foreground.rate(), 0);
  EXPECT_EQ(metrics.counts().by_label.at("a").onsets.hits, 2);
}

TEST(Fields, NothingIsPerfectAndJsonHasNulls) {
  Metrics none;
  EXPECT_EQ(none.counts().chunk_f1_macro(), 1);
  EXPECT_EQ(none.counts().foreground.rate(), 0);
  Metrics metrics;
  metrics.add(tiled({{1, "a"}, {2, "b"}}), tiled({{2, "a"}}));
  const auto json = nlohmann::json::parse(metrics.to_json());
  EXPECT_EQ(json.at("edge_tolerance"), 0.15);
  EXPECT_EQ(json.at("background"), nlohmann::json::array());
  EXPECT_EQ(json.at("chunk_f1"), 0);
  EXPECT_EQ(json.at("edge_sensitivity_150ms"), 0);
  EXPECT_EQ(json.at("edge_ppv_150ms"), 1);  // nothing was decoded
  const auto& b = json.at("by_label").at("b");
  EXPECT_EQ(b.at("gold"), 1);
  EXPECT_EQ(b.at("precision"), 1);
  EXPECT_EQ(b.at("recall"), 0);
  EXPECT_EQ(b.at("onsets").at("sensitivity"), 0);
  EXPECT_TRUE(b.at("onsets").at("mean_ms").is_null());
  EXPECT_TRUE(b.at("onsets").at("sd_ms").is_null());
  EXPECT_FALSE(json.at("counts").contains("by_label"));
}

TEST(Fields, TheOrderOfRecordingsDoesNotMatter) {
  Rng rng(12);
  std::vector<std::pair<Annotation, Annotation>> pairs;
  for (int i = 0; i < 20; ++i)
    pairs.emplace_back(random_tiling(rng, 0.0123), random_tiling(rng, 0.0123));
  Metrics forward, backward;
  for (const auto& [gold, predicted] : pairs) forward.add(gold, predicted);
  for (std::size_t i = pairs.size(); i-- > 0;) {
    Metrics one;
    one.add(pairs[i].first, pairs[i].second);
    backward.merge(one);
  }
  EXPECT_EQ(forward.to_json(), backward.to_json());
}

TEST(Fields, CountsOfFormerVersionsHaveNone) {
  Metrics metrics;
  metrics.add(tiled({{1, "a"}, {2, "b"}}), tiled({{1, "a"}, {2, "b"}}));
  Json json = metrics::counts_json(metrics.counts(), {0.02});
  const auto read = [&] { return metrics::counts_from_json(JsonPlace(json, "test"), {0.02}); };
  EXPECT_TRUE(read().has_fields);
  EXPECT_EQ(read().edges.hits, 2);
  json["by_label"]["a"]["offsets"]["square_us"] = -1;
  EXPECT_THROW(read(), DataError);
  json["by_label"]["a"]["offsets"] = {
      {"gold", 1}, {"predicted", 1}, {"hits", 2}, {"error_us", 0}, {"square_us", 0}};
  EXPECT_THROW(read(), DataError);
  json.erase("foreground");
  json.erase("by_label");
  EXPECT_FALSE(read().has_fields);
  MetricCounts sum = metrics.counts();
  sum.add(read());
  EXPECT_FALSE(sum.has_fields);
  EXPECT_EQ(sum.labels.gold, 4);
}

}  // namespace
}  // namespace segfuse
