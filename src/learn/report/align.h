#pragma once
// Which decoded segments are right: alignment of two segment sequences by their labels.

#include <string>
#include <vector>

#include "learn/report/report.h"

namespace segfuse::learn {

/// One character a segment: '=' same label, '~' another label, '-' gold segment that was deleted,
/// '+' decoded segment that was inserted.
struct Alignment {
  std::string gold;
  std::string decoded;

  /// Substitutions + deletions + insertions.
  std::int64_t errors() const;
};

/// Least number of edits over labels (Levenshtein); among those, the most time in common.
/// O(gold * decoded) time, one byte of memory a cell.
Alignment align_segments(const std::vector<ReportSegment>& gold,
                         const std::vector<ReportSegment>& decoded);

}  // namespace segfuse::learn
