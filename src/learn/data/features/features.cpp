#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "learn/data/features/spectrum.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

constexpr std::string_view kKindNames[] = {"log_mel", "mfcc", "raw", "values"};
constexpr int kDeltaReach = 2;

double hop_samples(const FeatureConfig& config) {
  return config.sample_rate * config.hop_ms / 1000;
}

void require(bool condition, std::string_view what, double found, std::string_view expected) {
  if (!condition)
    throw UsageError(fmt::format("features: {} is {}; expected {}", what, found, expected));
}

void check_config(const FeatureConfig& config) {
  require(config.deltas >= 0 && config.deltas <= 2, "deltas", config.deltas, "0, 1 or 2");
  if (config.kind == FeatureKind::kValues) {
    require(config.frame_rate > 0, "frame_rate", config.frame_rate,
            "how many rows of values are a second, more than 0");
    return;
  }
  require(config.sample_rate > 0, "sample_rate", config.sample_rate, "more than 0");
  require(config.hop_ms > 0 && hop_samples(config) >= 1, "hop_ms", config.hop_ms,
          "at least one sample");
  const double window = config.sample_rate * config.window_ms / 1000;
  require(window >= 1 && window <= 1e7, "window_ms", config.window_ms, "at least one sample");
  require(std::abs(config.preemphasis) <= 1, "preemphasis", config.preemphasis, "-1 to 1");
  if (config.kind == FeatureKind::kRaw) {
    require(config.raw_bins >= 0 && config.raw_bins <= window + 0.5, "raw_bins", config.raw_bins,
            "0 to the samples of a window");
    return;
  }
  const double half = config.sample_rate / 2.0;
  require(config.n_mels >= 1, "n_mels", config.n_mels, "at least 1");
  require(config.fmax >= 0 && config.fmax <= half, "fmax", config.fmax,
          "at most half the sample rate");
  const double fmax = config.fmax > 0 ? config.fmax : half;
  require(config.fmin >= 0 && config.fmin < fmax, "fmin", config.fmin, "0 to below fmax");
  if (config.kind == FeatureKind::kMfcc)
    require(config.n_mfcc >= 1 && config.n_mfcc <= config.n_mels, "n_mfcc", config.n_mfcc,
            "1 to n_mels");
}

/// Index of x[n] in a signal mirrored at both ends (the end samples stand once).
std::int64_t mirrored(std::int64_t n, std::int64_t size) {
  if (size == 1) return 0;
  const std::int64_t period = 2 * (size - 1);
  n %= period;
  if (n < 0) n += period;
  return n < size ? n : period - n;
}

void copy_window(std::span<const float> signal, std::int64_t begin, std::span<float> out) {
  const auto size = static_cast<std::int64_t>(signal.size());
  const auto length = static_cast<std::int64_t>(out.size());
  if (begin >= 0 && begin + length <= size) {
    std::copy_n(signal.begin() + begin, length, out.begin());
    return;
  }
  for (std::int64_t i = 0; i < length; ++i)
    out[static_cast<std::size_t>(i)] = signal[static_cast<std::size_t>(mirrored(begin + i, size))];
}

std::vector<float> pre_emphasised(std::span<const float> signal, double factor) {
  std::vector<float> out(signal.begin(), signal.end());
  const auto weight = static_cast<float>(factor);
  for (std::size_t i = out.size(); i-- > 1;) out[i] -= weight * out[i - 1];
  out[0] -= weight * out[0];
  return out;
}

/// Writes the means of out.size() equal parts of the window.
void average_parts(std::span<const float> window, std::span<float> out) {
  for (std::size_t b = 0; b < out.size(); ++b) {
    const std::size_t begin = b * window.size() / out.size();
    const std::size_t end = (b + 1) * window.size() / out.size();
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += static_cast<double>(window[i]);
    out[b] = static_cast<float>(sum / static_cast<double>(end - begin));
  }
}

/// Regression slopes (HTK) of columns [from, from + width) into [from + width, from + 2 width);
/// frames beyond the ends repeat the end frames.
void add_deltas(std::span<float> values, std::int64_t frames, std::int64_t columns,
                std::int64_t from, std::int64_t width) {
  constexpr float kNorm = 2.0F * (1 + 4);
  for (std::int64_t t = 0; t < frames; ++t) {
    float* out = &values[static_cast<std::size_t>(t * columns + from + width)];
    std::fill_n(out, width, 0.0F);
    for (int k = 1; k <= kDeltaReach; ++k) {
      const std::int64_t after = std::min(t + k, frames - 1);
      const std::int64_t before = std::max<std::int64_t>(t - k, 0);
      const float* high = &values[static_cast<std::size_t>(after * columns + from)];
      const float* low = &values[static_cast<std::size_t>(before * columns + from)];
      for (std::int64_t d = 0; d < width; ++d) out[d] += static_cast<float>(k) * (high[d] - low[d]);
    }
    for (std::int64_t d = 0; d < width; ++d) out[d] /= kNorm;
  }
}

}  // namespace

std::string_view name_of(FeatureKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

FeatureKind feature_kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kKindNames); ++i)
    if (kKindNames[i] == name) return static_cast<FeatureKind>(i);
  throw UsageError(fmt::format("feature kind \"{}\"; expected log_mel, mfcc, raw or values", name));
}

struct FeatureExtractor::State {
  FeatureConfig config;
  std::int64_t window = 0;  // samples
  std::int64_t base = 0;    // columns before deltas
  std::optional<data::MelTransform> mel;
};

FeatureExtractor::FeatureExtractor(const FeatureConfig& config) {
  check_config(config);
  auto state = std::make_shared<State>();
  state->config = config;
  if (config.kind == FeatureKind::kValues) {
    state->config.hop_ms = 1000 / config.frame_rate;
    state_ = std::move(state);
    return;
  }
  state->window = std::llround(config.sample_rate * config.window_ms / 1000);
  if (config.kind == FeatureKind::kRaw) {
    state->base = config.raw_bins > 0 ? config.raw_bins : state->window;
  } else {
    state->mel.emplace(config, state->window);
    state->base = config.kind == FeatureKind::kMfcc ? config.n_mfcc : config.n_mels;
  }
  state_ = std::move(state);
}

const FeatureConfig& FeatureExtractor::config() const noexcept { return state_->config; }

std::int64_t FeatureExtractor::num_features() const noexcept {
  if (config().kind == FeatureKind::kValues) return 0;
  if (config().channel == AudioOptions::kStack) return 0;
  return state_->base * (1 + state_->config.deltas);
}

std::int64_t FeatureExtractor::num_frames(std::int64_t num_samples) const noexcept {
  // The small term keeps a hop of, say, 220.5 samples from gaining a frame by rounding.
  const double frames = static_cast<double>(num_samples) / hop_samples(config()) - 1e-6;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(frames)));
}

/// Rows of the features of one channel, `stride` values apart.
struct FeatureExtractor::Rows {
  float* first;
  std::int64_t count;
  std::int64_t stride;
};

void FeatureExtractor::extract_channel(const Audio& audio, int channel, const Rows& rows) const {
  const State& state = *state_;
  const bool spectral = state.mel.has_value();
  std::vector<float> copy;
  std::span<const float> signal = audio.samples;
  if (audio.stacked > 1) {
    for (auto at = static_cast<std::size_t>(channel); at < audio.samples.size();
         at += static_cast<std::size_t>(audio.stacked))
      copy.push_back(audio.samples[at]);
    signal = copy;
  }
  if (spectral && state.config.preemphasis != 0)
    signal = copy = pre_emphasised(signal, state.config.preemphasis);
  std::vector<float> window(static_cast<std::size_t>(state.window));
  std::optional<data::MelTransform::Workspace> workspace;
  if (spectral) workspace.emplace(*state.mel);
  for (std::int64_t t = 0; t < rows.count; ++t) {
    const double centre = (static_cast<double>(t) + 0.5) * hop_samples(state.config);
    const double begin = centre - 0.5 * static_cast<double>(state.window);
    copy_window(signal, static_cast<std::int64_t>(std::floor(begin + 0.5)), window);
    const std::span<float> row(rows.first + t * rows.stride, static_cast<std::size_t>(state.base));
    if (spectral) {
      state.mel->apply(window, row, *workspace);
    } else {
      average_parts(window, row);
    }
  }
}

Tensor FeatureExtractor::extract(const Audio& audio) const {
  const State& state = *state_;
  if (state.config.kind == FeatureKind::kValues)
    throw UsageError(fmt::format("{}: the features are values, and this is audio", audio.source));
  if (audio.sample_rate != state.config.sample_rate)
    throw DataError(
        fmt::format("{}: sample rate {} Hz; the features expect {} Hz, resample the file",
                    audio.source, audio.sample_rate, state.config.sample_rate));
  if (audio.samples.empty())
    throw DataError(fmt::format("{}: the recording has no samples", audio.source));
  if (audio.stacked < 1 || audio.samples.size() % static_cast<std::size_t>(audio.stacked) != 0)
    throw UsageError(fmt::format("{}: {} samples of {} channels", audio.source,
                                 audio.samples.size(), audio.stacked));
  const std::int64_t frames = num_frames(audio.frames());
  const std::int64_t width = state.base * audio.stacked;
  const std::int64_t columns = width * (1 + state.config.deltas);
  Tensor out(DType::kF32, {frames, columns});
  const std::span<float> values = out.span<float>();
  for (int c = 0; c < audio.stacked; ++c)
    extract_channel(audio, c, {values.data() + c * state.base, frames, columns});
  finish(values, frames, width);
  return out;
}

Tensor FeatureExtractor::extract_values(const Tensor& values, std::string_view source) const {
  if (config().kind != FeatureKind::kValues)
    throw UsageError(
        fmt::format("{}: the features are {}, of audio; set features.kind = \"values\" for numbers",
                    source, name_of(config().kind)));
  const std::int64_t frames = values.shape().at(0);
  const std::int64_t width = values.shape().at(1);
  const std::int64_t columns = width * (1 + config().deltas);
  Tensor out(DType::kF32, {frames, columns});
  const std::span<const float> from = values.span<float>();
  const std::span<float> to = out.span<float>();
  for (std::int64_t t = 0; t < frames; ++t)
    std::copy_n(from.begin() + t * width, width, to.begin() + t * columns);
  finish(to, frames, width);
  return out;
}

/// What all kinds have in common; the first `width` columns are there.
void FeatureExtractor::finish(std::span<float> values, std::int64_t frames,
                              std::int64_t width) const {
  const std::int64_t columns = width * (1 + config().deltas);
  if (config().normalise_recording) data::normalise_columns(values, frames, columns, width);
  for (int d = 0; d < config().deltas; ++d) add_deltas(values, frames, columns, d * width, width);
}

}  // namespace segfuse
