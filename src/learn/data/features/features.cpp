#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "learn/data/features/frame_stream.h"
#include "learn/data/recordings.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

constexpr std::string_view kKindNames[] = {"log_mel", "mfcc",        "raw",
                                           "values",  "kaldi_fbank", "whisper"};

void require(bool condition, std::string_view what, double found, std::string_view expected) {
  if (!condition)
    throw UsageError(fmt::format("features: {} is {}; expected {}", what, found, expected));
}

/// All but the number of bands is what Whisper was trained with.
void check_whisper(const FeatureConfig& config) {
  const FeatureConfig own = default_features(FeatureKind::kWhisper);
  const auto same = [](std::string_view what, double found, double expected) {
    require(found == expected, what, found, fmt::format("{} for whisper", expected));
  };
  same("sample_rate", config.sample_rate, own.sample_rate);
  same("window_ms", config.window_ms, own.window_ms);
  same("hop_ms", config.hop_ms, own.hop_ms);
  same("fmin", config.fmin, own.fmin);
  same("fmax", config.fmax, own.fmax);
  same("preemphasis", config.preemphasis, own.preemphasis);
  require(config.n_mels == 80 || config.n_mels == 128, "n_mels", config.n_mels,
          "80 or 128 for whisper");
}

void check_config(const FeatureConfig& config) {
  require(config.deltas >= 0 && config.deltas <= 2, "deltas", config.deltas, "0, 1 or 2");
  if (config.kind == FeatureKind::kValues) {
    require(config.frame_rate > 0, "frame_rate", config.frame_rate,
            "the number of rows of values per second, above 0");
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
  if (config.kind == FeatureKind::kWhisper) return check_whisper(config);
  if (config.kind == FeatureKind::kKaldiFbank)
    require(std::abs(hop_samples(config) - std::round(hop_samples(config))) < 1e-6, "hop_ms",
            config.hop_ms,
            fmt::format("a whole number of samples at {} Hz, as kaldi_fbank has it",
                        config.sample_rate));
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

}  // namespace

std::string_view name_of(FeatureKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

FeatureKind feature_kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kKindNames); ++i)
    if (kKindNames[i] == name) return static_cast<FeatureKind>(i);
  throw UsageError(
      fmt::format("feature kind \"{}\"; expected log_mel, mfcc, raw, values, "
                  "kaldi_fbank or whisper",
                  name));
}

FeatureConfig default_features(FeatureKind kind) {
  FeatureConfig config;
  config.kind = kind;
  if (kind != FeatureKind::kKaldiFbank && kind != FeatureKind::kWhisper) return config;
  config.n_mels = 80;
  if (kind == FeatureKind::kWhisper) config.fmin = config.preemphasis = 0;
  return config;
}

bool needs_whole_recording(const FeatureConfig& config) noexcept {
  return config.normalise_recording || config.kind == FeatureKind::kWhisper;
}

FeatureExtractor::FeatureExtractor(const FeatureConfig& config) {
  check_config(config);
  auto state = std::make_shared<State>();
  state->config = config;
  if (config.kind == FeatureKind::kValues) {
    state->config.hop_ms = 1000 / config.frame_rate;
    state_ = std::shared_ptr<const State>(std::move(state));
    return;
  }
  state->grid = data::FrameGrid(config);
  if (config.kind == FeatureKind::kRaw) {
    state->base = config.raw_bins > 0 ? config.raw_bins : state->grid.window();
  } else {
    state->mel.emplace(config, state->grid.window());
    state->base = config.kind == FeatureKind::kMfcc ? config.n_mfcc : config.n_mels;
  }
  state_ = std::shared_ptr<const State>(std::move(state));
}

const FeatureConfig& FeatureExtractor::config() const { return state_->config; }

std::int64_t FeatureExtractor::num_features() const {
  if (config().kind == FeatureKind::kValues) return 0;
  if (config().channel == AudioOptions::kStack) return 0;
  return state_->base * (1 + state_->config.deltas);
}

std::int64_t FeatureExtractor::num_frames(std::int64_t num_samples) const {
  // The small term keeps a hop of, say, 220.5 samples from gaining a frame by rounding.
  const double frames = static_cast<double>(num_samples) / hop_samples(config()) - 1e-6;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(frames)));
}

Tensor FeatureExtractor::extract(const Audio& audio) const {
  const State& state = *state_;
  if (state.config.kind == FeatureKind::kValues)
    throw UsageError(
        fmt::format("{}: the features are values, and this is audio", data::name_of(audio)));
  if (audio.sample_rate != state.config.sample_rate)
    throw DataError(
        fmt::format("{}: sample rate {} Hz; the features expect {} Hz, resample the file",
                    data::name_of(audio), audio.sample_rate, state.config.sample_rate));
  if (audio.samples.empty())
    throw DataError(fmt::format("{}: no samples; expected at least one", data::name_of(audio)));
  if (audio.stacked < 1 || audio.samples.size() % static_cast<std::size_t>(audio.stacked) != 0)
    throw UsageError(fmt::format("{}: {} samples of {} channels", data::name_of(audio),
                                 audio.samples.size(), audio.stacked));
  const std::int64_t frames = num_frames(audio.frames());
  const std::int64_t width = state.base * audio.stacked;
  const std::int64_t columns = width * (1 + state.config.deltas);
  Tensor out(DType::kF32, {frames, columns});
  const std::span<float> values = out.span<float>();
  float* next = values.data();
  std::vector<float> rows;
  const auto place = [&] {
    for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(width))
      next = std::copy_n(&rows[at], width, next) + (columns - width);
    rows.clear();
  };
  BaseFrames base(*this, audio.stacked);
  const std::size_t piece = std::size_t{1 << 14} * static_cast<std::size_t>(audio.stacked);
  for (std::size_t at = 0; at < audio.samples.size(); at += piece) {
    base.push(std::span(audio.samples).subspan(at, std::min(piece, audio.samples.size() - at)),
              rows);
    place();
  }
  base.end(rows);
  place();
  base.settle(values, columns);
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
  for (int d = 0; d < config().deltas; ++d)
    data::add_deltas(values, frames, columns, d * width, width);
}

}  // namespace segfuse
