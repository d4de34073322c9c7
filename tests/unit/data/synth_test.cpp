#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/os/file.h"
#include "segfuse/data.h"
#include "segfuse/error.h"
#include "segfuse/train.h"
#include "support/files.h"

namespace segfuse {
namespace {

/// Two recordings of the full length of a known model, far more segments than frames of slack.
SynthConfig long_config() {
  SynthConfig config = random_synth_config(4, 11);
  config.min_frames = config.max_frames = 400'000;
  return config;
}

TEST(Synth, SegmentationsTileWithoutRepeats) {
  const SynthConfig config = random_synth_config(5, 3);
  for (std::int64_t i = 0; i < 50; ++i) {
    std::int64_t at = 0;
    std::int32_t before = -1;
    for (const FrameSegment& segment : sample_segmentation(config, i)) {
      ASSERT_EQ(segment.start, at);
      ASSERT_GE(segment.duration, 1);
      ASSERT_NE(segment.label, before);
      before = segment.label;
      at += segment.duration;
    }
    EXPECT_GE(at, config.min_frames);
    EXPECT_LE(at, config.max_frames);
  }
}

TEST(Synth, LabelsOfOneSoundDifferInLengthAlone) {
  const SynthConfig config = random_synth_config(5, 3, true);
  const SynthConfig plain = random_synth_config(5, 3);
  EXPECT_EQ(config.sounds, (std::vector<std::int64_t>{0, 0, 2, 2, 4}));
  EXPECT_EQ(config.transition, plain.transition);
  EXPECT_EQ(config.shape, plain.shape);
  for (const std::size_t c : {1, 3})
    EXPECT_EQ(config.mean_frames[c], 3 * config.mean_frames[c - 1]);
  const test::TemporaryDirectory directory;
  SynthConfig small = config;
  small.train = 1;
  small.test = 0;
  write_synthetic_corpus(small, directory.path());
  const auto truth = nlohmann::json::parse(read_file(directory.path() / "truth.json"));
  EXPECT_EQ(truth["formants_hz"][0], truth["formants_hz"][1]);
  EXPECT_NE(truth["formants_hz"][0], truth["formants_hz"][2]);
  EXPECT_EQ(truth["sounds"][3], 2);
  small.sounds = {0, 1, 2, 3, 5};
  EXPECT_THROW(write_synthetic_corpus(small, directory.path(), true), UsageError);
}

TEST(Synth, FrequenciesFollowTheModel) {
  const SynthConfig config = long_config();
  const std::vector<FrameSegment> segments = sample_segmentation(config, 0);
  std::vector<double> counts(4), sums(4), squares(4);
  std::vector<std::vector<double>> changes(4, std::vector<double>(4));
  for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
    const auto c = static_cast<std::size_t>(segments[i].label);
    const auto duration = static_cast<double>(segments[i].duration);
    counts[c] += 1;
    sums[c] += duration;
    squares[c] += duration * duration;
    changes[c][static_cast<std::size_t>(segments[i + 1].label)] += 1;
  }
  for (std::size_t c = 0; c < 4; ++c) {
    // 1 + NB: variance m + m^2 / shape with m = mean - 1. Bounds of five standard errors.
    const double m = config.mean_frames[c] - 1;
    const double variance = m + m * m / config.shape[c];
    const double mean = sums[c] / counts[c];
    EXPECT_NEAR(mean, m + 1, 5 * std::sqrt(variance / counts[c]));
    EXPECT_NEAR(squares[c] / counts[c] - mean * mean, variance, 0.1 * variance);
    double total = 0;
    for (const double weight : config.transition[c]) total += weight;
    for (std::size_t d = 0; d < 4; ++d) {
      const double p = config.transition[c][d] / total;
      EXPECT_NEAR(changes[c][d] / counts[c], p, 5 * std::sqrt(p * (1 - p) / counts[c]) + 1e-12);
    }
  }
}

TEST(Synth, ExplicitTablesBoundTheDurations) {
  SynthConfig config = random_synth_config(2, 5);
  config.durations = {{0, 0, 1}, {1, 1}};
  for (const FrameSegment& segment : sample_segmentation(config, 0)) {
    if (segment.start + segment.duration >= config.min_frames) break;
    if (segment.label == 0) {
      EXPECT_EQ(segment.duration, 3);
    } else {
      EXPECT_LE(segment.duration, 2);
    }
  }
}

TEST(Synth, AModelOfTheCorpusIsMeasuredAsItsFilesSay) {
  const test::TemporaryDirectory directory;
  SynthConfig config = random_synth_config(3, 9);
  config.train = 6;
  config.test = 2;
  write_synthetic_corpus(config, directory / "corpus");
  directory.write("tiny.toml",
                  "[model]\nwidth = 8\nkernel = 3\ndilations = [1]\n[training]\nepochs = 1\n");
  TrainOptions training;
  training.config = directory / "tiny.toml";
  training.data = (directory / "corpus").string();
  training.out = directory / "out";
  training.context = Context().with(options::kQuiet, true);
  const TrainResult trained = train(training);
  EXPECT_EQ(trained.json, read_file(directory / "out/metrics.json"));
  EXPECT_EQ(trained.measured_on, Split::kTest);
  ASSERT_EQ(trained.systems.size(), 1);
  const TrainedSystem& system = trained.systems[0];
  const nlohmann::json figures = nlohmann::json::parse(trained.json);
  EXPECT_EQ(system.head, figures.at("head").get<std::string>());
  EXPECT_EQ(system.parameters, figures.at("parameters"));
  EXPECT_EQ(system.metrics.label_error_rate(), figures.at("label_error_rate"));

  EvaluateOptions how;
  how.model = training.out;
  how.context = training.context;
  const EvaluateResult again = evaluate(how);
  EXPECT_EQ(again.metrics.to_json(), system.metrics.to_json());
  EXPECT_EQ(nlohmann::json::parse(again.json).at("split"), "test");
  how.split = Split::kTrain;
  EXPECT_EQ(evaluate(how).metrics.recordings(), 5);
  how.split = std::nullopt;
  EXPECT_EQ(evaluate(how).metrics.recordings(), 8);
}

TEST(Synth, TheCorpusLoadsAndMatchesTheTruth) {
  const test::TemporaryDirectory directory;
  SynthConfig config = random_synth_config(3, 9);
  config.train = 12;
  config.test = 3;
  write_synthetic_corpus(config, directory / "a");
  write_synthetic_corpus(config, directory / "b");
  const std::vector<Recording> recordings = load_manifest(directory / "a");
  ASSERT_EQ(recordings.size(), 15);
  EXPECT_EQ(recordings_of(recordings, Split::kTest).size(), 3);
  EXPECT_EQ(recordings_of(recordings, Split::kDev).size(), 1);
  const FeatureExtractor extractor{FeatureConfig{}};
  const std::vector<Example> examples = load_examples(
      recordings, extractor, {}, {}, Context().with(options::kThreads, std::int64_t{2}));
  const Alphabet alphabet(config.labels);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    // Sorted by id: test/ before train/.
    const auto index = static_cast<std::int64_t>(i) + (i < 3 ? 12 : -3);
    const FrameLabels frames =
        to_frames(examples[i].gold, alphabet, 0.01, examples[i].features.shape()[0]);
    EXPECT_EQ(frames.segments, sample_segmentation(config, index)) << examples[i].id;
  }
  for (const char* name : {"train/r00003.wav", "test/r00000.phn", "truth.json"})
    EXPECT_EQ(read_file(directory / "a" / name), read_file(directory / "b" / name)) << name;
  const nlohmann::json truth = nlohmann::json::parse(read_file(directory / "a" / "truth.json"));
  EXPECT_EQ(truth.at("labels").size(), 3);
  double total = 0;
  for (const double p : truth.at("durations").at(0)) total += p;
  EXPECT_NEAR(total, 1, 1e-9);
}

/// Mean log-mel distance between frames of two labels, away from edges.
TEST(Synth, RecordingsOfALargerCorpusDoNotStay) {
  const test::TemporaryDirectory directory;
  SynthConfig config = random_synth_config(2, 1);
  config.train = 2;
  config.test = 1;
  write_synthetic_corpus(config, directory.path());
  write_synthetic_corpus(config, directory.path());
  config.train = 1;
  for (const bool overwrite : {false, true}) {
    try {
      write_synthetic_corpus(config, directory.path(), overwrite);
      FAIL() << "r00001 of the corpus before is still there";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("train/r00001.wav is not a recording of this"));
    }
  }
  config.train = 3;
  write_synthetic_corpus(config, directory.path());
}

TEST(Synth, LabelsSoundDifferent) {
  const test::TemporaryDirectory directory;
  SynthConfig config = random_synth_config(3, 2);
  config.train = 4;
  config.test = 0;
  write_synthetic_corpus(config, directory.path());
  const FeatureExtractor extractor{FeatureConfig{}};
  std::map<std::int32_t, std::vector<double>> means;
  std::map<std::int32_t, double> counts;
  for (std::int64_t i = 0; i < 4; ++i) {
    const Tensor features =
        extractor.extract(read_audio(directory / fmt::format("train/r{:05}.wav", i)));
    for (const FrameSegment& segment : sample_segmentation(config, i))
      for (std::int64_t t = segment.start + 2; t < segment.start + segment.duration - 2; ++t) {
        means[segment.label].resize(40);
        ++counts[segment.label];
        for (std::int64_t d = 0; d < 40; ++d)
          means[segment.label][static_cast<std::size_t>(d)] += features.at(t * 40 + d);
      }
  }
  for (std::int32_t a = 0; a < 3; ++a)
    for (std::int32_t b = 0; b < a; ++b) {
      double distance = 0;
      for (std::size_t d = 0; d < 40; ++d)
        distance += std::abs(means[a][d] / counts[a] - means[b][d] / counts[b]) / 40;
      EXPECT_GT(distance, 0.3) << a << " " << b;
    }
}

TEST(Synth, ImpossibleModelsAreRefused) {
  const auto refused = [](auto change) {
    SynthConfig config = random_synth_config(3, 1);
    change(config);
    EXPECT_THROW(sample_segmentation(config, 0), UsageError);
  };
  refused([](SynthConfig& c) { c.transition[1][1] = 0.5; });
  refused([](SynthConfig& c) { c.transition[2] = {0, 0, 0}; });
  refused([](SynthConfig& c) { c.initial.pop_back(); });
  refused([](SynthConfig& c) { c.mean_frames[0] = 0.5; });
  refused([](SynthConfig& c) { c.hop_ms = 10.01; });
  refused([](SynthConfig& c) { c.max_frames = 10; });
  refused([](SynthConfig& c) { c.labels[0] = c.labels[1]; });
}

}  // namespace
}  // namespace segfuse
