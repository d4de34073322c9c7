#include "learn/data/features/frame_stream.h"

#include <algorithm>
#include <cmath>

namespace segfuse {
namespace {

constexpr int kDeltaReach = 2;

/// Index of x[n] in a signal mirrored at both ends (the end samples stand once).
std::int64_t mirrored_index(std::int64_t n, std::int64_t size) {
  if (size == 1) return 0;
  const std::int64_t period = 2 * (size - 1);
  n %= period;
  if (n < 0) n += period;
  return n < size ? n : period - n;
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

}  // namespace

BaseFrames::BaseFrames(const FeatureExtractor& extractor, int stacked)
    : state_(*extractor.state_),
      extractor_(extractor),
      signal_(static_cast<std::size_t>(stacked)),
      last_(static_cast<std::size_t>(stacked)) {}

std::int64_t BaseFrames::width() const { return state_.base * std::ssize(signal_); }

/// First sample of the window, which is centred on the middle of its frame.
std::int64_t BaseFrames::begin_of(std::int64_t frame) const {
  const double centre = (static_cast<double>(frame) + 0.5) * hop_samples(state_.config);
  const double begin = centre - 0.5 * static_cast<double>(state_.window);
  return static_cast<std::int64_t>(std::floor(begin + 0.5));
}

void BaseFrames::add_channel(std::span<const float> samples, std::size_t channel) {
  const bool spectral = state_.mel.has_value();
  const auto weight = static_cast<float>(spectral ? state_.config.preemphasis : 0);
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

/// The samples of a frame's window; what is beyond an end is `mirrored`.
const float* BaseFrames::window_of(const std::vector<float>& signal, std::int64_t frame,
                                   std::vector<float>& mirrored) const {
  const std::int64_t begin = begin_of(frame);
  if (begin >= 0 && begin + state_.window <= arrived_) return signal.data() + (begin - first_);
  mirrored.clear();
  for (std::int64_t i = 0; i < state_.window; ++i)
    mirrored.push_back(
        signal[static_cast<std::size_t>(mirrored_index(begin + i, arrived_) - first_)]);
  return mirrored.data();
}

/// Rows of the frames before `end`.
void BaseFrames::make_rows(std::int64_t end, std::vector<float>& rows) {
  constexpr std::size_t kTogether = 64;  // windows
  const auto base = static_cast<std::size_t>(state_.base);
  const auto window = static_cast<std::size_t>(state_.window);
  std::vector<const float*> windows;
  mirrored_.resize(std::max(kTogether, signal_.size()));
  const auto transform = [&] {
    const std::size_t at = rows.size();
    rows.resize(at + windows.size() * base);
    const std::span<float> to = std::span(rows).subspan(at);
    if (state_.mel) {
      state_.mel->apply(windows, to, workspace_);
    } else {
      for (std::size_t w = 0; w < windows.size(); ++w)
        average_parts({windows[w], window}, to.subspan(w * base, base));
    }
    windows.clear();
  };
  for (; next_ < end; ++next_) {
    for (const std::vector<float>& signal : signal_)
      windows.push_back(window_of(signal, next_, mirrored_[windows.size()]));
    if (windows.size() + signal_.size() > mirrored_.size()) transform();
  }
  if (!windows.empty()) transform();
}

/// Drops samples that no window will look at, whatever follows: those that are mirrored at the end
/// included.
void BaseFrames::forget() {
  constexpr std::int64_t kEnough = 1 << 15;
  const std::int64_t hop = static_cast<std::int64_t>(std::ceil(hop_samples(state_.config)));
  const std::int64_t needed = begin_of(next_) - state_.window - 2 * hop - 8;
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
  while (begin_of(end) + state_.window <= arrived_ && -begin_of(end) < arrived_) ++end;
  make_rows(end, rows);
  forget();
}

void BaseFrames::end(std::vector<float>& rows) { make_rows(extractor_.num_frames(arrived_), rows); }

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
