#include "learn/report/media.h"

#include <algorithm>
#include <cmath>

namespace segfuse::learn {
namespace {

std::int64_t length(std::span<const float> values) {
  return static_cast<std::int64_t>(values.size());
}

float finite_or_zero(float value) { return std::isfinite(value) ? value : 0.0F; }

/// First index of group `i` when `count` things are shared out over `groups` groups.
std::size_t group_start(std::int64_t i, std::int64_t count, std::int64_t groups) {
  return static_cast<std::size_t>(i * count / groups);
}

std::uint8_t quantize(double value, double low, double high) {
  const double scaled = low + (high - low) * std::clamp(value, 0.0, 1.0);
  return static_cast<std::uint8_t>(std::lround(scaled));
}

double percentile(std::vector<float> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

/// Mean of the finite cells of one block of [frame, bin].
float block_mean(std::span<const float> features, std::int64_t bins, std::size_t frame_begin,
                 std::size_t frame_end, std::size_t bin_begin, std::size_t bin_end) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t t = frame_begin; t < frame_end; ++t) {
    for (std::size_t b = bin_begin; b < bin_end; ++b) {
      const float value = features[t * static_cast<std::size_t>(bins) + b];
      if (!std::isfinite(value)) continue;
      sum += value;
      ++count;
    }
  }
  return count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : NAN;
}

}  // namespace

Envelope make_envelope(std::span<const float> samples, std::int64_t max_columns) {
  Envelope out;
  out.columns = std::min(length(samples), max_columns);
  for (const float s : samples) {
    out.peak = std::max(out.peak, static_cast<double>(std::abs(finite_or_zero(s))));
  }
  const double scale = out.peak > 0 ? 1 / out.peak : 0;
  const auto code = [&](float v) { return quantize((v * scale + 1) / 2, 1, 255); };
  for (std::int64_t c = 0; c < out.columns; ++c) {
    const std::size_t begin = group_start(c, length(samples), out.columns);
    const std::size_t end = group_start(c + 1, length(samples), out.columns);
    float low = finite_or_zero(samples[begin]);
    float high = low;
    for (std::size_t i = begin; i < end; ++i) {
      low = std::min(low, finite_or_zero(samples[i]));
      high = std::max(high, finite_or_zero(samples[i]));
    }
    out.bytes.push_back(code(low));
    out.bytes.push_back(code(high));
  }
  return out;
}

FeatureImage make_feature_image(std::span<const float> features, std::int64_t bins,
                                std::int64_t max_bins, std::int64_t max_cells) {
  FeatureImage out;
  if (features.empty() || bins <= 0) return out;
  const std::int64_t frames = length(features) / bins;
  out.bins = std::min(bins, max_bins);
  out.frames = std::clamp<std::int64_t>(max_cells / out.bins, 1, frames);
  std::vector<float> cells;
  for (std::int64_t t = 0; t < out.frames; ++t) {
    for (std::int64_t b = 0; b < out.bins; ++b) {
      cells.push_back(block_mean(features, bins, group_start(t, frames, out.frames),
                                 group_start(t + 1, frames, out.frames),
                                 group_start(b, bins, out.bins),
                                 group_start(b + 1, bins, out.bins)));
    }
  }
  std::vector<float> finite;
  std::copy_if(cells.begin(), cells.end(), std::back_inserter(finite),
               [](float v) { return std::isfinite(v); });
  const double low = finite.empty() ? 0 : percentile(finite, 0.02);
  const double high = finite.empty() ? 1 : percentile(finite, 0.995);
  const double scale = high > low ? 1 / (high - low) : 0;
  for (const float v : cells) {
    out.bytes.push_back(std::isfinite(v) ? quantize((v - low) * scale, 0, 255) : 0);
  }
  return out;
}

ProbabilityCurve make_probability_curve(std::span<const float> values, std::int64_t max_columns) {
  ProbabilityCurve out;
  out.columns = std::min(length(values), max_columns);
  for (std::int64_t c = 0; c < out.columns; ++c) {
    float high = 0;
    for (std::size_t i = group_start(c, length(values), out.columns);
         i < group_start(c + 1, length(values), out.columns); ++i) {
      high = std::max(high, finite_or_zero(values[i]));
    }
    out.bytes.push_back(quantize(high, 0, 255));
  }
  return out;
}

std::string base64(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t word = static_cast<std::uint32_t>(bytes[i]) << 16U;
    if (left > 1) word |= static_cast<std::uint32_t>(bytes[i + 1]) << 8U;
    if (left > 2) word |= bytes[i + 2];
    out += kDigits[word >> 18U];
    out += kDigits[(word >> 12U) & 63U];
    out += left > 1 ? kDigits[(word >> 6U) & 63U] : '=';
    out += left > 2 ? kDigits[word & 63U] : '=';
  }
  return out;
}

}  // namespace segfuse::learn
