#include "learn/data/features/spectrum.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr float kEnergyFloor = 1e-10F;

double to_mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }

}  // namespace

MelTransform::MelTransform(const FeatureConfig& config, std::int64_t window)
    : tables_(std::max<std::size_t>(2, std::bit_ceil(static_cast<std::size_t>(window)))) {
  const auto length = static_cast<std::size_t>(window);
  taper_.resize(length, 1.0F);
  for (std::size_t i = 0; i < length && length > 1; ++i) {
    const double phase =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length - 1);
    taper_[i] = static_cast<float>(0.54 - 0.46 * std::cos(phase));
  }
  build_bands(config);
  if (config.kind == FeatureKind::kMfcc) build_cosines(config);
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
    if (band.weights.empty())
      throw UsageError(fmt::format(
          "features: mel filter {} of {} covers no FFT bin; use fewer n_mels or a longer window_ms",
          m, config.n_mels));
    bands_.push_back(std::move(band));
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
      energy = std::log(std::max(energy, kEnergyFloor));
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
