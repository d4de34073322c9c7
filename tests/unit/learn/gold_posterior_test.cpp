#include <gtest/gtest.h>

#include <cmath>

#include "learn/train/decode/evaluation.h"
#include "learn/train/loop/crf_start.h"
#include "unit/learn/small_data.h"

namespace segfuse::learn {
namespace {

TrainedModel some_model(HeadKind head) {
  TrainedModel model;
  model.config = parse_train_config("", "test");
  model.config.model = tiny(0, head);
  const std::string names[] = {"a", "b", "c"};
  std::vector<Annotation> golds(1);
  for (const std::string& name : names) golds[0].segments.push_back({0, 1, name, 0});
  model.labels = Alphabet::of(golds);
  model.duration_limit = head == HeadKind::kSemiMarkov ? duration_limit_table({4, 4, 4}, 4)
                                                       : Tensor::zeros(DType::kF32, {0});
  Rng rng(4);
  const Segmenter segmenter(model.config.model);
  for (const nn::ParameterSpec& spec : segmenter.parameters())
    model.parameters.push_back(segfuse::testing::uniform(rng, DType::kF32, spec.shape));
  return model;
}

/// Recordings whose segments of one label are whole again: two pieces of three frames are one of 6.
LabelledSet some_set(double hop) {
  LabelledSet set;
  set.sequences = some_sequences();
  for (Sequence& sequence : set.sequences) {
    Example& example = set.examples.emplace_back();
    example.id = sequence.id;
    for (const FrameSegment& s : sequence.segments) {
      const std::string label(1, static_cast<char>('a' + s.label));
      const double end = static_cast<double>(s.start + s.duration) * hop;
      if (!example.gold.segments.empty() && example.gold.segments.back().label == label)
        example.gold.segments.back().end = end;
      else
        example.gold.segments.push_back({static_cast<double>(s.start) * hop, end, label, 0});
    }
    example.gold.duration = static_cast<double>(sequence.frames()) * hop;
  }
  return set;
}

class GoldPosterior : public ::testing::TestWithParam<HeadKind> {};

TEST_P(GoldPosterior, IsTheMeanOverTheFramesOfEachGoldSegment) {
  const TrainedModel model = some_model(GetParam());
  const double hop = model.config.features.hop_ms / 1000;
  const LabelledSet set = some_set(hop);
  const Evaluation evaluation = evaluate_model(model, set, {});
  const Segmenter segmenter(model.config.model);
  Decoder decoder(segmenter, model.parameters, model.limits(), {});
  Decoder::Options how;
  how.frame_posteriors = true;
  const std::vector<Decoded> all = decoder.decode(set.sequences, how);
  ASSERT_EQ(evaluation.gold_posterior.size(), all.size());
  std::size_t segments = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<LabelSegment>& gold = set.examples[i].gold.segments;
    ASSERT_EQ(evaluation.gold_posterior[i].size(), gold.size());
    for (std::size_t s = 0; s < gold.size(); ++s, ++segments) {
      const auto first = std::llround(gold[s].start / hop), last = std::llround(gold[s].end / hop);
      double sum = 0;
      for (auto t = first; t < last; ++t)
        sum += all[i].label[static_cast<std::size_t>(t * 3 + gold[s].label[0] - 'a')];
      EXPECT_NEAR(evaluation.gold_posterior[i][s], sum / static_cast<double>(last - first), 1e-6);
    }
  }
  EXPECT_GT(segments, 30U);
}

TEST_P(GoldPosterior, IsNothingWhereTheModelLacksTheLabel) {
  const TrainedModel model = some_model(GetParam());
  LabelledSet set = some_set(model.config.features.hop_ms / 1000);
  set.examples.resize(1);
  set.sequences.resize(1);
  set.examples[0].gold.segments[1].label = "other";
  const LabelSegment& other = set.examples[0].gold.segments[1];
  const double hop = model.config.features.hop_ms / 1000;
  for (FrameSegment& s : set.sequences[0].segments)
    if (static_cast<double>(s.start) * hop > other.start - 1e-9 &&
        static_cast<double>(s.start) * hop < other.end - 1e-9)
      s.label = kUnknownLabel;
  const Evaluation evaluation = evaluate_model(model, set, {});
  EXPECT_TRUE(std::isnan(evaluation.gold_posterior[0][1]));
  EXPECT_TRUE(std::isfinite(evaluation.gold_posterior[0][0]));
}

TEST_P(GoldPosterior, PartsOfARecordingAreMeasuredTogether) {
  const TrainedModel model = some_model(GetParam());
  LabelledSet set = some_set(model.config.features.hop_ms / 1000);
  for (std::size_t i = 0; i < 3; ++i) set.examples[i].part_of = "whole";
  const Evaluation evaluation = evaluate_model(model, set, {});
  EXPECT_EQ(evaluation.by_recording.size(), set.examples.size() - 2);
  MetricCounts sum = evaluation.by_recording.begin()->second;
  for (auto it = std::next(evaluation.by_recording.begin()); it != evaluation.by_recording.end();
       ++it)
    sum.add(it->second);
  EXPECT_EQ(sum.frames, evaluation.metrics.counts().frames);
  EXPECT_EQ(sum.labels.rate(), evaluation.metrics.label_error_rate());
}

INSTANTIATE_TEST_SUITE_P(Heads, GoldPosterior,
                         ::testing::Values(HeadKind::kSemiMarkov, HeadKind::kLinearChain,
                                           HeadKind::kSoftmax));

}  // namespace
}  // namespace segfuse::learn
