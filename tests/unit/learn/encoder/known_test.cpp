// What is known of a recording: of all segmentations by hand those that agree with it.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/context/pool.h"
#include "base/rng.h"
#include "engine/executable.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kFrames = 7;
constexpr std::int64_t kLongest = 4;
constexpr std::int64_t kClasses = 2;

using Path = std::vector<FrameSegment>;

void enumerate(std::int64_t from, Path& made, const std::function<void(const Path&)>& visit) {
  if (from == kFrames) return visit(made);
  for (std::int64_t d = 1; d <= std::min(kFrames - from, kLongest); ++d)
    for (std::int32_t c = 0; c < kClasses; ++c) {
      made.push_back({from, d, c});
      enumerate(from + d, made, visit);
      made.pop_back();
    }
}

/// A semi-Markov model of two labels, and a recording.
struct Case {
  explicit Case(HeadKind head = HeadKind::kSemiMarkov) : segmenter(config_of(head)) {
    for (const nn::ParameterSpec& spec : segmenter.parameters()) {
      parameters.push_back(nn::initial_value(spec, 3));
      Rng rng(4, parameters.size());
      for (float& x : parameters.back().span<float>()) x += static_cast<float>(rng.normal() / 2);
    }
    Rng rng(9);
    for (float& x : sequence.features.span<float>()) x = static_cast<float>(rng.normal());
  }
  static ModelConfig config_of(HeadKind head) {
    ModelConfig config;
    config.width = 4;
    config.stem_kernel = 1;
    config.dilations = {};
    config.head = head;
    config.features = 2;
    config.classes = kClasses;
    config.max_duration = head == HeadKind::kSemiMarkov ? kLongest : 1;
    return config;
  }
  Decoder decoder() const {
    const bool semi = segmenter.config().head == HeadKind::kSemiMarkov;
    return {segmenter,
            parameters,
            Limits(semi ? duration_limit_table({4, 4}, kLongest) : Tensor::zeros(DType::kF32, {0})),
            {}};
  }
  const Tensor& of(const std::string& name) const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (segmenter.parameters()[i].name == name) return parameters[i];
    throw InternalError(name);
  }
  Tensor emission() const {
    ThreadPool pool(1);
    engine::Executable forward(segmenter.inference(), pool);
    BoundInputs inputs(forward.fusion());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (inputs.has(segmenter.parameters()[i].name))
        inputs.set(segmenter.parameters()[i].name, parameters[i]);
    Tensor features(DType::kF32, {1, kFrames, 2});
    std::ranges::copy(sequence.features.span<float>(), features.span<float>().begin());
    inputs.set("features", features);
    inputs.set("lengths", Tensor::from(std::vector<std::int64_t>{kFrames}, {1}));
    return forward.run(inputs.tensors())[0];
  }
  double score(const Path& path, const Tensor& emission) const {
    double sum = of("crf.initial").at(path.front().label) + of("crf.final").at(path.back().label);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto& [start, d, c] = path[i];
      if (i > 0) sum += of("crf.transition").at(path[i - 1].label * kClasses + c);
      sum += of("crf.duration").at((d - 1) * kClasses + c);
      for (std::int64_t t = start; t < start + d; ++t) sum += emission.at(t * kClasses + c);
    }
    return sum;
  }

  Segmenter segmenter;
  std::vector<Tensor> parameters;
  Sequence sequence{"x", Tensor(DType::kF32, {kFrames, 2}), {}};
};

bool agrees(const Path& path, const Known& known) {
  std::vector<std::uint8_t> starts(kFrames, 0);
  for (const FrameSegment& s : path) {
    starts[static_cast<std::size_t>(s.start)] = 1;
    for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
      if (!known.label.empty() && known.label[static_cast<std::size_t>(t)] >= 0 &&
          known.label[static_cast<std::size_t>(t)] != s.label)
        return false;
  }
  for (std::size_t t = 0; t < known.starts.size(); ++t)
    if (known.starts[t] != 0 && starts[t] == 0) return false;
  return true;
}

std::vector<Known> some_known() {
  return {{{0, 0, 1, 0, 0, 0, 0}, {}},
          {{0, 1, 1, 0, 0, 1, 0}, {}},
          {{1, 1, 1, 1, 1, 1, 1}, {}},
          {{}, {-1, 1, 1, -1, 0, -1, -1}},
          {{}, {1, 0, 1, 0, 1, 0, 1}},
          {{0, 0, 0, 1, 0, 0, 0}, {-1, -1, 1, 1, -1, -1, 0}},
          {{0, 0, 0, 0, 0, 0, 0}, {-1, -1, -1, -1, -1, -1, -1}}};
}

TEST(KnownParts, BindPathPosteriorsAndAlternatives) {
  const Case of;
  Decoder decoder = of.decoder();
  const Tensor emission = of.emission();
  Decoder::Options options;
  options.k_best = 3;
  options.samples = 20;
  options.seed = 3;
  options.frame_posteriors = options.durations = true;
  options.tolerance_frames = 0;
  int number = 0;
  for (const Known& known : some_known()) {
    SCOPED_TRACE(number++);
    std::vector<std::pair<double, Path>> all;
    Path made;
    double total = 0;
    enumerate(0, made, [&](const Path& path) {
      if (!agrees(path, known)) return;
      all.emplace_back(of.score(path, emission), path);
      total += std::exp(all.back().first);
    });
    std::ranges::sort(all, [](const auto& a, const auto& b) { return a.first > b.first; });
    const auto share = [&](const std::function<bool(const Path&)>& holds) {
      double sum = 0;
      for (const auto& [score, path] : all)
        if (holds(path)) sum += std::exp(score);
      return sum / total;
    };
    Sequence sequence = of.sequence;
    sequence.known = known;
    // Beside one of which nothing is known.
    const std::vector<Decoded> both = decoder.decode({of.sequence, sequence}, options);
    const Decoded& decoded = both[1];
    // Segments of one label in another order of their durations score the same.
    const auto is_number = [&](const Path& path, std::size_t i) {
      EXPECT_TRUE(agrees(path, known));
      EXPECT_NEAR(of.score(path, emission), all[i].first, 1e-5);
    };
    is_number(segments_of({decoded}).front(), 0);
    EXPECT_NEAR(decoded.log_probability, all.front().first - std::log(total), 1e-5);
    for (const DecodedSegment& s : decoded.segments) {
      EXPECT_NEAR(s.posterior, share([&](const Path& path) {
                    return std::ranges::find(path, s.segment) != path.end();
                  }),
                  1e-5);
      EXPECT_NEAR(s.start_confidence, share([&](const Path& path) {
                    return std::ranges::find(path, s.segment.start, &FrameSegment::start) !=
                           path.end();
                  }),
                  1e-5);
    }
    for (std::int64_t t = 0; t < kFrames; ++t)
      EXPECT_NEAR(decoded.label[static_cast<std::size_t>(t * kClasses)],
                  share([&](const Path& path) {
                    for (const FrameSegment& s : path)
                      if (s.start <= t && t < s.start + s.duration) return s.label == 0;
                    return false;
                  }),
                  1e-5);
    double expected = 0;
    for (const double count : decoded.duration) expected += count;
    double wanted = 0;
    for (const auto& [score, path] : all) wanted += std::exp(score) / total * double(path.size());
    EXPECT_NEAR(expected, wanted, 1e-4);
    ASSERT_EQ(decoded.best.size(), std::min<std::size_t>(3, all.size()));
    for (std::size_t i = 0; i < decoded.best.size(); ++i) is_number(decoded.best[i].segments, i);
    for (const Alternative& sample : decoded.samples) EXPECT_TRUE(agrees(sample.segments, known));
    const Decoded alone = decoder.decode({of.sequence}, options).front();
    EXPECT_EQ(segments_of({both[0]}), segments_of({alone}));
    EXPECT_EQ(both[0].label, alone.label);
    Decoder::Options risk;
    risk.minimum_risk = true;
    EXPECT_TRUE(agrees(segments_of(decoder.decode({sequence}, risk)).front(), known));
  }
}

/// Expected counts of durations come from another program where boundaries are known.
TEST(KnownParts, OfOneRecordingDoNotChangeAnother) {
  const Case c;
  Decoder decoder = c.decoder();
  Sequence bound = c.sequence;
  bound.known.starts.assign(kFrames, 0);
  bound.known.starts[3] = 1;
  Decoder::Options options;
  options.durations = options.frame_posteriors = true;
  const std::vector<Decoded> alone = decoder.decode({c.sequence}, options);
  const std::vector<Decoded> beside = decoder.decode({bound, c.sequence}, options);
  EXPECT_EQ(beside[1].duration, alone[0].duration);
  EXPECT_EQ(beside[1].label, alone[0].label);
  EXPECT_NE(beside[0].duration, alone[0].duration);
}

TEST(KnownParts, AreNotJoined) {
  Case of;
  ModelConfig config = of.segmenter.config();
  config.joins_neighbours = {true, true};
  of.segmenter = Segmenter(config);
  of.sequence.known.starts = {0, 1, 0, 1, 0, 0, 0};
  of.sequence.known.label.assign(kFrames, 1);
  EXPECT_EQ(segments_of(of.decoder().decode({of.sequence}, {})).front(),
            (Path{{0, 1, 1}, {1, 2, 1}, {3, 4, 1}}));
}

TEST(KnownParts, LabelsHoldForOtherHeadsBoundariesDoNot) {
  for (const HeadKind head : {HeadKind::kLinearChain, HeadKind::kSoftmax}) {
    Case of(head);
    of.sequence.known.label = {-1, 1, 0, 1, -1, -1, 0};
    const Decoded decoded = of.decoder().decode({of.sequence}, {}).front();
    for (const DecodedSegment& s : decoded.segments)
      for (std::int64_t t = s.segment.start; t < s.segment.start + s.segment.duration; ++t) {
        const std::int32_t label = of.sequence.known.label[static_cast<std::size_t>(t)];
        EXPECT_TRUE(label < 0 || s.segment.label == label) << t;
      }
    for (const DecodedSegment& s : decoded.segments)  // frame 2 is one by itself
      EXPECT_TRUE(s.segment.start != 2 || std::abs(s.posterior - 1) < 1e-9);
    of.sequence.known.starts.assign(kFrames, 0);
    EXPECT_THROW((void)of.decoder().decode({of.sequence}, {}), UsageError);
  }
}

TEST(KnownParts, WhatCannotBeIsRefused) {
  Case of;
  of.sequence.known.label.assign(kFrames, 1);
  Decoder decoder(of.segmenter, of.parameters, duration_limit_table({4, 4}, kLongest, {1, 4}), {});
  try {
    (void)decoder.decode({of.sequence}, {});
    FAIL() << "nothing was said";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "x: the model's durations and grammar allow no segmentation of this recording "
                 "with what is known of it");
  }
}

}  // namespace
}  // namespace segfuse::learn
