#pragma once
// What fields of research count besides: chunks by label, edges with their errors, and errors of
// the segments that are no background.

#include <span>

#include "learn/metrics/alignment.h"
#include "segfuse/metrics.h"

namespace segfuse::metrics {

/// Gold and predicted segments of one recording; deleted labels are "".
struct FoldedPair {
  std::span<const TimedLabel> gold, predicted;
};

void count_matches(MatchCounts& counts, std::size_t gold, std::size_t predicted, std::int64_t hits);

/// Adds edges and chunks of each label. Of `segments` the first and the last are at the ends of the
/// recording; `in_frames` are the same in frames. Times and `tolerance` are nanoseconds.
void count_labels(const FoldedPair& segments, const FoldedPair& in_frames,
                  std::span<const std::string> background, std::int64_t tolerance,
                  MetricCounts& counts);

/// Adds the label errors of the sequences without the background. `all` are those with it.
void count_foreground(std::span<const TimedLabel> gold, std::span<const TimedLabel> predicted,
                      std::span<const std::string> background, const LabelErrors& all,
                      LabelErrors& errors);

}  // namespace segfuse::metrics
