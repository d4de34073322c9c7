#include "learn/data/features/spectrum.h"

#include <fmt/core.h>
#include <kiss_fftr.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr float kEnergyFloor = 1e-10F;

double to_mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }

struct FftDeleter {
  void operator()(kiss_fftr_cfg plan) const { kiss_fftr_free(plan); }
};

}  // namespace

struct MelTransform::Workspace::Impl {
  std::unique_ptr<kiss_fftr_state, FftDeleter> plan;
  std::vector<float> input;
  std::vector<kiss_fft_cpx> spectrum;
  std::vector<float> power;
  std::vector<float> log_energy;
};

MelTransform::Workspace::Workspace(const MelTransform& transform)
    : impl_(std::make_unique<Impl>()) {
  const std::size_t size = transform.fft_size_;
  impl_->plan.reset(kiss_fftr_alloc(static_cast<int>(size), 0, nullptr, nullptr));
  if (!impl_->plan) throw std::bad_alloc();
  impl_->input.assign(size, 0.0F);
  impl_->spectrum.resize(size / 2 + 1);
  impl_->power.resize(size / 2 + 1);
  impl_->log_energy.resize(transform.filters_.size());
}

MelTransform::Workspace::~Workspace() = default;
MelTransform::~MelTransform() = default;

MelTransform::MelTransform(const FeatureConfig& config, std::int64_t window) {
  const auto length = static_cast<std::size_t>(window);
  fft_size_ = std::max<std::size_t>(2, std::bit_ceil(length));
  taper_.resize(length, 1.0F);
  for (std::size_t i = 0; i < length && length > 1; ++i) {
    const double phase =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length - 1);
    taper_[i] = static_cast<float>(0.54 - 0.46 * std::cos(phase));
  }
  build_filters(config);
  if (config.kind == FeatureKind::kMfcc) build_cosines(config);
}

void MelTransform::build_filters(const FeatureConfig& config) {
  const double high = config.fmax > 0 ? config.fmax : config.sample_rate / 2.0;
  const double low_mel = to_mel(config.fmin);
  const double step = (to_mel(high) - low_mel) / (config.n_mels + 1);
  const double bin_hertz = config.sample_rate / static_cast<double>(fft_size_);
  for (int m = 0; m < config.n_mels; ++m) {
    Filter filter;
    const double centre = low_mel + (m + 1) * step;
    for (std::size_t bin = 0; bin <= fft_size_ / 2; ++bin) {
      const double mel = to_mel(static_cast<double>(bin) * bin_hertz);
      const double weight = 1 - std::abs(mel - centre) / step;
      if (weight <= 0) continue;
      if (filter.weights.empty()) filter.first_bin = bin;
      filter.weights.push_back(static_cast<float>(weight));
    }
    if (filter.weights.empty())
      throw UsageError(fmt::format(
          "features: mel filter {} of {} covers no FFT bin; use fewer n_mels or a longer window_ms",
          m, config.n_mels));
    filters_.push_back(std::move(filter));
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

void MelTransform::apply(std::span<const float> window, std::span<float> out,
                         Workspace& workspace) const {
  Workspace::Impl& work = *workspace.impl_;
  for (std::size_t i = 0; i < taper_.size(); ++i) work.input[i] = window[i] * taper_[i];
  kiss_fftr(work.plan.get(), work.input.data(), work.spectrum.data());
  for (std::size_t i = 0; i < work.power.size(); ++i)
    work.power[i] =
        work.spectrum[i].r * work.spectrum[i].r + work.spectrum[i].i * work.spectrum[i].i;
  const std::span<float> energies = cosines_.empty() ? out : std::span<float>(work.log_energy);
  for (std::size_t m = 0; m < filters_.size(); ++m) {
    const Filter& filter = filters_[m];
    float sum = 0;
    for (std::size_t i = 0; i < filter.weights.size(); ++i)
      sum += filter.weights[i] * work.power[filter.first_bin + i];
    energies[m] = std::log(std::max(sum, kEnergyFloor));
  }
  if (cosines_.empty()) return;
  for (std::size_t n = 0; n < out.size(); ++n) {
    float sum = 0;
    for (std::size_t m = 0; m < energies.size(); ++m)
      sum += cosines_[n * energies.size() + m] * energies[m];
    out[n] = sum;
  }
}

}  // namespace segfuse::data
