// Other sample rates, and several channels side by side.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "learn/data/text.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse {
namespace {

using testing::HasSubstr;

Audio tone(double hertz, int sample_rate, std::size_t samples) {
  Audio audio{sample_rate, 1, 32768, {}, "tone.wav"};
  for (std::size_t i = 0; i < samples; ++i)
    audio.samples.push_back(static_cast<float>(
        0.5 * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / sample_rate)));
  return audio;
}

/// The largest difference away from the ends, where a filter knows nothing of what lies beyond.
double difference(const Audio& a, const Audio& b) {
  double most = 0;
  for (std::size_t i = 400; i + 400 < a.samples.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a.samples[i] - b.samples[i])));
  return most;
}

TEST(Resample, ASineIsTheSameSineAtTheOtherRateWithoutDelay) {
  for (const int from : {44100, 48000, 22050, 8000, 11025, 16001})
    for (const int to : {16000, 32000, 44100}) {
      const Audio out = resample(tone(1000, from, static_cast<std::size_t>(from)), to);
      EXPECT_EQ(out.sample_rate, to);
      ASSERT_EQ(out.samples.size(), static_cast<std::size_t>(to)) << from;
      EXPECT_LT(difference(out, tone(1000, to, static_cast<std::size_t>(to))), 1e-4)
          << from << " to " << to;
    }
}

TEST(Resample, WhatTheLowerRateCannotHoldIsGone) {
  const Audio out = resample(tone(10000, 44100, 44100), 16000);
  EXPECT_LT(difference(out, tone(0, 16000, 16000)), 1e-4);
}

TEST(Resample, TheLengthIsTheRoundedDuration) {
  for (const int from : {500, 8000, 44100, 48000})
    for (const int to : {250, 16000, 22050})
      for (const std::size_t samples : {1, 2, 3, 7, 100, 4409, 4410, 4411, 99999}) {
        const Audio out = resample(tone(50, from, samples), to);
        const double exact = static_cast<double>(samples) * to / from;
        EXPECT_NEAR(static_cast<double>(out.samples.size()), std::max(exact, 1.0), 0.5 + 1e-9)
            << samples << " from " << from << " to " << to;
        for (const float x : out.samples) ASSERT_LT(std::abs(x), 1.0F);
      }
}

TEST(Resample, GivesTheSameBitsAndLeavesItsOwnRateAlone) {
  const Audio a = resample(tone(333, 44100, 50000), 16000);
  const Audio b = resample(tone(333, 44100, 50000), 16000);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(resample(tone(333, 16000, 999), 16000).samples, tone(333, 16000, 999).samples);
}

TEST(Resample, ChannelsDoNotMix) {
  const Audio left = tone(300, 44100, 9000);
  const Audio right = tone(700, 44100, 9000);
  Audio both{44100, 2, 32768, {}, "both.wav", 2};
  for (std::size_t i = 0; i < left.samples.size(); ++i) {
    both.samples.push_back(left.samples[i]);
    both.samples.push_back(right.samples[i]);
  }
  const Audio out = resample(both, 16000);
  const Audio alone = resample(right, 16000);
  ASSERT_EQ(out.samples.size(), 2 * alone.samples.size());
  EXPECT_EQ(out.frames(), static_cast<std::int64_t>(alone.samples.size()));
  for (std::size_t i = 0; i < alone.samples.size(); ++i)
    EXPECT_NEAR(out.samples[2 * i + 1], alone.samples[i], 1e-6);
}

TEST(Resample, RatesThatAreTooFarApartAreRefused) {
  try {
    resample(tone(1, 50, 100), 16000);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "tone.wav: sample rate 50 Hz; it cannot be resampled to 16000 Hz, since the rates "
                 "may differ by a factor of 256 at most; set features.sample_rate to one that is "
                 "nearer");
  }
  EXPECT_NO_THROW(resample(tone(1, 100, 100), 25600));
  EXPECT_THROW(resample(tone(1, 100, 100), 25601), DataError);
  EXPECT_THROW(resample(tone(1, 100, 100), 0), UsageError);
}

TEST(Resample, SamplesWithoutAFileAreTheRecording) {
  Audio audio = tone(1, 50, 100);
  audio.source.clear();
  try {
    resample(audio, 16000);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string_view(error.what()).substr(0, 36), "the recording: sample rate 50 Hz; it");
  }
}

TEST(ReadFeatures, ARecordingOfAnotherRateHasTheFramesOfItsSeconds) {
  const test::TemporaryDirectory directory;
  write_wav(directory / "x.wav", tone(1000, 44100, 44100 + 100).samples, 44100);
  FeatureConfig config;
  Recording recording;
  recording.id = "x";
  recording.audio = directory / "x.wav";
  const RecordingFeatures read = read_features(recording, FeatureExtractor(config));
  EXPECT_EQ(read.sample_rate, 44100);
  EXPECT_NEAR(read.seconds, 44200.0 / 44100, 1e-12);
  EXPECT_EQ(read.features.shape(), (Shape{101, 40}));
}

TEST(ReadFeatures, StackedChannelsStandSideBySide) {
  FeatureConfig config;
  config.kind = FeatureKind::kRaw;
  config.raw_bins = 2;
  config.deltas = 1;
  config.channel = AudioOptions::kStack;
  const FeatureExtractor extractor(config);
  EXPECT_EQ(extractor.num_features(), 0);
  const Audio a = tone(300, 16000, 1600);
  const Audio b = tone(700, 16000, 1600);
  Audio both{16000, 2, 32768, {}, "both.wav", 2};
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    both.samples.push_back(a.samples[i]);
    both.samples.push_back(b.samples[i]);
  }
  const Tensor stacked = extractor.extract(both);
  const Tensor first = extractor.extract(a);
  const Tensor second = extractor.extract(b);
  ASSERT_EQ(stacked.shape(), (Shape{10, 8}));
  ASSERT_EQ(first.shape(), (Shape{10, 4}));
  for (std::int64_t t = 0; t < 10; ++t)
    for (std::int64_t d = 0; d < 2; ++d)
      for (std::int64_t slope = 0; slope < 2; ++slope) {
        EXPECT_EQ(stacked.at(t * 8 + slope * 4 + d), first.at(t * 4 + slope * 2 + d));
        EXPECT_EQ(stacked.at(t * 8 + slope * 4 + 2 + d), second.at(t * 4 + slope * 2 + d));
      }
}

TEST(ResampledText, CountsByRate) {
  EXPECT_EQ(data::resampled_text({{16000, 5}}, 16000), "");
  EXPECT_EQ(data::resampled_text({{16000, 5}, {44100, 1}, {48000, 3}}, 16000),
            "resampled to 16000 Hz: 1 recording of 44100 Hz, 3 recordings of 48000 Hz");
}

}  // namespace
}  // namespace segfuse
