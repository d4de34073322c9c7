#include "learn/train/loop/corpus.h"

#include <gtest/gtest.h>

#include <cmath>

#include "learn/train/decode/decoder.h"
#include "learn/train/loop/crf_start.h"

namespace segfuse::learn {
namespace {

Sequence sequence(const std::string& id, std::vector<FrameSegment> segments) {
  std::int64_t frames = 0;
  for (const FrameSegment& s : segments) frames += s.duration;
  Tensor features(DType::kF32, {frames, 2});
  for (std::int64_t i = 0; i < features.size(); ++i) features.set(i, static_cast<double>(i + 1));
  return {id, features, std::move(segments)};
}

ModelConfig model(HeadKind head, std::int64_t subsample) {
  ModelConfig m;
  m.head = head;
  m.subsample = subsample;
  m.features = 2;
  m.classes = 3;
  m.max_duration = 4;
  return m;
}

TEST(Corpus, BatchPadsToTheSubsamplingAndMarksStarts) {
  const std::vector<Sequence> set{sequence("a", {{0, 2, 1}, {2, 1, 1}}),
                                  sequence("b", {{0, 1, 2}})};
  const Batch batch = make_batch(set, {1, 0}, model(HeadKind::kSemiMarkov, 2));
  EXPECT_EQ(batch.features.shape(), (Shape{2, 4, 2}));
  EXPECT_EQ(batch.lengths.at(0), 1);
  EXPECT_EQ(batch.lengths.at(1), 3);
  EXPECT_EQ(batch.segments, 3);
  EXPECT_EQ(batch.features.at(2), 0) << "padding";
  EXPECT_EQ(batch.features.at(8), 1);
  const std::vector<double> starts{1, 0, 0, 0, 1, 0, 1, 0};  // two segments of one label stay two
  for (std::size_t i = 0; i < starts.size(); ++i)
    EXPECT_EQ(batch.segment_start.at(static_cast<std::int64_t>(i)), starts[i]) << i;
}

TEST(Corpus, EveryFrameStartsASegmentOfTheLinearChain) {
  const std::vector<Sequence> set{sequence("a", {{0, 3, 1}})};
  const Batch batch = make_batch(set, {0}, model(HeadKind::kLinearChain, 1));
  for (int t = 0; t < 3; ++t) EXPECT_EQ(batch.segment_start.at(t), 1);
}

TEST(Corpus, LongSegmentsAreSplitEvenly) {
  const auto parts = split_long({{0, 3, 0}, {3, 10, 1}, {13, 4, 1}}, {3, 4});
  const std::vector<FrameSegment> expected{{0, 3, 0}, {3, 4, 1}, {7, 3, 1}, {10, 3, 1}, {13, 4, 1}};
  EXPECT_EQ(parts, expected);
}

TEST(Corpus, PiecesAreJoinedToWhatWasCut) {
  const std::vector<std::int64_t> limits{3, 4, 5};
  const std::vector<FrameSegment> gold{{0, 11, 0}, {11, 2, 1}, {13, 2, 1}, {15, 9, 1}, {24, 2, 2}};
  const auto full = split_long(gold, limits, true);
  const std::vector<FrameSegment> expected{{0, 3, 0},  {3, 3, 0},  {6, 3, 0},  {9, 2, 0},
                                           {11, 2, 1}, {13, 2, 1}, {15, 4, 1}, {19, 4, 1},
                                           {23, 1, 1}, {24, 2, 2}};
  EXPECT_EQ(full, expected);
  // Label 1 follows itself: a piece goes on only behind a full one.
  const std::vector<bool> joins{true, false, true};
  EXPECT_EQ(join_pieces(full, joins, limits), gold);
  const std::vector<FrameSegment> apart{{0, 2, 1}, {2, 3, 1}, {5, 13, 0}, {18, 1, 1}};
  EXPECT_EQ(join_pieces(split_long(apart, limits, true), joins, limits), apart);
  // A label that never follows itself is joined however it was cut.
  EXPECT_EQ(join_pieces(split_long({{0, 10, 0}}, limits), joins, limits),
            (std::vector<FrameSegment>{{0, 10, 0}}));
  EXPECT_EQ(limits_of(duration_limit_table(limits, 5)), limits);
}

TEST(Corpus, StatisticsCountEverySegmentOnce) {
  const std::vector<Sequence> set{sequence("a", {{0, 2, 1}, {2, 1, 2}, {3, 2, 1}}),
                                  sequence("b", {{0, 4, 0}})};
  const LabelStatistics s = count_labels(set, 3, 4);
  EXPECT_EQ(s.initial, (std::vector<double>{1, 1, 0}));
  EXPECT_EQ(s.final, (std::vector<double>{1, 1, 0}));
  EXPECT_EQ(s.transition[1][2], 1);
  EXPECT_EQ(s.transition[2][1], 1);
  EXPECT_EQ(s.duration[1][1], 2);
  EXPECT_EQ(s.duration[0][2], 1);
  EXPECT_EQ(s.duration[3][0], 1);
  EXPECT_EQ(s.longest, (std::vector<std::int64_t>{4, 2, 1}));
}

TEST(CrfStart, LimitsAllowWhatWasSeenAndSomeMore) {
  LabelStatistics s;
  s.longest = {1, 8, 0, 99};
  const auto limits = duration_limits(s, 100);
  EXPECT_EQ(limits, (std::vector<std::int64_t>{3, 12, 100, 100}));
  const Tensor table = duration_limit_table(limits, 100);
  EXPECT_EQ(table.at(2 * 4 + 0), 0);
  EXPECT_TRUE(std::isinf(table.at(3 * 4 + 0)));
  EXPECT_EQ(table.at(99 * 4 + 2), 0);
}

TEST(CrfStart, StartsFromNormalisedFrequencies) {
  const std::vector<Sequence> set{sequence("a", {{0, 2, 1}, {2, 1, 2}, {3, 2, 1}, {5, 2, 0}})};
  const Segmenter segmenter(model(HeadKind::kSemiMarkov, 1));
  std::vector<Tensor> parameters;
  for (const auto& spec : segmenter.parameters()) parameters.push_back(nn::initial_value(spec, 1));
  start_crf(segmenter, count_labels(set, 3, 4), parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = segmenter.parameters()[i].name;
    if (name == "crf.transition") {
      for (int from = 0; from < 3; ++from) {
        double sum = 0;
        for (int to = 0; to < 3; ++to) sum += std::exp(parameters[i].at(from * 3 + to));
        EXPECT_NEAR(sum, 1, 1e-6);
      }
      EXPECT_GT(parameters[i].at(1 * 3 + 2), parameters[i].at(1 * 3 + 1));
    }
    if (name == "crf.duration") {
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int d = 0; d < 4; ++d) sum += std::exp(parameters[i].at(d * 3 + c));
        EXPECT_NEAR(sum, 1, 1e-6);
      }
      EXPECT_GT(parameters[i].at(1 * 3 + 1), parameters[i].at(0 * 3 + 1))
          << "label 1 lasts two frames";
    }
  }
}

}  // namespace
}  // namespace segfuse::learn
