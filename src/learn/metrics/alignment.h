#pragma once
// Alignments of label sequences and one-to-one matchings of times. Times are nanoseconds.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace segfuse::metrics {

struct TimedLabel {
  std::string label;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

/// A pair of indices; -1 where the other side has no partner.
struct AlignedPair {
  std::int64_t gold = -1;
  std::int64_t predicted = -1;
};

/// Minimum edit alignment with unit costs; among equals the one with the greatest overlap of the
/// aligned pairs in time; then, from the end, diagonal before deletion before insertion.
/// O(gold x predicted) time and space.
std::vector<AlignedPair> align_labels(std::span<const TimedLabel> gold,
                                      std::span<const TimedLabel> predicted);

/// Size of the largest one-to-one matching of two sorted lists with |gold - predicted| <=
/// tolerance. Taking the earliest open pair is optimal, since whatever else either could match
/// comes later and could match no less with the rest.
std::int64_t match_times(std::span<const std::int64_t> gold,
                         std::span<const std::int64_t> predicted, std::int64_t tolerance);

/// Pairs of edges, and the sums over them of predicted - gold.
struct EdgePairs {
  std::int64_t hits = 0;
  std::int64_t distance = 0;  ///< sum of the absolute values, in nanoseconds
  std::int64_t error_us = 0;
  double square_us = 0;
};
/// EdgeCounts says which pairs. Both lists are sorted. O(pairs within the tolerance) time.
EdgePairs match_edges(std::span<const std::int64_t> gold, std::span<const std::int64_t> predicted,
                      std::int64_t tolerance);

/// Size of the largest one-to-one matching of segments of equal labels whose starts and whose ends
/// differ by at most `tolerance`. Segments are in order and do not overlap, so per label the
/// partners of a segment are a range that moves only forward and taking the earliest is optimal.
std::int64_t match_segments(std::span<const TimedLabel> gold, std::span<const TimedLabel> predicted,
                            std::int64_t tolerance);

}  // namespace segfuse::metrics
