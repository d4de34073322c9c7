#include "learn/metrics/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace segfuse::metrics {
namespace {

/// Of sorted values: linear between the two whose ranks are nearest.
double quantile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(rank));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - std::floor(rank)) * (sorted[above] - sorted[below]);
}

/// The chunks of labels in draws of recordings, by numbers: a sum of maps would take too long.
class ChunksByLabel {
 public:
  explicit ChunksByLabel(std::span<const MetricCounts> recordings) {
    std::map<std::string_view, std::size_t> numbers;
    for (const MetricCounts& one : recordings) {
      auto& list = recordings_.emplace_back();
      for (const auto& [label, counted] : one.by_label)
        list.emplace_back(numbers.try_emplace(label, numbers.size()).first->second, counted.chunks);
    }
    sums_.resize(numbers.size());
  }
  void add(std::size_t recording) {
    for (const auto& [label, counts] : recordings_[recording]) sums_[label].add(counts);
  }
  /// MetricCounts::chunk_f1_macro() of what was added since the last call.
  double take_macro() {
    double sum = 0;
    std::int64_t labels = 0;
    for (MatchCounts& counts : sums_) {
      if (counts.gold + counts.predicted > 0) {
        sum += counts.f1();
        ++labels;
      }
      counts = {};
    }
    return labels == 0 ? 1 : sum / static_cast<double>(labels);
  }

 private:
  std::vector<std::vector<std::pair<std::size_t, MatchCounts>>> recordings_;
  std::vector<MatchCounts> sums_;
};

std::optional<Interval> central(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  constexpr double kTail = (1 - kConfidence) / 2;
  return Interval{quantile(values, kTail), quantile(values, 1 - kTail)};
}

}  // namespace

std::vector<MetricCounts> resample(std::span<const MetricCounts> recordings) {
  std::vector<MetricCounts> draws;
  if (recordings.size() < 2) return draws;
  MetricCounts none;
  none.boundaries.resize(recordings[0].boundaries.size());
  none.segments.resize(recordings[0].segments.size());
  std::vector<MetricCounts> plain(recordings.begin(), recordings.end());
  for (MetricCounts& one : plain) one.by_label.clear();
  ChunksByLabel chunks(recordings);
  Rng rng(kBootstrapSeed);
  for (int i = 0; i < kResamples; ++i) {
    MetricCounts& sum = draws.emplace_back(none);
    for (std::size_t n = 0; n < recordings.size(); ++n) {
      const std::size_t drawn = rng.below(recordings.size());
      sum.add(plain[drawn]);
      chunks.add(drawn);
    }
    sum.drawn_macro = chunks.take_macro();
  }
  return draws;
}

std::optional<Interval> interval_of(std::span<const MetricCounts> draws,
                                    const MeasureFunction& measure) {
  std::vector<double> values;
  for (const MetricCounts& draw : draws) values.push_back(measure(draw));
  return central(std::move(values));
}

std::optional<Interval> difference_interval(std::span<const MetricCounts> a,
                                            std::span<const MetricCounts> b,
                                            const MeasureFunction& measure) {
  SEGFUSE_CHECK(a.size() == b.size(), "paired draws: {} and {}", a.size(), b.size());
  std::vector<double> values;
  for (std::size_t i = 0; i < a.size(); ++i) values.push_back(measure(a[i]) - measure(b[i]));
  return central(std::move(values));
}

}  // namespace segfuse::metrics
