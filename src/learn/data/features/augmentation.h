#pragma once
// Augmentation: what training batches see of a recording, other in each epoch.
//
// On a row of normalised features z = (x - m) / s of each column, in this order:
//
// - transposition: k bands up, k uniform in -n .. n; x[b] becomes x[b - k], beyond the edges that
// of
//   the edge's band. The columns of each channel and of each order of slopes alike.
// - gain: g dB, uniform in [-r, r]. Samples become 10^(g/20) times what they were. So do raw
//   features, values and their slopes. Log energies of bands get g ln(10) / 10 (whisper, whose
//   logarithms are to the base of 10 and a quarter as large: g / 40), the first cepstrum
//   sqrt(n_mels) times as much, slopes stay. Exact above the floor of energies.
// - noise: a ratio of q dB, uniform in what noise_snr_db says; z gets Gaussian numbers of deviation
//   10^(-q/20), each of its own. Normalised features have deviation 1.
// - masks: of frames and of bands (Park et al.: SpecAugment, Interspeech 2019): a length uniform in
//   0 .. the greatest, then a beginning, uniform where it fits; z becomes 0, which is the mean.
//
// Each of the four draws from numbers of its own: one more does not change what the others do.

#include <cstdint>
#include <span>

#include "segfuse/data.h"

namespace segfuse::data {

/// Whether the columns of such features are bands of the mel scale.
bool has_bands(FeatureKind kind);

/// Changes features; immutable, may be used from many threads at once.
class Augmenter {
 public:
  Augmenter(Augmentation augmentation, FeatureConfig features, Normalisation normalisation,
            std::uint64_t seed);

  /// Of a sequence, rows of as many columns as the normalisation has. A function of the seed, the
  /// epoch and the sequence's place among those of the training alone.
  void apply(std::span<float> rows, std::int64_t epoch, std::int64_t sequence) const;

 private:
  enum class Draws : std::uint64_t {
    kTransposition,
    kGain,
    kNoise,
    kTimeMasks,
    kFrequencyMasks,
    kNoiseRatio
  };
  class Source;
  void transpose(std::span<float> rows, std::int64_t bands) const;
  void amplify(std::span<float> rows, double decibels) const;
  void mask_bands(std::span<float> rows, std::int64_t first, std::int64_t count) const;

  Augmentation augmentation_;
  FeatureConfig features_;
  Normalisation normalisation_;
  std::uint64_t seed_;
  std::int64_t columns_;
  std::int64_t base_;  ///< columns before the slopes
};

}  // namespace segfuse::data
