#pragma once
// From samples at any rate to rows of features.

#include <cstdint>
#include <span>
#include <vector>

#include "learn/data/audio/parsers.h"
#include "learn/data/features/frame_stream.h"

namespace segfuse::data {

/// The rows without slopes of samples that come piece by piece.
class SampleRows {
 public:
  /// `audio` says what comes; DataError where its rate cannot be resampled. `extractor` lives
  /// longer.
  SampleRows(const Audio& audio, const FeatureExtractor& extractor)
      : resampler_(audio, extractor.config().sample_rate), base_(extractor, audio.stacked) {}
  /// Appends the rows that are complete.
  void push(std::span<const float> samples, std::vector<float>& rows);
  /// Appends the rest. There was a sample.
  void end(std::vector<float>& rows);
  std::int64_t width() const { return base_.width(); }
  /// After end(): what the whole recording has to say about rows.
  void settle(std::span<float> rows) const { base_.settle(rows, width()); }

 private:
  Resampler resampler_;
  BaseFrames base_;
  std::vector<float> resampled_;
};

}  // namespace segfuse::data
