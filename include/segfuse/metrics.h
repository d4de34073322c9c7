#pragma once
// Measures of predicted segmentations. All times are rounded to nanoseconds first and all sums are
// integers, so the figures do not depend on the order in which recordings are added, and a
// distance equal to a tolerance counts as within it (slack: 1 ns).
//
// A quotient 0/0 counts as perfect: 0 for error rates, 1 for accuracy, precision, recall, F1 and R.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/data.h"

namespace segfuse {

struct MetricsConfig {
  double frame_seconds = 0.01;
  std::vector<double> tolerances = {0.02};  ///< in seconds
  /// When not empty it folds both sides first. Then deleted labels are left out of the label
  /// sequences; frames whose gold label is deleted do not count; segments of deleted labels do not
  /// count for segment F1, others are not merged there; boundaries are those of the unfolded
  /// segments.
  FoldingMap folding;
  /// In the label sequences, neighbours that folding made equal are one: those of different labels,
  /// and those between which labels were deleted (the label error rate is then the phone error
  /// rate). Without it they are counted one by one (the syllable error rate, where "gap" is
  /// deleted). Neighbours that had one label before are never merged.
  bool merge_folded = true;
  /// Labels, after folding, of segments without interest: gaps, silence, "-". Chunks, edges
  /// and the segment error rate leave them out.
  std::vector<std::string> background{};
  double edge_tolerance = 0.15;  ///< of EdgeCounts, in seconds; at most 1
};

/// Minimum-cost alignment of two label sequences (Levenshtein, unit costs). Of equally cheap ones
/// the one whose aligned pairs overlap most in time; then diagonal before deletion before insertion
/// from the end.
struct LabelErrors {
  std::int64_t gold = 0;  ///< labels
  std::int64_t substitutions = 0;
  std::int64_t insertions = 0;
  std::int64_t deletions = 0;
  void add(const LabelErrors& other);
  double rate() const;  ///< (S + I + D) / gold over all recordings together
};

/// Hits of a one-to-one matching of the greatest size.
struct MatchCounts {
  std::int64_t gold = 0;
  std::int64_t predicted = 0;
  std::int64_t hits = 0;
  void add(const MatchCounts& other);
  double precision() const;
  double recall() const;
  double f1() const;  ///< 2 hits / (gold + predicted)
};

/// Internal boundaries (the starts of all segments but the first): start and end of a recording do
/// not count. A pair may match when |gold - predicted| <= tolerance.
struct BoundaryCounts : MatchCounts {
  /// predicted / gold - 1, with at least 1 below.
  double over_segmentation() const;
  /// Räsänen, Laine, Altosaar: "An improved speech segmentation quality measure: the R-value",
  /// Interspeech 2009: 1 - (|r1| + |r2|) / 2, r1 = sqrt((1 - HR)^2 + OS^2),
  /// r2 = (HR - 1 - OS) / sqrt 2, HR recall, OS over-segmentation.
  double r_value() const;
};

/// Onsets or offsets of the segments of one label; start and end of a recording do not count. Of
/// the one-to-one matchings within the tolerance with the most pairs, the one with the smallest sum
/// of distances, and of these one whose pairs do not cross, with earlier predicted edges.
struct EdgeCounts : MatchCounts {
  std::int64_t error_us = 0;    ///< sum over the pairs of predicted - gold, in microseconds
  double square_us = 0;         ///< sum of the squares of these, which are whole numbers
  double mean_ms() const;       ///< NaN without a pair
  double deviation_ms() const;  ///< of a sample (n - 1); NaN with less than two pairs
  void add(const EdgeCounts& other);
};

/// The counts of one label.
struct LabelCounts {
  MatchCounts chunks;  ///< as exact_segments
  EdgeCounts onsets, offsets;
  void add(const LabelCounts& other);
};

/// What all rates of some recordings are quotients of: sums over them.
struct MetricCounts {
  std::int64_t frames = 0;
  std::int64_t correct_frames = 0;
  LabelErrors labels;
  std::vector<BoundaryCounts> boundaries;  ///< one for each tolerance
  MatchCounts exact_segments;
  std::vector<MatchCounts> segments;  ///< one for each tolerance
  /// Without the background: label errors after neighbours are merged, chunks (exact segments, as
  /// the CoNLL-2000 evaluation counts phrases), onsets and offsets together.
  LabelErrors foreground;
  MatchCounts chunks;
  MatchCounts edges;
  std::map<std::string, LabelCounts> by_label;  ///< without the background
  bool has_fields = true;  ///< whether the last four were counted; files of before lack them
  std::optional<double> drawn_macro;  ///< of a draw of recordings, which has no by_label
  double frame_accuracy() const;
  /// The mean over labels of the chunks' F1; labels that nothing has count for nothing.
  double chunk_f1_macro() const;
  /// Adds the counts of other recordings; InternalError where the tolerances are not as many.
  void add(const MetricCounts& other);
};

struct LabelDurations {
  std::int64_t gold = 0;  ///< segments
  std::int64_t predicted = 0;
  double gold_seconds = 0;
  double predicted_seconds = 0;
  std::int64_t matched = 0;        ///< pairs of equal labels in the alignment above
  double mean_absolute_error = 0;  ///< of the durations of these pairs, in seconds
  /// mean predicted duration / mean gold duration - 1 over all segments; 0 when one has none.
  double relative_bias = 0;
};

/// Collects recordings.
class Metrics {
 public:
  explicit Metrics(MetricsConfig config = {});
  /// Throws DataError when the two do not start together or are not contiguous. They may end up to
  /// a frame apart or more: frames past the shorter end count as wrong.
  void add(const Annotation& gold, const Annotation& predicted);
  /// Adds what another accumulator of the same configuration collected.
  void merge(const Metrics& other);

  std::int64_t recordings() const noexcept { return recordings_; }
  /// Share of frames with the right label; frame t is read at its middle (t + 1/2) frame_seconds.
  double frame_accuracy() const { return counts_.frame_accuracy(); }
  const LabelErrors& label_errors() const noexcept { return counts_.labels; }
  double label_error_rate() const { return counts_.labels.rate(); }
  /// For tolerances[index].
  const BoundaryCounts& boundaries(std::size_t index = 0) const {
    return counts_.boundaries.at(index);
  }
  /// Segments that agree in label, start and end: in whole frames (edges rounded to frames), or
  /// both edges within tolerances[index].
  const MatchCounts& exact_segments() const noexcept { return counts_.exact_segments; }
  const MatchCounts& segments(std::size_t index = 0) const { return counts_.segments.at(index); }
  const MetricCounts& counts() const noexcept { return counts_; }
  std::map<std::string, LabelDurations> durations() const;
  /// (gold label, predicted label) -> pairs in the alignment; "" stands for none (insertions have
  /// no gold label, deletions no predicted one).
  const std::map<std::pair<std::string, std::string>, std::int64_t>& confusions() const noexcept {
    return confusions_;
  }

  /// An object with label_error_rate, frame_accuracy, boundary_{precision,recall,f1}_20ms,
  /// over_segmentation_20ms, r_value_20ms, segment_f1, segment_f1_20ms (for each tolerance),
  /// segment_error_rate, chunk_{precision,recall,f1,f1_macro}, edge_{sensitivity,ppv}_150ms,
  /// recordings, counts, background, by_label, durations and confusions.
  std::string to_json() const;

 private:
  struct Sums {
    std::int64_t gold = 0, predicted = 0, matched = 0;
    std::int64_t gold_ns = 0, predicted_ns = 0, error_ns = 0;
  };
  struct Prepared;
  void add_frames(const Prepared& recording);
  void add_sequences(const Prepared& recording);
  void add_boundaries(const Prepared& recording);
  void add_segments(const Prepared& recording);

  MetricsConfig config_;
  std::int64_t recordings_ = 0;
  MetricCounts counts_;
  std::map<std::string, Sums> durations_;
  std::map<std::pair<std::string, std::string>, std::int64_t> confusions_;
};

}  // namespace segfuse
