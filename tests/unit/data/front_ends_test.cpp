// The front ends of others, against their published formulas in double with plain Fourier sums.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>

#include "base/rng.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using Row = std::vector<double>;

Audio recording(std::int64_t size, int sample_rate = 16000) {
  Audio audio{sample_rate, 1, 32768, {}, "recording"};
  Rng rng(11);
  for (std::int64_t i = 0; i < size; ++i) {
    const double loud = 0.02 + 0.3 * std::sin(static_cast<double>(i) / 4000);
    audio.samples.push_back(static_cast<float>(loud * rng.normal() + 0.01));
  }
  return audio;
}

/// Powers of the bins of a transform of `size`.
Row powers(const Row& window, std::size_t size) {
  Row out;
  for (std::size_t k = 0; k <= size / 2; ++k) {
    std::complex<double> sum = 0;
    for (std::size_t i = 0; i < window.size(); ++i)
      sum += window[i] * std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(i * k % size) /
                                             static_cast<double>(size));
    out.push_back(std::norm(sum));
  }
  return out;
}

/// The mel energies that Kaldi documents, in mels of 1127 ln(1 + f / 700).
Row kaldi_row(const Audio& audio, const FeatureConfig& config, std::int64_t t) {
  const auto size = std::ssize(audio.samples);
  const auto shift = std::llround(config.sample_rate * config.hop_ms / 1000);
  const auto length = static_cast<std::int64_t>(config.sample_rate * config.window_ms / 1000);
  const std::int64_t begin = config.snip_edges ? t * shift : t * shift + shift / 2 - length / 2;
  Row window;
  for (std::int64_t n = begin; n < begin + length; ++n) {
    std::int64_t at = n;
    while (at < 0 || at >= size) at = at < 0 ? -at - 1 : 2 * size - 1 - at;
    window.push_back(32768.0 * static_cast<double>(audio.samples[static_cast<std::size_t>(at)]));
  }
  double mean = 0;
  for (const double value : window) mean += value / static_cast<double>(length);
  for (double& value : window) value -= mean;
  Row shaped;
  for (std::size_t i = 0; i < window.size(); ++i) {
    const double hann = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) /
                                             static_cast<double>(length - 1));
    shaped.push_back((window[i] - config.preemphasis * window[i == 0 ? 0 : i - 1]) *
                     std::pow(hann, 0.85));
  }
  std::size_t fft = 2;
  while (fft < window.size()) fft *= 2;
  const Row power = powers(shaped, fft);
  const auto mel = [](double f) { return 1127 * std::log(1 + f / 700); };
  const double high = config.fmax > 0 ? config.fmax : config.sample_rate / 2.0;
  const double delta = (mel(high) - mel(config.fmin)) / (config.n_mels + 1);
  Row out;
  for (int m = 0; m < config.n_mels; ++m) {
    const double left = mel(config.fmin) + m * delta;
    double energy = 0;
    for (std::size_t k = 0; k < fft / 2; ++k) {
      const double at = mel(static_cast<double>(k) * config.sample_rate / static_cast<double>(fft));
      if (at <= left || at >= left + 2 * delta) continue;
      energy += power[k] * (at <= left + delta ? at - left : left + 2 * delta - at) / delta;
    }
    out.push_back(std::log(std::max<double>(energy, std::numeric_limits<float>::epsilon())));
  }
  return out;
}

/// The filters of Slaney's Auditory Toolbox, with areas of 1, over bins of 40 Hz.
std::vector<Row> slaney_filters(int count) {
  const auto hertz = [](double mel) {
    return mel < 15 ? 200.0 / 3 * mel : 1000 * std::pow(6.4, (mel - 15) / 27);
  };
  const double top = 15 + 27 * std::log(8.0) / std::log(6.4);
  std::vector<Row> filters;
  for (int m = 0; m < count; ++m) {
    const double low = hertz(top * m / (count + 1));
    const double middle = hertz(top * (m + 1) / (count + 1));
    const double high = hertz(top * (m + 2) / (count + 1));
    Row filter;
    for (int k = 0; k <= 200; ++k) {
      const double rising = (40.0 * k - low) / (middle - low);
      const double falling = (high - 40.0 * k) / (high - middle);
      filter.push_back(std::max(0.0, std::min(rising, falling)) * 2 / (high - low));
    }
    filters.push_back(filter);
  }
  return filters;
}

/// Whisper's spectrogram of the recording and the 30 s of silence that it puts behind it, of which
/// 50 ms are enough: the frames behind them are alike.
std::vector<Row> whisper_rows(const std::vector<float>& samples, int mels) {
  std::vector<float> padded = samples;
  padded.resize(samples.size() + 800, 0.0F);
  const std::vector<Row> filters = slaney_filters(mels);
  const auto frames = static_cast<std::int64_t>(padded.size()) / 160;
  std::vector<Row> rows;
  double peak = -1e9;
  for (std::int64_t t = 0; t < frames; ++t) {
    Row window;
    for (std::int64_t i = 0; i < 400; ++i) {
      const std::int64_t at = std::abs(160 * t - 200 + i);
      const double sample =
          at < std::ssize(padded) ? static_cast<double>(padded[static_cast<std::size_t>(at)]) : 0;
      window.push_back(sample *
                       (0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / 400)));
    }
    const Row power = powers(window, 400);
    Row row;
    for (const Row& filter : filters) {
      double energy = 0;
      for (std::size_t k = 0; k < power.size(); ++k) energy += filter[k] * power[k];
      row.push_back(std::log10(std::max(energy, 1e-10)));
      peak = std::max(peak, row.back());
    }
    rows.push_back(row);
  }
  for (Row& row : rows)
    for (double& value : row) value = (std::max(value, peak - 8) + 4) / 4;
  return rows;
}

void expect_row(const Tensor& features, std::int64_t t, const Row& expected, double within) {
  const std::int64_t columns = features.shape()[1];
  for (std::size_t d = 0; d < expected.size(); ++d)
    EXPECT_NEAR(features.at(t * columns + static_cast<std::int64_t>(d)), expected[d], within)
        << "frame " << t << ", column " << d;
}

TEST(KaldiFbank, AgreesWithTheFormula) {
  struct Case {
    int rate;
    bool snip;
    double window, hop, low, high, preemphasis;
    int mels;
  };
  for (const Case& c :
       {Case{16000, true, 25, 10, 20, 0, 0.97, 80}, Case{16000, false, 25, 10, 20, 0, 0.97, 23},
        Case{8000, false, 25, 10, 20, 3700, 0.97, 40}, Case{16000, true, 20.05, 8, 0, 7600, 0, 40},
        Case{44100, false, 33.33, 10, 100, 0, 0.9, 64}}) {
    FeatureConfig config = default_features(FeatureKind::kKaldiFbank);
    EXPECT_EQ(config.n_mels, 80);
    config.sample_rate = c.rate;
    config.snip_edges = c.snip;
    config.window_ms = c.window;
    config.hop_ms = c.hop;
    config.fmin = c.low;
    config.fmax = c.high;
    config.preemphasis = c.preemphasis;
    config.n_mels = c.mels;
    const Audio audio = recording(c.rate / 2 + 37, c.rate);
    const Tensor features = FeatureExtractor(config).extract(audio);
    ASSERT_EQ(features.shape()[1], c.mels);
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17},
                                 features.shape()[0] - 2, features.shape()[0] - 1}) {
      SCOPED_TRACE(std::to_string(c.rate) + (c.snip ? " snipped" : ""));
      expect_row(features, t, kaldi_row(audio, config, t), 2e-4);
    }
  }
}

TEST(KaldiFbank, SilenceHasTheFloorAndShortRecordingsHaveFrames) {
  FeatureConfig config = default_features(FeatureKind::kKaldiFbank);
  for (const std::int64_t size : {1, 2, 79, 160, 161, 399, 400})
    for (const bool snip : {false, true}) {
      config.snip_edges = snip;
      const FeatureExtractor extractor(config);
      const Audio audio = recording(size);
      const Tensor features = extractor.extract(audio);
      ASSERT_EQ(features.shape()[0], (size + 159) / 160);
      // A window of few samples again and again has a few loud bands; rounding fills the others.
      const Row expected = kaldi_row(audio, config, 0);
      const double loudest = std::exp(*std::ranges::max_element(expected));
      for (std::size_t d = 0; d < expected.size(); ++d)
        EXPECT_NEAR(std::exp(features.at(static_cast<std::int64_t>(d))), std::exp(expected[d]),
                    1e-5 * loudest);
    }
  Audio silence{16000, 1, 32768, std::vector<float>(4000, 0.25F), "silence"};
  const Tensor features = FeatureExtractor(config).extract(silence);
  for (std::int64_t i = 0; i < features.size(); ++i)
    ASSERT_EQ(static_cast<float>(features.at(i)), std::log(std::numeric_limits<float>::epsilon()));
}

TEST(Whisper, AgreesWithTheFormula) {
  for (const int mels : {80, 128})
    for (const std::int64_t size : {1, 100, 201, 1600, 3123}) {
      SCOPED_TRACE(std::to_string(mels) + " mels, " + std::to_string(size) + " samples");
      FeatureConfig config = default_features(FeatureKind::kWhisper);
      EXPECT_EQ(config.n_mels, 80);
      config.n_mels = mels;
      const Audio audio = recording(size);
      const Tensor features = FeatureExtractor(config).extract(audio);
      ASSERT_EQ(features.shape(), (Shape{(size + 159) / 160, mels}));
      const std::vector<Row> expected = whisper_rows(audio.samples, mels);
      for (std::int64_t t = 0; t < features.shape()[0]; ++t)
        expect_row(features, t, expected[static_cast<std::size_t>(t)], 1e-5);
    }
}

// The loudest frame of the recording is the one behind its last row.
TEST(Whisper, ThePeakIsThatOfAllFramesThatSeeTheRecording) {
  Audio audio = recording(1600);
  for (float& sample : audio.samples) sample *= 1e-6F;
  audio.samples.back() = 1;
  const Tensor features = FeatureExtractor(default_features(FeatureKind::kWhisper)).extract(audio);
  const std::vector<Row> expected = whisper_rows(audio.samples, 80);
  ASSERT_EQ(features.shape()[0], 10);
  for (std::int64_t t = 0; t < 10; ++t)
    expect_row(features, t, expected[static_cast<std::size_t>(t)], 1e-5);
  EXPECT_EQ(*std::ranges::min_element(expected[3]), *std::ranges::max_element(expected[3]));
}

TEST(Whisper, EachStackedChannelHasItsPeak) {
  const FeatureExtractor extractor(default_features(FeatureKind::kWhisper));
  Audio left = recording(5000);
  Audio right = recording(5000);
  std::ranges::reverse(right.samples);
  for (float& sample : right.samples) sample *= 1e-4F;
  Audio both{16000, 2, 32768, {}, "both", 2};
  for (std::size_t i = 0; i < left.samples.size(); ++i)
    both.samples.insert(both.samples.end(), {left.samples[i], right.samples[i]});
  const Tensor one = extractor.extract(left);
  const Tensor two = extractor.extract(right);
  const Tensor stacked = extractor.extract(both);
  ASSERT_EQ(stacked.shape(), (Shape{32, 160}));
  for (std::int64_t t = 0; t < 32; ++t)
    for (std::int64_t d = 0; d < 80; ++d) {
      ASSERT_EQ(stacked.at(t * 160 + d), one.at(t * 80 + d));
      ASSERT_EQ(stacked.at(t * 160 + 80 + d), two.at(t * 80 + d));
    }
}

/// The frame whose first column is greatest.
std::int64_t loudest_frame(const Tensor& features) {
  std::int64_t best = 0;
  const std::int64_t columns = features.shape()[1];
  for (std::int64_t t = 1; t < features.shape()[0]; ++t)
    if (features.at(t * columns) > features.at(best * columns)) best = t;
  return best;
}

// A click at a time that is in the middle of the windows of one frame only.
TEST(FrontEnds, FramesSeeTheTimesThatTheDocumentationSays) {
  const auto frame_of = [](FeatureKind kind, bool snip, std::size_t sample) {
    FeatureConfig config = default_features(kind);
    config.snip_edges = snip;
    config.normalise_recording = false;
    Audio audio{16000, 1, 32768, std::vector<float>(16000, 1e-4F), "click"};
    audio.samples[sample] = 0.9F;
    const Tensor features = FeatureExtractor(config).extract(audio);
    EXPECT_EQ(features.shape()[0], 100);
    return loudest_frame(features);
  };
  // Windows are centred on the middle of the frame, 12.5 ms behind its beginning, or on it.
  EXPECT_EQ(frame_of(FeatureKind::kKaldiFbank, false, 50 * 160 + 80), 50);
  EXPECT_EQ(frame_of(FeatureKind::kKaldiFbank, true, 50 * 160 + 200), 50);
  EXPECT_EQ(frame_of(FeatureKind::kWhisper, true, 50 * 160), 50);
  // So what happens in the middle of frame 50 is in the middle of these windows.
  EXPECT_EQ(frame_of(FeatureKind::kKaldiFbank, true, 50 * 160 + 80), 49);
  EXPECT_EQ(frame_of(FeatureKind::kWhisper, true, 50 * 160 + 79), 50);
}

TEST(FrontEnds, LabelsGoToFramesAndBackOverTheWholeRecording) {
  for (const FeatureKind kind : {FeatureKind::kKaldiFbank, FeatureKind::kWhisper}) {
    const FeatureExtractor extractor(default_features(kind));
    const Audio audio = recording(16000 + 77);
    const std::int64_t frames = extractor.extract(audio).shape()[0];
    const Alphabet labels({"a", "b"});
    Annotation gold{{{0, 0.5, "a", 1}, {0.5, 0.98, "b", 2}, {0.98, audio.seconds(), "a", 3}},
                    audio.seconds(),
                    "gold"};
    const FrameLabels there = to_frames(gold, labels, extractor.hop_seconds(), frames);
    EXPECT_EQ(there.dropped, 0);
    const Annotation back =
        to_annotation(there.segments, labels, extractor.hop_seconds(), audio.seconds());
    ASSERT_EQ(back.segments.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(back.segments[i].end, gold.segments[i].end, 1e-12);
  }
}

TEST(FrontEnds, WhatTheyDoNotHaveIsRefused) {
  const auto refused = [](FeatureKind kind, auto change, const std::string& sentence) {
    FeatureConfig config = default_features(kind);
    change(config);
    try {
      FeatureExtractor{config};
      ADD_FAILURE() << sentence;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  refused(
      FeatureKind::kKaldiFbank, [](FeatureConfig& c) { c.sample_rate = 22050; },
      "hop_ms is 10; expected a whole number of samples at 22050 Hz, as kaldi_fbank has it");
  refused(FeatureKind::kKaldiFbank, [](FeatureConfig& c) { c.fmax = 9000; }, "fmax is 9000");
  refused(
      FeatureKind::kWhisper, [](FeatureConfig& c) { c.sample_rate = 8000; },
      "sample_rate is 8000; expected 16000 for whisper");
  refused(FeatureKind::kWhisper, [](FeatureConfig& c) { c.hop_ms = 20; }, "expected 10 for");
  refused(FeatureKind::kWhisper, [](FeatureConfig& c) { c.window_ms = 20; }, "expected 25 for");
  refused(FeatureKind::kWhisper, [](FeatureConfig& c) { c.fmin = 20; }, "expected 0 for whisper");
  refused(FeatureKind::kWhisper, [](FeatureConfig& c) { c.preemphasis = 0.97; }, "expected 0 for");
  refused(
      FeatureKind::kWhisper, [](FeatureConfig& c) { c.n_mels = 40; },
      "n_mels is 40; expected 80 or 128 for whisper");
}

}  // namespace
}  // namespace segfuse
