#pragma once
// Signals reduced to what a screen can show: bytes of bounded number, coded in base64.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace segfuse::learn {

using Bytes = std::vector<std::uint8_t>;

/// Minimum and maximum per column: bytes [2c] and [2c + 1], 128 is zero, 1 and 255 are -peak and
/// peak. Samples that are not finite count as zero.
struct Envelope {
  std::int64_t columns = 0;
  double peak = 0;
  Bytes bytes;
};
Envelope make_envelope(std::span<const float> samples, std::int64_t max_columns);

/// Cells averaged to at most `max_cells` of them, [frame, bin]. 0 and 255 are the 2nd and the
/// 99.5th percentile. `max_bins` bounds the rows first, then frames share what is left.
struct FeatureImage {
  std::int64_t frames = 0;
  std::int64_t bins = 0;
  Bytes bytes;
};
FeatureImage make_feature_image(std::span<const float> features, std::int64_t bins,
                                std::int64_t max_bins, std::int64_t max_cells);

/// Largest probability per column; 0..255 stand for 0..1. Not finite counts as zero.
struct ProbabilityCurve {
  std::int64_t columns = 0;
  Bytes bytes;
};
ProbabilityCurve make_probability_curve(std::span<const float> values, std::int64_t max_columns);

/// RFC 4648, with padding.
std::string base64(std::span<const std::uint8_t> bytes);

}  // namespace segfuse::learn
