#pragma once
// How far a measure would move on other recordings of the same kind: the percentile bootstrap.
//
// Recordings, not segments, are drawn with replacement, as many as there are: segments of one
// recording are not independent. A measure is computed again from the sums of each draw, and the
// interval goes from the 2.5 % quantile of these values to the 97.5 % quantile (Efron, Tibshirani:
// An Introduction to the Bootstrap, 1993, chapter 13; for error rates of sequences: Bisani, Ney:
// Bootstrap estimates for confidence intervals in ASR performance evaluation, ICASSP 2004).
// Quantiles between two values are interpolated. Two systems are compared on the same draws, so
// what makes a recording hard for both cancels in the difference.
//
// The draws depend on the number of recordings alone, and all sums are integers.

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "segfuse/metrics.h"

namespace segfuse::metrics {

inline constexpr int kResamples = 2000;
inline constexpr std::uint64_t kBootstrapSeed = 1;
inline constexpr double kConfidence = 0.95;

struct Interval {
  double low = 0;
  double high = 0;
  double half_width() const { return (high - low) / 2; }
  bool holds(double value) const { return low <= value && value <= high; }
};

/// The sums of each draw; empty for less than two recordings, of which nothing can be said.
/// O(kResamples x recordings) time.
std::vector<MetricCounts> resample(std::span<const MetricCounts> recordings);

using MeasureFunction = std::function<double(const MetricCounts&)>;
/// The interval of a measure over draws; none if there are no draws.
std::optional<Interval> interval_of(std::span<const MetricCounts> draws,
                                    const MeasureFunction& measure);
/// The interval of measure(a) - measure(b), for draws of the same recordings in the same order.
std::optional<Interval> difference_interval(std::span<const MetricCounts> a,
                                            std::span<const MetricCounts> b,
                                            const MeasureFunction& measure);

}  // namespace segfuse::metrics
