#pragma once
// Features of a recording that comes in pieces: the windows of each channel, then the slopes.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "learn/data/features/spectrum.h"
#include "segfuse/data.h"

namespace segfuse {

inline double hop_samples(const FeatureConfig& config) {
  return config.sample_rate * config.hop_ms / 1000;
}

namespace data {

/// Where the windows of frames lie, and what stands beyond the ends of a recording.
class FrameGrid {
 public:
  FrameGrid() = default;
  explicit FrameGrid(const FeatureConfig& config);
  std::int64_t window() const { return window_; }  ///< samples
  /// First sample of a frame's window.
  std::int64_t begin_of(std::int64_t frame) const;
  /// The sample of a recording of `size` that stands at n; nothing for a zero.
  std::optional<std::int64_t> sample_at(std::int64_t n, std::int64_t size) const;

 private:
  FeatureKind kind_ = FeatureKind::kLogMel;
  bool snip_edges_ = false;
  double hop_ = 1;
  std::int64_t window_ = 1;
};

}  // namespace data

struct FeatureExtractor::State {
  FeatureConfig config;
  data::FrameGrid grid;
  std::int64_t base = 0;  // columns before deltas
  std::optional<data::MelTransform> mel;
};

/// The columns without slopes. Of the samples only those are held that windows to come look at.
class BaseFrames {
 public:
  /// `extractor` lives longer.
  BaseFrames(const FeatureExtractor& extractor, int stacked);

  /// The next samples, whole frames of the stacked channels; appends the rows that are complete.
  void push(std::span<const float> samples, std::vector<float>& rows);
  /// The rest of the rows, at least one. There was a sample.
  void end(std::vector<float>& rows);
  std::int64_t width() const;
  std::int64_t samples() const { return arrived_; }  ///< of each channel
  /// After end(): what the whole recording has to say about rows that are `columns` apart.
  void settle(std::span<float> rows, std::int64_t columns) const;

 private:
  void add_channel(std::span<const float> samples, std::size_t channel);
  const float* window_of(const std::vector<float>& signal, std::int64_t frame,
                         std::vector<float>& own) const;
  void make_rows(std::int64_t end, std::vector<float>& rows);
  void note_peaks(std::span<const float> rows);
  void forget();

  const FeatureExtractor::State& state_;
  const FeatureExtractor& extractor_;
  std::vector<std::vector<float>> signal_;  ///< of each channel, from sample first_ on
  std::vector<float> last_;                 ///< sample of each channel, before pre-emphasis
  data::MelTransform::Workspace workspace_;
  std::vector<std::vector<float>> own_;  ///< windows that are not a part of the signal
  std::vector<float> peaks_;             ///< of whisper: the greatest value of each channel
  std::int64_t first_ = 0;
  std::int64_t arrived_ = 0;
  std::int64_t next_ = 0;  ///< frame
};

namespace data {

/// Adds the slopes to rows of base columns.
class DeltaFrames {
 public:
  DeltaFrames(int deltas, std::int64_t width) : deltas_(deltas), width_(width) {}
  /// The next rows, and whether they are the last; gives those that are complete, (n, D).
  Tensor push(std::span<const float> rows, bool last);

 private:
  std::int64_t deltas_, width_;
  std::vector<float> held_;  ///< rows from first_ on
  std::int64_t first_ = 0;
  std::int64_t next_ = 0;     ///< row to be given
  std::int64_t arrived_ = 0;  ///< rows
};

/// Regression slopes (HTK) of columns [from, from + width) into [from + width, from + 2 width);
/// frames beyond the ends repeat the end frames.
void add_deltas(std::span<float> values, std::int64_t frames, std::int64_t columns,
                std::int64_t from, std::int64_t width);

}  // namespace data
}  // namespace segfuse
