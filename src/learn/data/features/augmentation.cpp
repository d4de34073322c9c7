#include "learn/data/features/augmentation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/rng.h"

namespace segfuse::data {
namespace {

struct Extent {
  std::int64_t first = 0, count = 0;
};

/// Uniform length, then uniform beginning.
Extent draw_mask(Rng& rng, std::int64_t most, std::int64_t size) {
  const auto upto = [&](std::int64_t last) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(last) + 1));
  };
  const std::int64_t count = upto(std::min(most, size));
  return {upto(size - count), count};
}

/// Adds Gaussian numbers of this deviation, four of a block of random words (Box-Muller twice):
/// those of Rng::normal() would take as long as a step of a small network.
void add_noise(std::span<float> values, std::uint64_t key, std::uint64_t stream, float deviation) {
  const auto angle_of = [](std::uint32_t bits) {
    return 2 * std::numbers::pi_v<float> * uniform_from_bits(bits);
  };
  const auto radius_of = [&](std::uint32_t bits) {
    return deviation * std::sqrt(-2 * std::log(1 - uniform_from_bits(bits)));
  };
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const PhiloxBlock words = philox(key, i / 4, stream);
    float noise[4];
    for (const std::size_t pair : {0, 2}) {
      const float radius = radius_of(words[pair]);
      const float angle = angle_of(words[pair + 1]);
      noise[pair] = radius * std::cos(angle);
      noise[pair + 1] = radius * std::sin(angle);
    }
    for (std::size_t j = 0; j < std::min<std::size_t>(4, values.size() - i); ++j)
      values[i + j] += noise[j];
  }
}

double between(Rng& rng, double low, double high) { return low + (high - low) * rng.uniform(); }

}  // namespace

bool has_bands(FeatureKind kind) {
  return kind == FeatureKind::kLogMel || kind == FeatureKind::kKaldiFbank ||
         kind == FeatureKind::kWhisper;
}

Augmenter::Augmenter(Augmentation augmentation, FeatureConfig features, Normalisation normalisation,
                     std::uint64_t seed)
    : augmentation_(std::move(augmentation)),
      features_(features),
      normalisation_(std::move(normalisation)),
      seed_(seed),
      columns_(std::ssize(normalisation_.mean)),
      base_(columns_ / (1 + features_.deltas)) {
  SEGFUSE_CHECK(!augmentation_.needs_bands() ||
                    (has_bands(features_.kind) && columns_ % features_.n_mels == 0),
                "{} columns that are not bands", columns_);
}

/// The random numbers of one epoch of one sequence, a generator for each kind of change.
class Augmenter::Source {
 public:
  Source(std::uint64_t seed, std::int64_t epoch, std::int64_t sequence)
      : seed_(seed),
        stream_((static_cast<std::uint64_t>(epoch) << 40) + static_cast<std::uint64_t>(sequence)) {}
  Rng of(Draws draws) const { return Rng(key_of(draws), stream_); }
  std::uint64_t stream() const { return stream_; }
  std::uint64_t key_of(Draws draws) const {
    constexpr std::uint64_t kAugmentation = 0x6175676D656E7400;  // no others have such a counter
    const PhiloxBlock key = philox(seed_, static_cast<std::uint64_t>(draws), kAugmentation);
    return (std::uint64_t{key[0]} << 32) | key[1];
  }

 private:
  std::uint64_t seed_, stream_;
};

void Augmenter::apply(std::span<float> rows, std::int64_t epoch, std::int64_t sequence) const {
  const Augmentation& a = augmentation_;
  const Source source(seed_, epoch, sequence);
  const std::int64_t frames = std::ssize(rows) / columns_;
  if (a.transpose_bands > 0) {
    const auto count = static_cast<std::uint64_t>(2 * a.transpose_bands + 1);
    Rng rng = source.of(Draws::kTransposition);
    transpose(rows, static_cast<std::int64_t>(rng.below(count)) - a.transpose_bands);
  }
  if (a.gain_db > 0) {
    Rng rng = source.of(Draws::kGain);
    amplify(rows, between(rng, -a.gain_db, a.gain_db));
  }
  if (!a.noise_snr_db.empty()) {
    Rng rng = source.of(Draws::kNoiseRatio);
    const double ratio = between(rng, a.noise_snr_db[0], a.noise_snr_db[1]);
    add_noise(rows, source.key_of(Draws::kNoise), source.stream(),
              static_cast<float>(std::pow(10, -ratio / 20)));
  }
  Rng times = source.of(Draws::kTimeMasks);
  const auto longest = static_cast<std::int64_t>(a.time_mask_ms / features_.hop_ms + 1e-6);
  for (std::int64_t i = 0; i < a.time_masks; ++i) {
    const Extent mask = draw_mask(times, longest, frames);
    std::ranges::fill(rows.subspan(static_cast<std::size_t>(mask.first * columns_),
                                   static_cast<std::size_t>(mask.count * columns_)),
                      0.0F);
  }
  Rng frequencies = source.of(Draws::kFrequencyMasks);
  for (std::int64_t i = 0; i < a.frequency_masks; ++i) {
    const Extent mask = draw_mask(frequencies, a.frequency_mask_bands, features_.n_mels);
    mask_bands(rows, mask.first, mask.count);
  }
}

void Augmenter::transpose(std::span<float> rows, std::int64_t bands) const {
  if (bands == 0) return;
  const std::int64_t last = features_.n_mels - 1;
  std::vector<double> plain(static_cast<std::size_t>(columns_));
  for (std::size_t at = 0; at < rows.size(); at += plain.size()) {
    for (std::size_t c = 0; c < plain.size(); ++c)
      plain[c] =
          static_cast<double>(rows[at + c]) * normalisation_.deviation[c] + normalisation_.mean[c];
    for (std::int64_t c = 0; c < columns_; ++c) {
      const std::int64_t band = c % features_.n_mels;
      const std::int64_t from = c - band + std::clamp<std::int64_t>(band - bands, 0, last);
      const auto column = static_cast<std::size_t>(c);
      rows[at + column] =
          static_cast<float>((plain[static_cast<std::size_t>(from)] - normalisation_.mean[column]) /
                             normalisation_.deviation[column]);
    }
  }
}

void Augmenter::amplify(std::span<float> rows, double decibels) const {
  // Of each column: z becomes factor z + added.
  const double factor = std::pow(10, decibels / 20);
  const bool bands = has_bands(features_.kind);
  const bool sums = bands || features_.kind == FeatureKind::kMfcc;
  const double energy =
      features_.kind == FeatureKind::kWhisper ? decibels / 40 : decibels * std::numbers::ln10 / 10;
  std::vector<double> added(static_cast<std::size_t>(columns_), 0);
  for (std::size_t c = 0; c < added.size(); ++c) {
    const auto column = static_cast<std::int64_t>(c);
    if (bands && column < base_) added[c] = energy;
    if (features_.kind == FeatureKind::kMfcc && column < base_ && column % features_.n_mfcc == 0)
      added[c] = energy * std::sqrt(static_cast<double>(features_.n_mels));
    if (!sums) added[c] = (factor - 1) * normalisation_.mean[c];
    added[c] /= normalisation_.deviation[c];
  }
  for (std::size_t at = 0; at < rows.size(); at += added.size())
    for (std::size_t c = 0; c < added.size(); ++c)
      rows[at + c] =
          static_cast<float>((sums ? 1 : factor) * static_cast<double>(rows[at + c]) + added[c]);
}

void Augmenter::mask_bands(std::span<float> rows, std::int64_t first, std::int64_t count) const {
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(columns_))
    for (std::int64_t block = 0; block < columns_; block += features_.n_mels)
      std::ranges::fill(rows.subspan(at + static_cast<std::size_t>(block + first),
                                     static_cast<std::size_t>(count)),
                        0.0F);
}

}  // namespace segfuse::data
