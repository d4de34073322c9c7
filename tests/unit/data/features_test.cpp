#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "base/rng.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

constexpr double kPi = std::numbers::pi;

Audio noise(std::size_t size, int sample_rate = 16000) {
  Audio audio{sample_rate, 1, 32768, std::vector<float>(size), "noise"};
  Rng rng(7);
  for (float& sample : audio.samples) sample = static_cast<float>(0.1 * rng.normal());
  return audio;
}

double value(const Tensor& features, std::int64_t t, std::int64_t d) {
  return features.at(t * features.shape()[1] + d);
}

/// The contract of log_mel, term by term in double with a plain Fourier sum.
std::vector<double> slow_log_mel(const Audio& audio, const FeatureConfig& config, std::int64_t t) {
  const std::vector<float>& x = audio.samples;
  const auto size = static_cast<std::int64_t>(x.size());
  const auto at = [&](std::int64_t n) {
    while (n < 0 || n >= size) n = n < 0 ? -n : 2 * (size - 1) - n;
    const double before = x[static_cast<std::size_t>(std::max<std::int64_t>(n - 1, 0))];
    return static_cast<double>(x[static_cast<std::size_t>(n)]) - config.preemphasis * before;
  };
  const auto length = std::llround(config.sample_rate * config.window_ms / 1000);
  const double hop = config.sample_rate * config.hop_ms / 1000;
  const auto begin = static_cast<std::int64_t>(
      std::floor((static_cast<double>(t) + 0.5) * hop - 0.5 * static_cast<double>(length) + 0.5));
  std::int64_t fft = 2;
  while (fft < length) fft *= 2;
  std::vector<double> power;
  for (std::int64_t k = 0; k <= fft / 2; ++k) {
    std::complex<double> sum = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      const double taper = 0.54 - 0.46 * std::cos(2 * kPi * static_cast<double>(i) /
                                                  static_cast<double>(length - 1));
      sum += taper * at(begin + i) *
             std::polar(1.0, -2 * kPi * static_cast<double>(i * k) / static_cast<double>(fft));
    }
    power.push_back(std::norm(sum));
  }
  const auto mel = [](double f) { return 2595 * std::log10(1 + f / 700); };
  const double top = config.fmax > 0 ? config.fmax : config.sample_rate / 2.0;
  const double step = (mel(top) - mel(config.fmin)) / (config.n_mels + 1);
  std::vector<double> out;
  for (int m = 1; m <= config.n_mels; ++m) {
    double energy = 0;
    for (std::size_t k = 0; k < power.size(); ++k) {
      const double f = static_cast<double>(k) * config.sample_rate / static_cast<double>(fft);
      energy += power[k] * std::max(0.0, 1 - std::abs(mel(f) - mel(config.fmin) - m * step) / step);
    }
    out.push_back(std::log(std::max(energy, 1e-10)));
  }
  return out;
}

TEST(LogMel, AgreesWithTheFormula) {
  const Audio audio = noise(2050);
  FeatureConfig config;
  config.n_mels = 24;
  config.fmax = 7000;
  const Tensor features = FeatureExtractor(config).extract(audio);
  ASSERT_EQ(features.shape(), (Shape{13, 24}));
  for (const std::int64_t t : {0, 1, 5, 12}) {
    const std::vector<double> expected = slow_log_mel(audio, config, t);
    for (std::int64_t m = 0; m < 24; ++m)
      EXPECT_NEAR(value(features, t, m), expected[static_cast<std::size_t>(m)], 2e-3)
          << t << " " << m;
  }
}

TEST(Mfcc, IsTheLifteredCosineTransformOfLogMel) {
  const Audio audio = noise(1600);
  FeatureConfig config;
  const Tensor mel = FeatureExtractor(config).extract(audio);
  config.kind = FeatureKind::kMfcc;
  const Tensor mfcc = FeatureExtractor(config).extract(audio);
  ASSERT_EQ(mfcc.shape(), (Shape{10, 13}));
  for (std::int64_t n = 0; n < 13; ++n) {
    double sum = 0;
    for (std::int64_t m = 0; m < 40; ++m)
      sum += value(mel, 4, m) *
             std::cos(kPi * static_cast<double>(n) * (static_cast<double>(m) + 0.5) / 40);
    sum *= std::sqrt((n == 0 ? 1.0 : 2.0) / 40) *
           (1 + 11 * std::sin(kPi * static_cast<double>(n) / 22));
    EXPECT_NEAR(value(mfcc, 4, n), sum, 1e-3 * (1 + std::abs(sum)));
  }
}

TEST(Features, ATonePeaksInTheFrameAndFilterItBelongsTo) {
  Audio audio{16000, 1, 32768, std::vector<float>(16000), "tone"};
  for (std::size_t i = 8000; i < 8160; ++i)  // exactly frame 50
    audio.samples[i] =
        static_cast<float>(std::sin(2 * kPi * 1000 * static_cast<double>(i) / 16000));
  const Tensor features = FeatureExtractor(FeatureConfig{}).extract(audio);
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < features.size(); ++i)
    if (features.at(i) > features.at(best)) best = i;
  EXPECT_EQ(best / 40, 50);
  // 1000 Hz is 1000 mel; the filters' centres lie (2840 - 32) / 41 mel apart from 32 mel on.
  EXPECT_EQ(best % 40, 13);
}

TEST(Features, FramesCoverEverySample) {
  const FeatureExtractor extractor{FeatureConfig{}};
  EXPECT_EQ(extractor.num_frames(1), 1);
  EXPECT_EQ(extractor.num_frames(160), 1);
  EXPECT_EQ(extractor.num_frames(161), 2);
  EXPECT_EQ(extractor.num_frames(16000), 100);
  FeatureConfig odd;
  odd.sample_rate = 22050;
  EXPECT_EQ(FeatureExtractor(odd).num_frames(441), 2);
  EXPECT_EQ(FeatureExtractor(odd).num_frames(442), 3);
  EXPECT_EQ(FeatureExtractor(odd).num_frames(22050 * 100), 10000);
  for (const std::size_t size : {1, 2, 3, 159, 161, 399})
    EXPECT_EQ(extractor.extract(noise(size)).shape()[0],
              extractor.num_frames(static_cast<std::int64_t>(size)));
}

FeatureConfig raw_config() {
  FeatureConfig config;
  config.kind = FeatureKind::kRaw;
  config.sample_rate = 500;
  config.window_ms = 10;
  return config;
}

TEST(Raw, OneBinDecimatesBehindABoxFilter) {
  FeatureConfig config = raw_config();
  config.raw_bins = 1;
  const Audio audio = noise(52, 500);
  const Tensor features = FeatureExtractor(config).extract(audio);
  ASSERT_EQ(features.shape(), (Shape{11, 1}));
  for (std::size_t t = 0; t < 10; ++t) {
    double mean = 0;
    for (std::size_t i = 0; i < 5; ++i) mean += static_cast<double>(audio.samples[5 * t + i]) / 5;
    EXPECT_NEAR(features.at(static_cast<std::int64_t>(t)), mean, 1e-7);
  }
}

TEST(Raw, NoBinsStackTheSamplesOfEachFrame) {
  const Audio audio = noise(50, 500);
  const Tensor features = FeatureExtractor(raw_config()).extract(audio);
  ASSERT_EQ(features.shape(), (Shape{10, 5}));
  for (std::int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(static_cast<float>(features.at(i)), audio.samples[static_cast<std::size_t>(i)]);
}

TEST(Raw, EachRecordingCanBeNormalised) {
  FeatureConfig config = raw_config();
  config.normalise_recording = true;
  Audio audio = noise(500, 500);
  for (float& sample : audio.samples) sample = 3 * sample + 0.5F;
  const Tensor features = FeatureExtractor(config).extract(audio);
  double sum = 0;
  double square = 0;
  for (std::int64_t t = 0; t < 100; ++t) {
    sum += value(features, t, 2);
    square += value(features, t, 2) * value(features, t, 2);
  }
  EXPECT_NEAR(sum / 100, 0, 1e-6);
  EXPECT_NEAR(square / 100, 1, 1e-5);
}

TEST(Deltas, AreRegressionSlopes) {
  FeatureConfig config = raw_config();
  config.raw_bins = 1;
  config.deltas = 2;
  Audio audio{500, 1, 1, std::vector<float>(100), "ramp"};
  for (std::size_t i = 0; i < 100; ++i) {
    const double frame = static_cast<double>(i / 5);
    audio.samples[i] = static_cast<float>(0.01 * frame * frame);
  }
  const Tensor features = FeatureExtractor(config).extract(audio);
  ASSERT_EQ(features.shape(), (Shape{20, 3}));
  EXPECT_NEAR(value(features, 10, 1), 0.2, 1e-5);  // d/dt 0.01 t^2
  EXPECT_NEAR(value(features, 10, 2), 0.02, 1e-5);
  // At the end the last frame repeats: (1 (x19 - x18) + 2 (x19 - x17)) / 10.
  EXPECT_NEAR(value(features, 19, 1), 0.01 * ((361 - 324) + 2 * (361 - 289)) / 10, 1e-5);
}

TEST(Normalisation, GivesMeanZeroAndDeviationOneOverAllRows) {
  std::vector<Tensor> parts;
  Rng rng(3);
  for (const std::int64_t rows : {5, 50, 7}) {
    Tensor part(DType::kF32, {rows, 3});
    for (std::int64_t i = 0; i < part.size(); ++i)
      part.set(i, i % 3 == 2 ? 4.25 : 1000 + static_cast<double>(i % 3) * rng.normal());
    parts.push_back(part);
  }
  const Normalisation normalisation = compute_normalisation(parts);
  EXPECT_EQ(normalisation.deviation[2], 1);
  double sum = 0;
  double square = 0;
  for (Tensor& part : parts) {
    normalisation.apply(part);
    for (std::int64_t i = 1; i < part.size(); i += 3) {
      sum += part.at(i);
      square += part.at(i) * part.at(i);
      EXPECT_EQ(part.at(i + 1), 0);
    }
  }
  EXPECT_NEAR(sum / 62, 0, 1e-4);
  EXPECT_NEAR(square / 62, 1, 1e-4);
}

TEST(Features, ImpossibleConfigurationsAreRefused) {
  const auto refused = [](auto change) {
    FeatureConfig config;
    change(config);
    EXPECT_THROW(FeatureExtractor{config}, UsageError);
  };
  refused([](FeatureConfig& c) { c.hop_ms = 0; });
  refused([](FeatureConfig& c) { c.window_ms = -1; });
  refused([](FeatureConfig& c) { c.n_mels = 2000; });
  refused([](FeatureConfig& c) { c.fmax = 9000; });
  refused([](FeatureConfig& c) { c.fmin = 8000; });
  refused([](FeatureConfig& c) { c.deltas = 3; });
  refused([](FeatureConfig& c) { c.kind = FeatureKind::kMfcc, c.n_mfcc = 41; });
  refused([](FeatureConfig& c) { c.window_ms = std::nan(""); });
}

TEST(Features, AnotherSampleRateIsADataErrorNamingTheFile) {
  try {
    FeatureExtractor(FeatureConfig{}).extract(noise(100, 8000));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("noise: sample rate 8000 Hz"), std::string::npos);
  }
}

}  // namespace
}  // namespace segfuse
