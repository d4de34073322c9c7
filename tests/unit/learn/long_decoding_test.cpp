// Decoding of long recordings: the same bits however the features come, and the segments of
// decoding whole.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "base/rng.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/decode/posterior/frame_rows.h"
#include "learn/train/live/live_decoding.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kClasses = 3;
constexpr std::int64_t kColumns = 5;

struct Small {
  explicit Small(ModelConfig config)
      : segmenter(std::move(config)),
        limits(Tensor::zeros(DType::kF32,
                             {segmenter.config().max_duration, segmenter.config().classes})) {
    for (const nn::ParameterSpec& spec : segmenter.parameters()) {
      parameters.push_back(nn::initial_value(spec, 3));
      if (spec.name == "crf.duration" || spec.name == "crf.transition") {
        Rng rng(4, spec.name.size());
        for (float& x : parameters.back().span<float>()) x = static_cast<float>(rng.normal());
      }
    }
  }
  Decoder decoder() const { return {segmenter, parameters, limits, {}}; }

  Segmenter segmenter;
  std::vector<Tensor> parameters;
  Limits limits;
};

ModelConfig config_of(HeadKind head, std::int64_t subsample, bool boundaries) {
  ModelConfig config;
  config.width = 8;
  config.stem_kernel = 5;
  config.kernel = 3;
  config.dilations = {1, 3};
  config.subsample = subsample;
  config.head = head;
  config.boundary_scores = boundaries;
  config.features = kColumns;
  config.classes = kClasses;
  config.max_duration = head == HeadKind::kSemiMarkov ? 6 : 1;
  return config;
}

Sequence noise(std::int64_t frames) {
  Sequence sequence{"noise", Tensor(DType::kF32, {frames, kColumns}), {}};
  Rng rng(static_cast<std::uint64_t>(frames), 1);
  for (float& x : sequence.features.span<float>()) x = static_cast<float>(rng.normal());
  return sequence;
}

FeaturePieces in_pieces(const Sequence& sequence, std::int64_t frames) {
  return [&sequence, frames, next = std::int64_t{0}]() mutable {
    const std::int64_t n = std::min(frames, sequence.frames() - next);
    Tensor piece(DType::kF32, {n, kColumns});
    std::copy_n(sequence.features.span<float>().begin() + next * kColumns, n * kColumns,
                piece.span<float>().begin());
    next += n;
    return piece;
  };
}

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void expect_same(const Decoded& a, const Decoded& b, double tolerance) {
  const auto near = [&](double x, double y) {
    return same_number(x, y) || std::abs(x - y) <= tolerance;
  };
  EXPECT_PRED2(near, a.log_probability, b.log_probability);
  ASSERT_EQ(a.segments.size(), b.segments.size());
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    EXPECT_EQ(a.segments[i].segment, b.segments[i].segment) << i;
    EXPECT_PRED2(near, a.segments[i].posterior, b.segments[i].posterior) << i;
    EXPECT_PRED2(near, a.segments[i].label_posterior, b.segments[i].label_posterior) << i;
    EXPECT_PRED2(near, a.segments[i].start_confidence, b.segments[i].start_confidence) << i;
  }
}

TEST(LongDecodings, WhatHasNoSegmentationIsRefusedInTheSameWords) {
  Small model(config_of(HeadKind::kSemiMarkov, 1, false));
  model.limits = duration_limit_table(std::vector<std::int64_t>(3, 6), 6, {4, 4, 4});
  Decoder decoder = model.decoder();
  const Sequence sequence = noise(3);
  const auto said = [](const std::function<void()>& work) -> std::string {
    try {
      work();
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  const std::string whole = said([&] { (void)decoder.decode({sequence}, {}); });
  EXPECT_EQ(whole,
            "noise: the model's durations and grammar allow no segmentation of this recording");
  EXPECT_EQ(said([&] { (void)decoder.decode_long("noise", in_pieces(sequence, 3), {}); }), whole);
}

class LongDecoding : public ::testing::TestWithParam<std::tuple<HeadKind, int, bool>> {};

INSTANTIATE_TEST_SUITE_P(Models, LongDecoding,
                         ::testing::Combine(::testing::Values(HeadKind::kSemiMarkov,
                                                              HeadKind::kLinearChain,
                                                              HeadKind::kSoftmax),
                                            ::testing::Values(1, 3), ::testing::Bool()));

TEST_P(LongDecoding, HasTheSameBitsHoweverFeaturesComeAndTheSegmentsOfTheWhole) {
  const auto [head, subsample, boundaries] = GetParam();
  const Small model(config_of(head, subsample, boundaries));
  Decoder decoder = model.decoder();
  const test::TemporaryDirectory folder;
  Decoder::Options options;
  options.piece_frames = 20;
  options.block_frames = 16;
  options.frame_posteriors = true;
  // Around pieces of the network (20 or 21), its reach (6 or 18) and blocks.
  for (const std::int64_t frames :
       {1, 2, 5, 6, 7, 16, 17, 19, 20, 21, 22, 26, 38, 39, 40, 41, 200}) {
    SCOPED_TRACE(frames);
    const Sequence sequence = noise(frames);
    const Decoded once = decoder.decode_long("noise", in_pieces(sequence, frames), options);
    for (const std::int64_t piece : {1, 3, 64})
      expect_same(decoder.decode_long("noise", in_pieces(sequence, piece), options, folder.path()),
                  once, 0);
    // In pieces and whole it is one recursion, and on the CPU the network has the same bits.
    const Decoded whole = decoder.decode({sequence}, options).front();
    expect_same(once, whole, 0);
    EXPECT_EQ(once.label, whole.label);
    EXPECT_EQ(once.boundary, whole.boundary);
    EXPECT_EQ(std::ssize(whole.label), frames * kClasses);
    const Decoded stored =
        decoder.decode_long("noise", in_pieces(sequence, 7), options, folder.path());
    ASSERT_TRUE(stored.frames);
    std::vector<float> label, boundary;
    stored.frames->for_rows([&](std::int64_t t, std::span<const float> row, float starts) {
      EXPECT_EQ(t, std::ssize(label) / kClasses);
      label.insert(label.end(), row.begin(), row.end());
      if (head != HeadKind::kLinearChain) boundary.push_back(starts);
    });
    EXPECT_EQ(label, whole.label);
    EXPECT_EQ(boundary, whole.boundary);
    Decoder::Options bare = options;
    bare.posteriors = bare.frame_posteriors = false;
    const Decoded without = decoder.decode_long("noise", in_pieces(sequence, 5), bare);
    EXPECT_TRUE(std::ranges::equal(without.segments, once.segments, {}, &DecodedSegment::segment,
                                   &DecodedSegment::segment));
  }
}

std::vector<FrameSegment> live_segments(Decoder& decoder, const Sequence& sequence,
                                        std::int64_t piece, std::optional<std::int64_t> lookahead) {
  const auto live = decoder.live("noise", 4, lookahead);
  const FeaturePieces next = in_pieces(sequence, piece);
  std::vector<FrameSegment> all;
  std::int64_t arrived = 0;
  const auto add = [&](const std::vector<FrameSegment>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  for (Tensor features = next(); features.shape()[0] > 0; features = next()) {
    arrived += features.shape()[0];
    add(live->push(features));
    const std::int64_t given = all.empty() ? 0 : all.back().start + all.back().duration;
    EXPECT_LT(given, arrived);
    if (lookahead) {
      // The segment that covers the last frame that is due may still go on, for K frames at most.
      EXPECT_GT(given, arrived - *lookahead - 7);
    }
  }
  add(live->finish());
  return all;
}

TEST_P(LongDecoding, LiveItHasTheSegmentsOfTheWhole) {
  const auto [head, subsample, boundaries] = GetParam();
  const Small model(config_of(head, subsample, boundaries));
  Decoder decoder = model.decoder();
  for (const std::int64_t frames : {1, 2, 5, 17, 40, 200}) {
    SCOPED_TRACE(frames);
    const Sequence sequence = noise(frames);
    const Decoded whole = decoder.decode({sequence}, {}).front();
    for (const std::int64_t piece : {1, 3, 64})
      EXPECT_TRUE(std::ranges::equal(whole.segments,
                                     live_segments(decoder, sequence, piece, std::nullopt), {},
                                     &DecodedSegment::segment));
  }
}

TEST_P(LongDecoding, LiveItDecidesWithinTheLookahead) {
  const auto [head, subsample, boundaries] = GetParam();
  if (head != HeadKind::kSemiMarkov) GTEST_SKIP() << "a run of one label has no longest duration";
  const Small model(config_of(head, subsample, boundaries));
  Decoder decoder = model.decoder();
  const Sequence sequence = noise(300);
  const std::int64_t least = decoder.least_lookahead(4);
  EXPECT_THROW((void)decoder.live("noise", 4, least - 1), UsageError);
  const auto found = live_segments(decoder, sequence, 1, least);
  EXPECT_EQ(live_segments(decoder, sequence, 64, least), found);
  EXPECT_EQ(found.back().start + found.back().duration, 300);
}

TEST(LongDecoding, LiveItJoinsPieces) {
  ModelConfig config = config_of(HeadKind::kSemiMarkov, 1, false);
  config.joins_neighbours = {true, false, true};
  const Small model(config);
  Decoder decoder = model.decoder();
  const Sequence sequence = noise(200);
  const Decoded whole = decoder.decode({sequence}, {}).front();
  EXPECT_TRUE(std::ranges::equal(whole.segments, live_segments(decoder, sequence, 3, std::nullopt),
                                 {}, &DecodedSegment::segment));
}

TEST(LongDecoding, IsRefusedWhereAFrameDependsOnAllOthers) {
  ModelConfig config = config_of(HeadKind::kSemiMarkov, 1, false);
  EXPECT_TRUE(Small(config).decoder().can_decode_long({}));
  EXPECT_FALSE(Small(config).decoder().can_decode_long({.minimum_risk = true}));
  EXPECT_FALSE(Small(config).decoder().can_decode_long({.k_best = 2}));
  config.recurrent_blocks = 1;
  EXPECT_FALSE(Small(config).decoder().can_decode_long({}));
  config.recurrent_blocks = 0;
  config.attention_blocks = 1;
  Decoder decoder = Small(config).decoder();
  EXPECT_FALSE(decoder.can_decode_long({}));
  EXPECT_THROW((void)decoder.decode_long("x", in_pieces(noise(3), 3), {}), UsageError);
  EXPECT_THROW((void)decoder.live("x", 4, std::nullopt), UsageError);
}

TEST(LongDecoding, NamesTheFrameWhoseScoreIsNoNumber) {
  const Small model(config_of(HeadKind::kSemiMarkov, 1, false));
  Sequence sequence = noise(100);
  for (std::int64_t c = 0; c < kColumns; ++c)
    sequence.features.span<float>()[static_cast<std::size_t>(70 * kColumns + c)] = 3e38F;
  Decoder decoder = model.decoder();
  Decoder::Options options;
  options.piece_frames = 20;
  std::string text[2];
  for (int way = 0; way < 2; ++way) {
    try {
      if (way == 0)
        (void)decoder.decode({sequence}, options);
      else
        (void)decoder.decode_long("noise", in_pieces(sequence, 7), options);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      text[way] = error.what();
    }
  }
  EXPECT_EQ(text[0], text[1]);
}

}  // namespace
}  // namespace segfuse::learn
