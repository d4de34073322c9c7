#include "learn/metrics/alignment.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>

namespace segfuse::metrics {
namespace {

enum class Step : std::uint8_t { kStart, kDiagonal, kDeletion, kInsertion };

struct Cell {
  std::int64_t edits = 0;
  std::int64_t overlap = 0;
  Step step = Step::kStart;

  /// Keeps the first of equals.
  void offer(const Cell& other) {
    if (other.edits < edits || (other.edits == edits && other.overlap > overlap)) *this = other;
  }
};

std::int64_t overlap_of(const TimedLabel& a, const TimedLabel& b) {
  return std::max<std::int64_t>(0, std::min(a.end, b.end) - std::max(a.start, b.start));
}

/// The last step of the best way to every pair of prefixes, row by row; costs of two rows only.
std::vector<Step> best_steps(std::span<const TimedLabel> gold,
                             std::span<const TimedLabel> predicted) {
  const std::size_t columns = predicted.size() + 1;
  std::vector<Step> steps((gold.size() + 1) * columns);
  std::vector<Cell> above(columns);
  std::vector<Cell> row(columns);
  for (std::size_t i = 0; i <= gold.size(); ++i) {
    row.swap(above);
    for (std::size_t j = 0; j < columns; ++j) {
      Cell cell;
      if (i + j > 0) cell.edits = static_cast<std::int64_t>(i + j) + 1;
      if (i > 0 && j > 0) {
        const bool same = gold[i - 1].label == predicted[j - 1].label;
        cell.offer({above[j - 1].edits + (same ? 0 : 1),
                    above[j - 1].overlap + overlap_of(gold[i - 1], predicted[j - 1]),
                    Step::kDiagonal});
      }
      if (i > 0) cell.offer({above[j].edits + 1, above[j].overlap, Step::kDeletion});
      if (j > 0) cell.offer({row[j - 1].edits + 1, row[j - 1].overlap, Step::kInsertion});
      row[j] = cell;
      steps[i * columns + j] = cell.step;
    }
  }
  return steps;
}

}  // namespace

std::vector<AlignedPair> align_labels(std::span<const TimedLabel> gold,
                                      std::span<const TimedLabel> predicted) {
  const std::vector<Step> steps = best_steps(gold, predicted);
  std::vector<AlignedPair> pairs;
  std::size_t i = gold.size();
  std::size_t j = predicted.size();
  while (i > 0 || j > 0) {
    const Step step = steps[i * (predicted.size() + 1) + j];
    AlignedPair pair;
    if (step != Step::kInsertion) pair.gold = static_cast<std::int64_t>(--i);
    if (step != Step::kDeletion) pair.predicted = static_cast<std::int64_t>(--j);
    pairs.push_back(pair);
  }
  std::reverse(pairs.begin(), pairs.end());
  return pairs;
}

std::int64_t match_times(std::span<const std::int64_t> gold,
                         std::span<const std::int64_t> predicted, std::int64_t tolerance) {
  std::int64_t hits = 0;
  for (std::size_t i = 0, j = 0; i < gold.size() && j < predicted.size();) {
    if (gold[i] < predicted[j] - tolerance) {
      ++i;
    } else if (predicted[j] < gold[i] - tolerance) {
      ++j;
    } else {
      ++hits, ++i, ++j;
    }
  }
  return hits;
}

EdgePairs match_edges(std::span<const std::int64_t> gold, std::span<const std::int64_t> predicted,
                      std::int64_t tolerance) {
  // best[j] is the best of the gold edges so far and the first j predicted ones. Two pairs that
  // cross can be uncrossed without loss, so the last edges of both make a pair or one has none.
  // Entries behind `filled` are equal to that one.
  std::vector<EdgePairs> best(predicted.size() + 1);
  std::size_t filled = 0;
  std::size_t first = 0;
  std::size_t end = 0;
  for (const std::int64_t time : gold) {
    while (first < predicted.size() && predicted[first] < time - tolerance) ++first;
    while (end < predicted.size() && predicted[end] <= time + tolerance) ++end;
    for (; filled < std::max(first, end); ++filled) best[filled + 1] = best[filled];
    EdgePairs diagonal = best[first];
    for (std::size_t j = first; j < end; ++j) {
      const std::int64_t error = predicted[j] - time;
      const double us = std::round(static_cast<double>(error) / 1000);
      const EdgePairs paired{diagonal.hits + 1, diagonal.distance + std::abs(error),
                             diagonal.error_us + static_cast<std::int64_t>(us),
                             diagonal.square_us + us * us};
      diagonal = best[j + 1];
      for (const EdgePairs& other : {best[j], paired})
        if (other.hits > best[j + 1].hits ||
            (other.hits == best[j + 1].hits && other.distance < best[j + 1].distance))
          best[j + 1] = other;
    }
  }
  return best[filled];
}

std::int64_t match_segments(std::span<const TimedLabel> gold, std::span<const TimedLabel> predicted,
                            std::int64_t tolerance) {
  std::map<std::string_view, std::vector<const TimedLabel*>> by_label;
  for (const TimedLabel& segment : predicted) by_label[segment.label].push_back(&segment);
  std::map<std::string_view, std::size_t> next;
  std::int64_t hits = 0;
  for (const TimedLabel& segment : gold) {
    const auto found = by_label.find(segment.label);
    if (found == by_label.end()) continue;
    const std::vector<const TimedLabel*>& candidates = found->second;
    std::size_t& j = next[segment.label];
    // Those that start or end too early are too early for all later gold segments as well.
    while (j < candidates.size() && (candidates[j]->start < segment.start - tolerance ||
                                     candidates[j]->end < segment.end - tolerance))
      ++j;
    if (j == candidates.size() || candidates[j]->start > segment.start + tolerance ||
        candidates[j]->end > segment.end + tolerance)
      continue;
    ++hits, ++j;
  }
  return hits;
}

}  // namespace segfuse::metrics
