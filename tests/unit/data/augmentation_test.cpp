// What training batches see of features: each change against a plain loop, or against the features
// of samples that were changed themselves.
#include "learn/data/features/augmentation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "base/rng.h"

namespace segfuse::data {
namespace {

using Rows = std::vector<float>;

/// Means and deviations that no two columns share.
Normalisation uneven(std::int64_t columns) {
  Normalisation out;
  for (std::int64_t c = 0; c < columns; ++c) {
    out.mean.push_back(0.5 * static_cast<double>(c) - 3);
    out.deviation.push_back(1 + 0.25 * static_cast<double>(c % 5));
  }
  return out;
}

Rows random_rows(std::int64_t frames, std::int64_t columns, std::uint64_t seed = 3) {
  Rng rng(seed);
  Rows rows(static_cast<std::size_t>(frames * columns));
  for (float& value : rows) value = static_cast<float>(rng.normal());
  return rows;
}

FeatureConfig bands(int count, int deltas = 0) {
  FeatureConfig config;
  config.n_mels = count;
  config.deltas = deltas;
  return config;
}

Rows changed(const Augmenter& augmenter, Rows rows, std::int64_t epoch, std::int64_t sequence) {
  augmenter.apply(rows, epoch, sequence);
  return rows;
}

/// So far from uniform as chance allows once in a million: the counts of `draws` draws.
void expect_uniform(const std::map<std::int64_t, int>& counts, std::int64_t low, std::int64_t high,
                    int draws) {
  const double expected = draws / static_cast<double>(high - low + 1);
  const double spread = 5 * std::sqrt(expected);
  for (const auto& [value, count] : counts) {
    EXPECT_GE(value, low);
    EXPECT_LE(value, high);
  }
  for (std::int64_t value = low; value <= high; ++value) {
    const auto found = counts.find(value);
    EXPECT_NEAR(found == counts.end() ? 0 : found->second, expected, spread) << value;
  }
}

// ------------------------------------------------------------------------------------- gain

Audio two_channels(double factor) {
  Audio audio{16000, 2, 8000, {}, "noise"};
  audio.stacked = 2;
  Rng rng(7);
  for (int i = 0; i < 8000; ++i)
    audio.samples.push_back(static_cast<float>(factor * (0.05 + 0.1 * rng.normal())));
  return audio;
}

/// The normalised features of samples with a factor.
Rows features_of(const FeatureConfig& config, const Normalisation& normalisation, double factor) {
  Tensor features = FeatureExtractor(config).extract(two_channels(factor));
  normalisation.apply(features);
  return {features.span<float>().begin(), features.span<float>().end()};
}

void expect_gain_of_samples(FeatureConfig config, std::size_t column) {
  config.channel = AudioOptions::kStack;
  const std::int64_t columns = FeatureExtractor(config).extract(two_channels(1)).shape()[1];
  const Normalisation normalisation = uneven(columns);
  const Augmenter augmenter({.gain_db = 6}, config, normalisation, 11);
  const Rows plain = features_of(config, normalisation, 1);
  std::set<int> gains;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const Rows louder = changed(augmenter, plain, epoch, 4);
    const double scale = normalisation.deviation[column];
    const double before = plain[column] * scale + normalisation.mean[column];
    const double after = louder[column] * scale + normalisation.mean[column];
    double gain = 0;
    if (has_bands(config.kind)) gain = (after - before) * 10 / std::numbers::ln10;
    if (config.kind == FeatureKind::kWhisper) gain = (after - before) * 40;
    if (config.kind == FeatureKind::kMfcc)
      gain = (after - before) * 10 / std::numbers::ln10 / std::sqrt(config.n_mels);
    if (config.kind == FeatureKind::kRaw) gain = 20 * std::log10(after / before);
    EXPECT_LE(std::abs(gain), 6.01);
    gains.insert(static_cast<int>(std::floor(gain)));
    const Rows expected = features_of(config, normalisation, std::pow(10, gain / 20));
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(louder[i], expected[i], 1e-3) << "at " << i << " of " << columns << " columns";
  }
  EXPECT_GE(gains.size(), 7U) << "of -6 to 5";
  EXPECT_TRUE(*gains.begin() < 0 && *gains.rbegin() >= 0);
}

TEST(Augmentation, AGainIsThatOfTheSamples) {
  for (const int deltas : {0, 2}) {
    expect_gain_of_samples(bands(10, deltas), 0);
    FeatureConfig fbank = bands(10, deltas);
    fbank.kind = FeatureKind::kKaldiFbank;
    expect_gain_of_samples(fbank, 0);
    FeatureConfig whisper = default_features(FeatureKind::kWhisper);
    whisper.deltas = deltas;
    expect_gain_of_samples(whisper, 0);
    FeatureConfig cepstra = bands(10, deltas);
    cepstra.kind = FeatureKind::kMfcc;
    cepstra.n_mfcc = 6;
    expect_gain_of_samples(cepstra, 0);
    FeatureConfig raw = bands(10, deltas);
    raw.kind = FeatureKind::kRaw;
    raw.raw_bins = 5;
    expect_gain_of_samples(raw, 2);
  }
}

TEST(Augmentation, AGainOfValuesMultipliesThem) {
  FeatureConfig config;
  config.kind = FeatureKind::kValues;
  config.frame_rate = 100;
  const Normalisation normalisation = uneven(3);
  const Rows plain = random_rows(7, 3);
  const Rows louder = changed(Augmenter({.gain_db = 20}, config, normalisation, 1), plain, 0, 0);
  const auto value = [&](const Rows& rows, std::size_t i) {
    return rows[i] * normalisation.deviation[i % 3] + normalisation.mean[i % 3];
  };
  const double factor = value(louder, 0) / value(plain, 0);
  EXPECT_GT(std::abs(factor - 1), 0.01);
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_NEAR(value(louder, i), factor * value(plain, i), 1e-4);
}

// ----------------------------------------------------------------------------- transposition

TEST(Augmentation, ATranspositionMovesTheBandsOfEachBlock) {
  constexpr std::int64_t kBands = 6, kColumns = 4 * kBands;  // two channels and their slopes
  constexpr std::int64_t kMax = 2;
  const Normalisation normalisation = uneven(kColumns);
  const Augmenter augmenter({.transpose_bands = kMax}, bands(kBands, 1), normalisation, 5);
  const Rows plain = random_rows(3, kColumns);
  std::map<std::int64_t, int> counts;
  constexpr int kDraws = 1000;
  for (std::int64_t sequence = 0; sequence < kDraws; ++sequence) {
    const Rows moved = changed(augmenter, plain, 1, sequence);
    int fits = 0;
    for (std::int64_t k = -kMax; k <= kMax; ++k) {
      double worst = 0;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i) % kColumns;
        const std::int64_t band = column % kBands;
        std::int64_t source = band - k;  // what was lower is now higher
        if (source < 0) source = 0;
        if (source >= kBands) source = kBands - 1;
        const std::size_t from =
            i - static_cast<std::size_t>(band) + static_cast<std::size_t>(source);
        const double x = plain[from] * normalisation.deviation[from % kColumns] +
                         normalisation.mean[from % kColumns];
        const double z =
            (x - normalisation.mean[i % kColumns]) / normalisation.deviation[i % kColumns];
        worst = std::max(worst, std::abs(z - moved[i]));
      }
      if (worst > 1e-5) continue;
      ++fits;
      ++counts[k];
    }
    ASSERT_EQ(fits, 1);
  }
  expect_uniform(counts, -kMax, kMax, kDraws);
}

// ------------------------------------------------------------------------------------- noise

TEST(Augmentation, NoiseHasTheRatioThatWasDrawn) {
  constexpr std::int64_t kFrames = 500, kColumns = 8;
  const Augmenter augmenter({.noise_snr_db = {10, 20}}, bands(kColumns), uneven(kColumns), 5);
  const Rows plain = random_rows(kFrames, kColumns);
  std::map<std::int64_t, int> counts;
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    const Rows noisy = changed(augmenter, plain, epoch, 0);
    double sum = 0, squares = 0, products = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const double off = static_cast<double>(noisy[i]) - static_cast<double>(plain[i]);
      sum += off;
      squares += off * off;
      products += off * static_cast<double>(plain[i]);
    }
    const double n = static_cast<double>(plain.size());
    const double deviation = std::sqrt(squares / n);
    const double ratio = -20 * std::log10(deviation);
    EXPECT_GT(ratio, 9.6);
    EXPECT_LT(ratio, 20.4);
    ++counts[static_cast<std::int64_t>(std::floor(ratio / 2.5))];
    EXPECT_NEAR(sum / n / deviation, 0, 5 / std::sqrt(n));
    EXPECT_NEAR(products / n / deviation, 0, 5 / std::sqrt(n)) << "noise does not know the signal";
  }
  // Gaussian, and neighbours know nothing of each other.
  const Augmenter fixed({.noise_snr_db = {0, 0}}, bands(kColumns), uneven(kColumns), 5);
  const Rows noise = changed(fixed, Rows(40001 * kColumns, 0), 0, 0);
  double fourth = 0, beyond = 0;
  std::vector<double> lags(9, 0);
  const double total = static_cast<double>(noise.size());
  for (std::size_t i = 0; i < noise.size(); ++i) {
    const auto x = static_cast<double>(noise[i]);
    fourth += x * x * x * x / total;
    beyond += std::abs(x) > 1.959964 ? 1 / total : 0;
    for (std::size_t lag = 0; lag < 9 && i + lag < noise.size(); ++lag)
      lags[lag] += x * static_cast<double>(noise[i + lag]) / total;
  }
  EXPECT_NEAR(lags[0], 1, 0.02);
  EXPECT_NEAR(fourth, 3, 0.12);
  EXPECT_NEAR(beyond, 0.05, 0.003);
  for (std::size_t lag = 1; lag < 9; ++lag) EXPECT_NEAR(lags[lag], 0, 5 / std::sqrt(total)) << lag;
  for (std::int64_t quarter = 4; quarter < 8; ++quarter) EXPECT_NEAR(counts[quarter], 50, 25);
}

// ------------------------------------------------------------------------------------- masks

struct Mask {
  std::int64_t first = 0, count = 0;
};
/// The run of zeros; more than one is a failure.
Mask zeros_of(const std::vector<float>& line) {
  Mask mask;
  int runs = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != 0) continue;
    if (i == 0 || line[i - 1] != 0) {
      ++runs;
      mask.first = static_cast<std::int64_t>(i);
    }
    ++mask.count;
  }
  EXPECT_LE(runs, 1);
  return mask;
}

TEST(Augmentation, ATimeMaskIsUniformAndWithinTheSequence) {
  constexpr std::int64_t kFrames = 20, kColumns = 4, kLongest = 5;
  constexpr int kDraws = 6000;
  // 57 ms are five frames of 10 ms and a part of one.
  const Augmenter augmenter({.time_masks = 1, .time_mask_ms = 57}, bands(4), uneven(4), 5);
  std::map<std::int64_t, int> lengths, firsts;
  for (std::int64_t sequence = 0; sequence < kDraws; ++sequence) {
    const Rows rows = changed(augmenter, Rows(kFrames * kColumns, 1), 0, sequence);
    std::vector<float> line;
    for (std::size_t t = 0; t < kFrames; ++t) {
      line.push_back(rows[t * kColumns]);
      for (std::size_t c = 1; c < kColumns; ++c) ASSERT_EQ(rows[t * kColumns + c], line.back());
    }
    const Mask mask = zeros_of(line);
    ++lengths[mask.count];
    if (mask.count == kLongest) ++firsts[mask.first];
  }
  expect_uniform(lengths, 0, kLongest, kDraws);
  expect_uniform(firsts, 0, kFrames - kLongest, lengths[kLongest]);
}

TEST(Augmentation, AMaskIsNoLongerThanItsSequence) {
  const Augmenter augmenter({.time_masks = 1, .time_mask_ms = 1e9}, bands(2), uneven(2), 5);
  std::map<std::int64_t, int> lengths;
  for (std::int64_t sequence = 0; sequence < 2000; ++sequence) {
    Rows rows(4 * 2 + 2, 1);  // a sequence of four frames, and what lies behind it
    augmenter.apply(std::span(rows).first(4 * 2), 0, sequence);
    EXPECT_EQ(rows[8], 1);
    EXPECT_EQ(rows[9], 1);
    ++lengths[std::ranges::count(rows, 0.0F) / 2];
  }
  expect_uniform(lengths, 0, 4, 2000);
}

TEST(Augmentation, AFrequencyMaskIsUniformAndTheSameInAllFramesAndBlocks) {
  constexpr std::int64_t kFrames = 3, kBands = 10, kColumns = 3 * kBands, kWidest = 3;
  constexpr int kDraws = 4000;
  const Augmenter augmenter({.frequency_masks = 1, .frequency_mask_bands = kWidest},
                            bands(kBands, 2), uneven(kColumns), 5);
  std::map<std::int64_t, int> widths, firsts;
  for (std::int64_t sequence = 0; sequence < kDraws; ++sequence) {
    const Rows rows = changed(augmenter, Rows(kFrames * kColumns, 1), 0, sequence);
    for (std::size_t i = kBands; i < rows.size(); ++i) ASSERT_EQ(rows[i], rows[i - kBands]);
    const Mask mask = zeros_of(Rows(rows.begin(), rows.begin() + kBands));
    ++widths[mask.count];
    if (mask.count == kWidest) ++firsts[mask.first];
  }
  expect_uniform(widths, 0, kWidest, kDraws);
  expect_uniform(firsts, 0, kBands - kWidest, widths[kWidest]);
}

TEST(Augmentation, ThereAreAsManyMasksAsAskedFor) {
  std::size_t most = 0;
  for (std::int64_t sequence = 0; sequence < 300; ++sequence) {
    const Augmenter augmenter({.time_masks = 3, .time_mask_ms = 20}, bands(1), uneven(1), 5);
    const Rows rows = changed(augmenter, Rows(1000, 1), 0, sequence);
    std::size_t runs = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
      runs += rows[i] == 0 && (i == 0 || rows[i - 1] != 0);
    EXPECT_LE(runs, 3U);
    most = std::max(most, runs);
  }
  EXPECT_EQ(most, 3U);
}

// ----------------------------------------------------------------------------------- numbers

Augmentation everything() {
  return {.time_masks = 2,
          .time_mask_ms = 40,
          .frequency_masks = 1,
          .frequency_mask_bands = 2,
          .gain_db = 6,
          .noise_snr_db = {10, 30},
          .transpose_bands = 2};
}

TEST(Augmentation, IsAFunctionOfSeedEpochAndPlace) {
  const auto with = [](std::uint64_t seed, std::int64_t epoch, std::int64_t sequence) {
    return changed(Augmenter(everything(), bands(8), uneven(8), seed), random_rows(30, 8), epoch,
                   sequence);
  };
  const Rows once = with(1, 2, 3);
  EXPECT_EQ(with(1, 2, 3), once);
  std::set<Rows> all{once};
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::int64_t epoch = 0; epoch < 4; ++epoch)
      for (std::int64_t sequence = 0; sequence < 4; ++sequence)
        all.insert(with(seed, epoch, sequence));
  EXPECT_EQ(all.size(), 64U) << "no two are alike, with the epoch and the place swapped neither";
}

TEST(Augmentation, OneChangeDoesNotMoveTheOthers) {
  Augmentation masks;
  masks.time_masks = 2;
  masks.time_mask_ms = 40;
  for (std::int64_t sequence = 0; sequence < 20; ++sequence) {
    const Rows alone =
        changed(Augmenter(masks, bands(8), uneven(8), 1), random_rows(30, 8), 0, sequence);
    Augmentation more = everything();
    more.frequency_masks = 0;
    const Rows together =
        changed(Augmenter(more, bands(8), uneven(8), 1), random_rows(30, 8), 0, sequence);
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i] == 0, together[i] == 0);
  }
}

TEST(Augmentation, WithoutAnyTheRowsStay) {
  EXPECT_FALSE(Augmentation{}.any());
  const Rows rows = random_rows(30, 8);
  EXPECT_EQ(changed(Augmenter({}, bands(8), uneven(8), 1), rows, 0, 0), rows);
}

}  // namespace
}  // namespace segfuse::data
