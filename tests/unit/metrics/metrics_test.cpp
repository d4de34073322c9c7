#include "segfuse/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "learn/metrics/alignment.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using metrics::TimedLabel;

struct Piece {
  double seconds;
  std::string label;
};

Annotation annotation(const std::vector<Piece>& pieces) {
  Annotation out;
  double at = 0;
  for (const Piece& piece : pieces) {
    out.segments.push_back({at, at + piece.seconds, piece.label, 0});
    at += piece.seconds;
  }
  out.duration = at;
  return out;
}

Annotation random_annotation(Rng& rng, std::size_t most, int labels, double step) {
  Annotation out;
  double at = 0;
  for (std::uint64_t i = 1 + rng.below(most); i > 0; --i) {
    const double end = at + step * static_cast<double>(1 + rng.below(6));
    out.segments.push_back(
        {at, end,
         std::string(1, static_cast<char>('a' + rng.below(static_cast<std::uint64_t>(labels)))),
         0});
    at = end;
  }
  out.duration = at;
  return out;
}

std::vector<TimedLabel> random_segments(Rng& rng, std::size_t most, int labels) {
  std::vector<TimedLabel> out;
  for (const LabelSegment& s : random_annotation(rng, most, labels, 1).segments)
    out.push_back({s.label, std::llround(s.start), std::llround(s.end)});
  return out;
}

// ------------------------------------------------------------------- against enumeration

struct Cost {
  std::int64_t edits = 0;
  std::int64_t overlap = 0;
  bool better_than(const Cost& other) const {
    return edits < other.edits || (edits == other.edits && overlap > other.overlap);
  }
};

/// Tries all alignments.
Cost best_alignment(const std::vector<TimedLabel>& a, const std::vector<TimedLabel>& b,
                    std::size_t i, std::size_t j) {
  if (i == a.size()) return {static_cast<std::int64_t>(b.size() - j), 0};
  if (j == b.size()) return {static_cast<std::int64_t>(a.size() - i), 0};
  Cost best = best_alignment(a, b, i + 1, j);
  ++best.edits;
  Cost insert = best_alignment(a, b, i, j + 1);
  ++insert.edits;
  if (insert.better_than(best)) best = insert;
  Cost pair = best_alignment(a, b, i + 1, j + 1);
  pair.edits += a[i].label == b[j].label ? 0 : 1;
  pair.overlap +=
      std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].start, b[j].start));
  return pair.better_than(best) ? pair : best;
}

TEST(Alignment, IsTheBestOfAll) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TimedLabel> a = random_segments(rng, 6, 3);
    const std::vector<TimedLabel> b = random_segments(rng, 6, 3);
    Cost found;
    std::int64_t next_a = 0;
    std::int64_t next_b = 0;
    for (const metrics::AlignedPair& pair : metrics::align_labels(a, b)) {
      if (pair.gold >= 0) {
        ASSERT_EQ(pair.gold, next_a++);
      }
      if (pair.predicted >= 0) {
        ASSERT_EQ(pair.predicted, next_b++);
      }
      if (pair.gold < 0 || pair.predicted < 0) {
        ++found.edits;
        continue;
      }
      const TimedLabel& x = a[static_cast<std::size_t>(pair.gold)];
      const TimedLabel& y = b[static_cast<std::size_t>(pair.predicted)];
      found.edits += x.label == y.label ? 0 : 1;
      found.overlap +=
          std::max<std::int64_t>(0, std::min(x.end, y.end) - std::max(x.start, y.start));
    }
    ASSERT_EQ(next_a, a.size());
    ASSERT_EQ(next_b, b.size());
    const Cost best = best_alignment(a, b, 0, 0);
    EXPECT_EQ(found.edits, best.edits);
    EXPECT_EQ(found.overlap, best.overlap);
  }
}

/// The largest matching by trying for each gold item all free partners, and none.
template <class Fits>
std::int64_t largest_matching(std::size_t gold, std::size_t predicted, std::size_t i, unsigned used,
                              Fits fits) {
  if (i == gold) return 0;
  std::int64_t best = largest_matching(gold, predicted, i + 1, used, fits);
  for (std::size_t j = 0; j < predicted; ++j)
    if ((used >> j & 1U) == 0 && fits(i, j))
      best = std::max(best, 1 + largest_matching(gold, predicted, i + 1, used | 1U << j, fits));
  return best;
}

TEST(MatchTimes, IsTheLargestMatching) {
  Rng rng(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> a(rng.below(7));
    std::vector<std::int64_t> b(rng.below(7));
    for (std::int64_t& x : a) x = static_cast<std::int64_t>(rng.below(20));
    for (std::int64_t& x : b) x = static_cast<std::int64_t>(rng.below(20));
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    const auto tolerance = static_cast<std::int64_t>(rng.below(5));
    EXPECT_EQ(metrics::match_times(a, b, tolerance),
              largest_matching(a.size(), b.size(), 0, 0, [&](std::size_t i, std::size_t j) {
                return std::abs(a[i] - b[j]) <= tolerance;
              }));
  }
}

TEST(MatchSegments, IsTheLargestMatching) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    const std::vector<TimedLabel> a = random_segments(rng, 7, 2);
    const std::vector<TimedLabel> b = random_segments(rng, 7, 2);
    const auto tolerance = static_cast<std::int64_t>(rng.below(5));
    EXPECT_EQ(metrics::match_segments(a, b, tolerance),
              largest_matching(a.size(), b.size(), 0, 0, [&](std::size_t i, std::size_t j) {
                return a[i].label == b[j].label && std::abs(a[i].start - b[j].start) <= tolerance &&
                       std::abs(a[i].end - b[j].end) <= tolerance;
              }));
  }
}

// ------------------------------------------------------------------------- computed by hand

TEST(Metrics, ACaseByHand) {
  Metrics metrics;
  // gold       a 0-.10 | b .10-.20 | c .20-.30 | a .30-.40
  // predicted  a 0-.12 | c .12-.25 | a .25-.41
  metrics.add(annotation({{0.1, "a"}, {0.1, "b"}, {0.1, "c"}, {0.1, "a"}}),
              annotation({{0.12, "a"}, {0.13, "c"}, {0.16, "a"}}));
  // Frames right: 0-9, 20-24, 30-39 = 25 of 41 (one predicted frame behind the end).
  EXPECT_DOUBLE_EQ(metrics.frame_accuracy(), 25.0 / 41);
  EXPECT_EQ(metrics.label_errors().deletions, 1);
  EXPECT_EQ(metrics.label_errors().substitutions, 0);
  EXPECT_EQ(metrics.label_errors().insertions, 0);
  EXPECT_DOUBLE_EQ(metrics.label_error_rate(), 0.25);
  // Gold .10 .20 .30, predicted .12 .25: one hit (.12 is exactly 20 ms off).
  const BoundaryCounts& boundaries = metrics.boundaries();
  EXPECT_EQ(boundaries.gold, 3);
  EXPECT_EQ(boundaries.predicted, 2);
  EXPECT_EQ(boundaries.hits, 1);
  EXPECT_DOUBLE_EQ(boundaries.precision(), 0.5);
  EXPECT_DOUBLE_EQ(boundaries.recall(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(boundaries.f1(), 0.4);
  EXPECT_NEAR(boundaries.over_segmentation(), -1.0 / 3, 1e-12);
  // r1 = sqrt((2/3)^2 + (1/3)^2), r2 = (-2/3 + 1/3) / sqrt 2.
  EXPECT_NEAR(boundaries.r_value(), 1 - (std::sqrt(5.0) / 3 + 1 / (3 * std::sqrt(2.0))) / 2, 1e-12);
  // Both edges within 20 ms: the first a only.
  EXPECT_EQ(metrics.segments().hits, 1);
  EXPECT_EQ(metrics.exact_segments().hits, 0);
  const std::map<std::string, LabelDurations> durations = metrics.durations();
  EXPECT_NEAR(durations.at("a").mean_absolute_error, (0.02 + 0.06) / 2, 1e-12);
  EXPECT_NEAR(durations.at("a").relative_bias, 0.14 / 0.1 - 1, 1e-12);
  EXPECT_EQ(durations.at("b").predicted, 0);
  EXPECT_EQ(metrics.confusions().at({"b", ""}), 1);
  EXPECT_EQ(metrics.confusions().at({"a", "a"}), 2);
}

TEST(Metrics, EdgesOfExactSegmentsAreThoseOfTheNearestFrames) {
  const auto hits = [](double boundary) {
    Metrics metrics;
    metrics.add(annotation({{0.1, "a"}, {0.1, "b"}}),
                annotation({{boundary, "a"}, {0.2 - boundary, "b"}}));
    return metrics.exact_segments().hits;
  };
  for (const double same : {0.095, 0.096, 0.1, 0.104}) EXPECT_EQ(hits(same), 2) << same;
  for (const double other : {0.094, 0.105}) EXPECT_EQ(hits(other), 0) << other;
}

TEST(Metrics, PublishedRValues) {
  // Räsänen et al. 2009: no over-segmentation at a hit rate of 1 is 1; random placement of twice as
  // many boundaries with a perfect hit rate must not be.
  BoundaryCounts counts;
  counts.gold = counts.predicted = counts.hits = 100;
  EXPECT_DOUBLE_EQ(counts.r_value(), 1);
  counts.predicted = 200;  // r1 = 1, r2 = -1 / sqrt 2
  EXPECT_NEAR(counts.r_value(), 1 - (1 + 1 / std::sqrt(2.0)) / 2, 1e-12);
}

TEST(Metrics, APerfectPredictionIsPerfect) {
  Metrics metrics;
  Rng rng(4);
  for (int i = 0; i < 20; ++i) {
    const Annotation gold = random_annotation(rng, 20, 4, 0.013);
    metrics.add(gold, gold);
  }
  EXPECT_EQ(metrics.frame_accuracy(), 1);
  EXPECT_EQ(metrics.label_error_rate(), 0);
  EXPECT_EQ(metrics.boundaries().f1(), 1);
  EXPECT_EQ(metrics.boundaries().r_value(), 1);
  EXPECT_EQ(metrics.exact_segments().f1(), 1);
  EXPECT_EQ(metrics.segments().f1(), 1);
}

TEST(Metrics, EmptyQuotientsArePerfectAndFinite) {
  const Metrics none;
  EXPECT_EQ(none.frame_accuracy(), 1);
  EXPECT_EQ(none.label_error_rate(), 0);
  EXPECT_EQ(none.boundaries().r_value(), 1);
  Metrics one;
  one.add(annotation({{1, "a"}}), annotation({{0.5, "a"}, {0.5, "b"}}));
  EXPECT_EQ(one.boundaries().recall(), 1);
  EXPECT_EQ(one.boundaries().precision(), 0);
  EXPECT_EQ(one.boundaries().f1(), 0);
  EXPECT_TRUE(std::isfinite(one.boundaries().r_value()));
}

TEST(Metrics, ADistanceEqualToTheToleranceCountsDespiteRounding) {
  for (int i = 1; i < 200; ++i) {
    Metrics metrics;
    const double at = 0.01 * i;
    metrics.add(annotation({{at, "a"}, {5, "b"}}), annotation({{at + 0.02, "a"}, {5, "b"}}));
    EXPECT_EQ(metrics.boundaries().hits, 1) << at;
    Metrics beyond;
    beyond.add(annotation({{at, "a"}, {5, "b"}}), annotation({{at + 0.02001, "a"}, {5, "b"}}));
    EXPECT_EQ(beyond.boundaries().hits, 0) << at;
  }
}

TEST(Metrics, ATolerancesFractionOfANanosecondIsNotLost) {
  MetricsConfig config;
  config.tolerances = {10 / 44100.0};
  Metrics metrics(config);
  for (int i = 1; i <= 200; ++i)
    metrics.add(annotation({{i / 44100.0, "a"}, {5, "b"}}),
                annotation({{(i + 10) / 44100.0, "a"}, {5, "b"}}));
  EXPECT_EQ(metrics.boundaries().hits, 200);
}

TEST(Metrics, OrderAndGroupingDoNotMatter) {
  Rng rng(5);
  std::vector<std::pair<Annotation, Annotation>> pairs;
  for (int i = 0; i < 30; ++i) {
    const double step = 0.001 * (1 + 9 * rng.uniform());
    pairs.emplace_back(random_annotation(rng, 15, 4, step), random_annotation(rng, 15, 4, step));
  }
  Metrics forward;
  Metrics backward;
  Metrics halves[2];
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    forward.add(pairs[i].first, pairs[i].second);
    backward.add(pairs[29 - i].first, pairs[29 - i].second);
    halves[i % 2].add(pairs[i].first, pairs[i].second);
  }
  halves[0].merge(halves[1]);
  EXPECT_EQ(forward.to_json(), backward.to_json());
  EXPECT_EQ(forward.to_json(), halves[0].to_json());
}

TEST(Metrics, FoldingGivesThePhoneErrorRate) {
  MetricsConfig config;
  config.folding.set("bcl", "sil");
  config.folding.set("h#", "sil");
  config.folding.set("q", std::nullopt);
  Metrics metrics(config);
  // gold folds to: sil(h#+bcl) b | q gone | aa ; predicted to: sil b aa
  metrics.add(annotation({{0.1, "h#"}, {0.1, "bcl"}, {0.1, "b"}, {0.1, "q"}, {0.1, "aa"}}),
              annotation({{0.2, "sil"}, {0.1, "b"}, {0.2, "aa"}}));
  EXPECT_EQ(metrics.label_errors().gold, 3);
  EXPECT_EQ(metrics.label_error_rate(), 0);
  // Frames of q do not count; all others agree.
  EXPECT_EQ(metrics.frame_accuracy(), 1);
  // Boundaries are those of the unfolded segments: .1 .2 .3 .4 against .2 .3.
  EXPECT_EQ(metrics.boundaries().gold, 4);
  EXPECT_EQ(metrics.boundaries().hits, 2);
  // h# and bcl are not one segment here, so sil and aa find no partner.
  EXPECT_EQ(metrics.exact_segments().gold, 4);
  EXPECT_EQ(metrics.exact_segments().hits, 1);
}

TEST(Metrics, SyllablesMayRepeatWhereTheGapIsDeleted) {
  const Annotation gold =
      annotation({{0.1, "a"}, {0.1, "gap"}, {0.1, "a"}, {0.1, "gap"}, {0.1, "b"}, {0.1, "b"}});
  const Annotation one_missing = annotation({{0.3, "a"}, {0.1, "gap"}, {0.1, "b"}, {0.1, "b"}});
  for (const bool merge : {true, false}) {
    MetricsConfig config;
    config.folding.set("gap", std::nullopt);
    config.merge_folded = merge;
    Metrics metrics(config);
    metrics.add(gold, one_missing);
    EXPECT_EQ(metrics.label_errors().gold, merge ? 3 : 4) << "b b had one label all the time";
    EXPECT_EQ(metrics.label_errors().deletions, merge ? 0 : 1);
    EXPECT_EQ(metrics.durations().at("a").gold, merge ? 1 : 2);
  }
}

TEST(Metrics, FramesNeedNoWholeNumberOfNanoseconds) {
  for (const int rate : {44100, 22050, 360}) {
    MetricsConfig config;
    config.frame_seconds = 1.0 / rate;
    Annotation gold;
    Annotation predicted;
    const std::int64_t frames = std::int64_t{60} * rate;
    for (std::int64_t i = 0; i < frames; i += 900) {
      const auto edge = [&](std::int64_t frame, double share) {  // a fifth of a frame is none
        const double off = frame == 0 || frame == frames ? 0 : share;
        return (static_cast<double>(frame) + off) / rate;
      };
      const std::string label(1, static_cast<char>('a' + i / 900 % 3));
      gold.segments.push_back({edge(i, 0.2), edge(i + 900, 0.2), label, 0});
      predicted.segments.push_back({edge(i, 0), edge(i + 900, 0), label, 0});
    }
    Metrics metrics(config);
    metrics.add(gold, predicted);
    EXPECT_EQ(metrics.exact_segments().f1(), 1) << rate;
    EXPECT_EQ(metrics.counts().chunks.f1(), 1) << rate;
    EXPECT_EQ(metrics.frame_accuracy(), 1) << rate;
    EXPECT_EQ(metrics.counts().frames, frames) << rate;
  }
}

TEST(Metrics, JsonHasTheNamesThatOthersRead) {
  MetricsConfig config;
  config.tolerances = {0.02, 0.0125};
  Metrics metrics(config);
  metrics.add(annotation({{0.1, "a"}, {0.1, "b"}}), annotation({{0.1, "a"}, {0.1, "c"}}));
  const nlohmann::json json = nlohmann::json::parse(metrics.to_json());
  EXPECT_EQ(json.at("label_error_rate"), 0.5);
  EXPECT_EQ(json.at("boundary_f1_20ms"), 1);
  EXPECT_EQ(json.at("r_value_20ms"), 1);
  EXPECT_EQ(json.at("frame_accuracy"), 0.5);
  EXPECT_EQ(json.at("segment_f1_12.5ms"), 0.5);
  EXPECT_EQ(json.at("counts").at("labels").at("substitutions"), 1);
  EXPECT_EQ(json.at("confusions").size(), 2);
}

TEST(Metrics, SegmentsThatDoNotTileAreRefused) {
  Metrics metrics;
  Annotation broken = annotation({{0.1, "a"}, {0.1, "b"}});
  broken.segments[1].start = 0.15;
  try {
    metrics.add(broken, broken);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "the labels: segments must follow each other without gap and have a length; found "
                 "0.15 s to 0.2 s");
  }
  EXPECT_THROW(Metrics({0, {0.02}, {}, true}), UsageError);
  EXPECT_THROW(Metrics({0.01, {-1}, {}, true}), UsageError);
}

}  // namespace
}  // namespace segfuse
