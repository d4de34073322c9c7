#include "learn/data/features/frame_stream.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace segfuse {
namespace {

constexpr int kDeltaReach = 2;

/// Index of x[n] in a signal mirrored at both ends (the end samples stand once, or `twice`).
std::int64_t mirrored_index(std::int64_t n, std::int64_t size, bool twice) {
  if (size == 1) return 0;
  const std::int64_t period = twice ? 2 * size : 2 * (size - 1);
  n %= period;
  if (n < 0) n += period;
  return n < size ? n : period - n - (twice ? 1 : 0);
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

/// What Kaldi makes of the samples of a window before the window function.
void prepare_for_kaldi(std::span<float> window, double preemphasis) {
  constexpr float kScale = 32768;
  double sum = 0;
  for (float& value : window) {
    value *= kScale;
    sum += static_cast<double>(value);
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(window.size()));
  for (float& value : window) value -= mean;
  const auto weight = static_cast<float>(preemphasis);
  for (std::size_t i = window.size(); i-- > 1;) window[i] -= weight * window[i - 1];
  window[0] -= weight * window[0];
}

}  // namespace

namespace data {

FrameGrid::FrameGrid(const FeatureConfig& config)
    : kind_(config.kind), snip_edges_(config.snip_edges), hop_(hop_samples(config)) {
  const double window = config.sample_rate * config.window_ms / 1000;
  window_ = kind_ == FeatureKind::kKaldiFbank ? static_cast<std::int64_t>(window + 1e-6)
                                              : std::llround(window);
}

std::int64_t FrameGrid::begin_of(std::int64_t frame) const {
  const std::int64_t hop = std::llround(hop_);
  if (kind_ == FeatureKind::kWhisper) return frame * hop - window_ / 2;
  if (kind_ == FeatureKind::kKaldiFbank)
    return frame * hop + (snip_edges_ ? 0 : hop / 2 - window_ / 2);
  const double centre = (static_cast<double>(frame) + 0.5) * hop_;
  const double begin = centre - 0.5 * static_cast<double>(window_);
  return static_cast<std::int64_t>(std::floor(begin + 0.5));
}

std::optional<std::int64_t> FrameGrid::sample_at(std::int64_t n, std::int64_t size) const {
  if (kind_ != FeatureKind::kWhisper)
    return mirrored_index(n, size, kind_ == FeatureKind::kKaldiFbank);
  if (std::abs(n) >= size) return std::nullopt;
  return std::abs(n);
}

}  // namespace data

BaseFrames::BaseFrames(const FeatureExtractor& extractor, int stacked)
    : state_(*extractor.state_),
      extractor_(extractor),
      signal_(static_cast<std::size_t>(stacked)),
      last_(static_cast<std::size_t>(stacked)) {}

std::int64_t BaseFrames::width() const { return state_.base * std::ssize(signal_); }

void BaseFrames::add_channel(std::span<const float> samples, std::size_t channel) {
  const FeatureKind kind = state_.config.kind;
  const bool emphasised = kind == FeatureKind::kLogMel || kind == FeatureKind::kMfcc;
  const auto weight = static_cast<float>(emphasised ? state_.config.preemphasis : 0);
  std::vector<float>& signal = signal_[channel];
  std::size_t next = signal.size();
  signal.resize(next + samples.size() / signal_.size());
  float last = arrived_ == 0 ? samples[channel] : last_[channel];
  for (std::size_t i = channel; i < samples.size(); i += signal_.size()) {
    signal[next++] = weight == 0 ? samples[i] : samples[i] - weight * last;
    last = samples[i];
  }
  last_[channel] = last;
}

/// The samples of a frame's window, or what becomes of them in `own`.
const float* BaseFrames::window_of(const std::vector<float>& signal, std::int64_t frame,
                                   std::vector<float>& own) const {
  const data::FrameGrid& grid = state_.grid;
  const bool kaldi = state_.config.kind == FeatureKind::kKaldiFbank;
  const std::int64_t begin = grid.begin_of(frame);
  const bool inside = begin >= 0 && begin + grid.window() <= arrived_;
  const float* const samples = inside ? signal.data() + (begin - first_) : nullptr;
  if (inside && !kaldi) return samples;
  own.clear();
  if (inside) own.assign(samples, samples + grid.window());
  for (std::int64_t i = std::ssize(own); i < grid.window(); ++i) {
    const std::optional<std::int64_t> at = grid.sample_at(begin + i, arrived_);
    own.push_back(at ? signal[static_cast<std::size_t>(*at - first_)] : 0);
  }
  if (kaldi) prepare_for_kaldi(own, state_.config.preemphasis);
  return own.data();
}

/// Rows of the frames before `end`.
void BaseFrames::make_rows(std::int64_t end, std::vector<float>& rows) {
  constexpr std::size_t kTogether = 64;  // windows
  const auto base = static_cast<std::size_t>(state_.base);
  const auto window = static_cast<std::size_t>(state_.grid.window());
  std::vector<const float*> windows;
  own_.resize(std::max(kTogether, signal_.size()));
  const auto transform = [&] {
    const std::size_t at = rows.size();
    rows.resize(at + windows.size() * base);
    const std::span<float> to = std::span(rows).subspan(at);
    if (state_.mel) {
      state_.mel->apply(windows, to, workspace_);
      note_peaks(to);
    } else {
      for (std::size_t w = 0; w < windows.size(); ++w)
        average_parts({windows[w], window}, to.subspan(w * base, base));
    }
    windows.clear();
  };
  for (; next_ < end; ++next_) {
    for (const std::vector<float>& signal : signal_)
      windows.push_back(window_of(signal, next_, own_[windows.size()]));
    if (windows.size() + signal_.size() > own_.size()) transform();
  }
  if (!windows.empty()) transform();
}

/// `rows` begin with the first channel.
void BaseFrames::note_peaks(std::span<const float> rows) {
  if (state_.config.kind != FeatureKind::kWhisper) return;
  const auto base = static_cast<std::size_t>(state_.base);
  peaks_.resize(signal_.size(), std::numeric_limits<float>::lowest());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    float& peak = peaks_[i / base % peaks_.size()];
    peak = std::max(peak, rows[i]);
  }
}

void BaseFrames::settle(std::span<float> rows, std::int64_t columns) const {
  const auto base = static_cast<std::size_t>(state_.base);
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(columns))
    for (std::size_t channel = 0; channel < peaks_.size(); ++channel)
      for (float& value : rows.subspan(at + channel * base, base))
        value = (std::max(value, peaks_[channel] - 8) + 4) / 4;
}

/// Drops samples that no window will look at, whatever follows: those that are mirrored at the end
/// included.
void BaseFrames::forget() {
  constexpr std::int64_t kEnough = 1 << 15;
  const std::int64_t hop = static_cast<std::int64_t>(std::ceil(hop_samples(state_.config)));
  const std::int64_t needed = state_.grid.begin_of(next_) - state_.grid.window() - 2 * hop - 8;
  if (needed - first_ < kEnough) return;
  for (std::vector<float>& signal : signal_)
    signal.erase(signal.begin(), signal.begin() + (needed - first_));
  first_ = needed;
}

void BaseFrames::push(std::span<const float> samples, std::vector<float>& rows) {
  if (samples.empty()) return;
  for (std::size_t channel = 0; channel < signal_.size(); ++channel) add_channel(samples, channel);
  arrived_ += std::ssize(samples) / std::ssize(signal_);
  std::int64_t end = next_;
  const data::FrameGrid& grid = state_.grid;
  while (grid.begin_of(end) + grid.window() <= arrived_ && -grid.begin_of(end) < arrived_) ++end;
  make_rows(end, rows);
  forget();
}

void BaseFrames::end(std::vector<float>& rows) {
  make_rows(extractor_.num_frames(arrived_), rows);
  if (state_.config.kind != FeatureKind::kWhisper) return;
  // Whisper goes on behind the end, and what it sees there of the recording counts for its peak.
  std::vector<float> behind;
  std::int64_t end = next_;
  while (state_.grid.begin_of(end) < arrived_) ++end;
  make_rows(end, behind);
}

namespace data {

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

Tensor DeltaFrames::push(std::span<const float> rows, bool last) {
  held_.insert(held_.end(), rows.begin(), rows.end());
  arrived_ += std::ssize(rows) / width_;
  const std::int64_t reach = kDeltaReach * deltas_;
  const std::int64_t ready = last ? arrived_ : std::max(next_, arrived_ - reach);
  const std::int64_t frames = arrived_ - first_;
  const std::int64_t columns = width_ * (1 + deltas_);
  Tensor out(DType::kF32, {ready - next_, columns});
  if (ready == next_) return out;
  std::vector<float> values(static_cast<std::size_t>(frames * columns));
  for (std::int64_t t = 0; t < frames; ++t)
    std::copy_n(held_.begin() + t * width_, width_, values.begin() + t * columns);
  for (std::int64_t d = 0; d < deltas_; ++d)
    add_deltas(values, frames, columns, d * width_, width_);
  std::copy_n(values.begin() + (next_ - first_) * columns, (ready - next_) * columns,
              out.span<float>().begin());
  next_ = ready;
  const std::int64_t needed = std::max(first_, next_ - reach);
  held_.erase(held_.begin(), held_.begin() + (needed - first_) * width_);
  first_ = needed;
  return out;
}

}  // namespace data
}  // namespace segfuse
