#include "learn/metrics/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace segfuse {
namespace metrics {
namespace {

struct Times {
  std::vector<std::int64_t> gold, predicted;
};
struct LabelTimes {
  Times onsets, offsets;
  std::vector<TimedLabel> gold, predicted;  // in frames
};

bool is_counted(const std::string& label, std::span<const std::string> background) {
  return !label.empty() && std::ranges::find(background, label) == background.end();
}

void count_edges(EdgeCounts& counts, MatchCounts& all, const Times& times, std::int64_t tolerance) {
  const EdgePairs pairs = match_edges(times.gold, times.predicted, tolerance);
  for (MatchCounts* sum : {static_cast<MatchCounts*>(&counts), &all})
    count_matches(*sum, times.gold.size(), times.predicted.size(), pairs.hits);
  counts.error_us += pairs.error_us;
  counts.square_us += pairs.square_us;
}

std::vector<TimedLabel> without(std::span<const TimedLabel> sequence,
                                std::span<const std::string> background) {
  std::vector<TimedLabel> out;
  std::ranges::copy_if(sequence, std::back_inserter(out), [&](const TimedLabel& segment) {
    return is_counted(segment.label, background);
  });
  return out;
}

}  // namespace

void count_matches(MatchCounts& counts, std::size_t gold, std::size_t predicted,
                   std::int64_t hits) {
  counts.gold += static_cast<std::int64_t>(gold);
  counts.predicted += static_cast<std::int64_t>(predicted);
  counts.hits += hits;
}

void count_labels(const FoldedPair& segments, const FoldedPair& in_frames,
                  std::span<const std::string> background, std::int64_t tolerance,
                  MetricCounts& counts) {
  std::map<std::string, LabelTimes> labels;
  const auto collect = [&](std::span<const TimedLabel> all, std::span<const TimedLabel> frames,
                           std::vector<std::int64_t> Times::* times,
                           std::vector<TimedLabel> LabelTimes::* chunks) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_counted(all[i].label, background)) continue;
      LabelTimes& label = labels[all[i].label];
      if (i > 0) (label.onsets.*times).push_back(all[i].start);
      if (i + 1 < all.size()) (label.offsets.*times).push_back(all[i].end);
      (label.*chunks).push_back(frames[i]);
    }
  };
  collect(segments.gold, in_frames.gold, &Times::gold, &LabelTimes::gold);
  collect(segments.predicted, in_frames.predicted, &Times::predicted, &LabelTimes::predicted);
  for (const auto& [name, label] : labels) {
    LabelCounts& sums = counts.by_label[name];
    const std::int64_t hits = match_segments(label.gold, label.predicted, 0);
    for (MatchCounts* sum : {&sums.chunks, &counts.chunks})
      count_matches(*sum, label.gold.size(), label.predicted.size(), hits);
    count_edges(sums.onsets, counts.edges, label.onsets, tolerance);
    count_edges(sums.offsets, counts.edges, label.offsets, tolerance);
  }
}

void count_foreground(std::span<const TimedLabel> gold, std::span<const TimedLabel> predicted,
                      std::span<const std::string> background, const LabelErrors& all,
                      LabelErrors& errors) {
  const std::vector<TimedLabel> gold_left = without(gold, background);
  const std::vector<TimedLabel> predicted_left = without(predicted, background);
  if (gold_left.size() == gold.size() && predicted_left.size() == predicted.size()) {
    errors.add(all);
    return;
  }
  errors.gold += std::ssize(gold_left);
  for (const AlignedPair& pair : align_labels(gold_left, predicted_left)) {
    if (pair.gold < 0)
      ++errors.insertions;
    else if (pair.predicted < 0)
      ++errors.deletions;
    else if (gold_left[static_cast<std::size_t>(pair.gold)].label !=
             predicted_left[static_cast<std::size_t>(pair.predicted)].label)
      ++errors.substitutions;
  }
}

}  // namespace metrics

double EdgeCounts::mean_ms() const {
  if (hits == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(error_us) / static_cast<double>(hits) / 1000;
}

double EdgeCounts::deviation_ms() const {
  if (hits < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto count = static_cast<double>(hits);
  const double mean = static_cast<double>(error_us) / count;
  return std::sqrt(std::max(0.0, square_us - count * mean * mean) / (count - 1)) / 1000;
}

void EdgeCounts::add(const EdgeCounts& other) {
  MatchCounts::add(other);
  error_us += other.error_us;
  square_us += other.square_us;
}

void LabelCounts::add(const LabelCounts& other) {
  chunks.add(other.chunks);
  onsets.add(other.onsets);
  offsets.add(other.offsets);
}

double MetricCounts::chunk_f1_macro() const {
  if (drawn_macro) return *drawn_macro;
  double sum = 0;
  std::int64_t count = 0;
  for (const auto& [label, counted] : by_label) {
    if (counted.chunks.gold + counted.chunks.predicted == 0) continue;
    sum += counted.chunks.f1();
    ++count;
  }
  return count == 0 ? 1 : sum / static_cast<double>(count);
}

}  // namespace segfuse
