#include "learn/data/features/spectrum.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "segfuse/error.h"

namespace segfuse::data {
namespace {

double to_mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }

/// Slaney's scale (Auditory Toolbox, 1998): 3 mels for 200 Hz up to 1 kHz, then 27 for a factor of
/// 6.4.
double slaney_hertz(double mel) {
  constexpr double kBend = 15;  // 1 kHz
  if (mel < kBend) return mel * 200 / 3;
  return 1000 * std::exp((mel - kBend) * std::log(6.4) / 27);
}
double slaney_mel(double hertz) {
  if (hertz < 1000) return hertz * 3 / 200;
  return 15 + 27 * std::log(hertz / 1000) / std::log(6.4);
}

/// The weight of sample i of a window.
double taper_at(FeatureKind kind, std::size_t i, std::size_t length) {
  const bool periodic = kind == FeatureKind::kWhisper;
  if (length == 1) return 1;
  const double phase = 2 * std::numbers::pi * static_cast<double>(i) /
                       static_cast<double>(periodic ? length : length - 1);
  if (kind == FeatureKind::kWhisper) return 0.5 - 0.5 * std::cos(phase);
  if (kind == FeatureKind::kKaldiFbank)  // after Povey
    return std::pow(0.5 - 0.5 * std::cos(phase), 0.85);
  return 0.54 - 0.46 * std::cos(phase);
}

std::size_t transform_size(FeatureKind kind, std::int64_t window) {
  const auto length = static_cast<std::size_t>(window);
  return kind == FeatureKind::kWhisper ? length : std::max<std::size_t>(2, std::bit_ceil(length));
}

}  // namespace

MelTransform::MelTransform(const FeatureConfig& config, std::int64_t window)
    : tables_(transform_size(config.kind, window)),
      floor_(config.kind == FeatureKind::kKaldiFbank ? std::numeric_limits<float>::epsilon()
                                                     : 1e-10F),
      decimal_(config.kind == FeatureKind::kWhisper) {
  const auto length = static_cast<std::size_t>(window);
  for (std::size_t i = 0; i < length; ++i)
    taper_.push_back(static_cast<float>(taper_at(config.kind, i, length)));
  decimal_ ? build_slaney_bands(config) : build_bands(config);
  if (config.kind == FeatureKind::kMfcc) build_cosines(config);
}

void MelTransform::add_band(Band band, const FeatureConfig& config) {
  if (band.weights.empty())
    throw UsageError(fmt::format(
        "features: mel filter {} of {} covers no FFT bin; use fewer n_mels or a longer window_ms",
        bands_.size(), config.n_mels));
  bands_.push_back(std::move(band));
}

void MelTransform::build_bands(const FeatureConfig& config) {
  const double high = config.fmax > 0 ? config.fmax : config.sample_rate / 2.0;
  const double low_mel = to_mel(config.fmin);
  const double step = (to_mel(high) - low_mel) / (config.n_mels + 1);
  const double bin_hertz = config.sample_rate / static_cast<double>(tables_.size);
  for (int m = 0; m < config.n_mels; ++m) {
    Band band;
    const double centre = low_mel + (m + 1) * step;
    for (std::size_t bin = 0; bin <= tables_.size / 2; ++bin) {
      const double mel = to_mel(static_cast<double>(bin) * bin_hertz);
      const double weight = 1 - std::abs(mel - centre) / step;
      if (weight <= 0) continue;
      if (band.weights.empty()) band.first_bin = bin;
      band.weights.push_back(static_cast<float>(weight));
    }
    add_band(std::move(band), config);
  }
}

/// Triangles over hertz, of area 1.
void MelTransform::build_slaney_bands(const FeatureConfig& config) {
  const double step = slaney_mel(config.sample_rate / 2.0) / (config.n_mels + 1);
  const double bin_hertz = config.sample_rate / static_cast<double>(tables_.size);
  for (int m = 0; m < config.n_mels; ++m) {
    Band band;
    const double low = slaney_hertz(m * step);
    const double centre = slaney_hertz((m + 1) * step);
    const double high = slaney_hertz((m + 2) * step);
    for (std::size_t bin = 0; bin <= tables_.size / 2; ++bin) {
      const double hertz = static_cast<double>(bin) * bin_hertz;
      const double height =
          std::min((hertz - low) / (centre - low), (high - hertz) / (high - centre));
      if (height <= 0) continue;
      if (band.weights.empty()) band.first_bin = bin;
      band.weights.push_back(static_cast<float>(height * 2 / (high - low)));
    }
    add_band(std::move(band), config);
  }
}

void MelTransform::build_cosines(const FeatureConfig& config) {
  const double mels = config.n_mels;
  for (int n = 0; n < config.n_mfcc; ++n) {
    const double lift = config.lifter > 0
                            ? 1 + config.lifter / 2 * std::sin(std::numbers::pi * n / config.lifter)
                            : 1;
    const double scale = std::sqrt((n == 0 ? 1 : 2) / mels) * lift;
    for (int m = 0; m < config.n_mels; ++m)
      cosines_.push_back(
          static_cast<float>(scale * std::cos(std::numbers::pi * n * (m + 0.5) / mels)));
  }
}

void MelTransform::apply(std::span<const float* const> windows, std::span<float> rows,
                         Workspace& workspace) const {
  const std::size_t count = windows.size();
  const std::size_t mels = bands_.size();
  std::vector<float>& energies = workspace.energies;
  energies.resize(mels * count);
  band_energies(tables_, taper_, bands_, windows, workspace.bands, energies);
  const bool log_mel = cosines_.empty();
  for (std::size_t m = 0; m < mels; ++m)
    for (std::size_t w = 0; w < count; ++w) {
      float& energy = energies[m * count + w];
      energy = std::max(energy, floor_);
      energy = decimal_ ? std::log10(energy) : std::log(energy);
      if (log_mel) rows[w * mels + m] = energy;
    }
  if (log_mel) return;
  const std::size_t width = cosines_.size() / mels;
  for (std::size_t w = 0; w < count; ++w)
    for (std::size_t n = 0; n < width; ++n) {
      float sum = 0;
      for (std::size_t m = 0; m < mels; ++m)
        sum += cosines_[n * mels + m] * energies[m * count + w];
      rows[w * width + n] = sum;
    }
}

}  // namespace segfuse::data
