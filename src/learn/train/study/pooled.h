#pragma once
// What several runs did on the same recordings, or each on its own, added up.

#include <filesystem>
#include <vector>

#include "learn/train/report/recordings_file.h"

namespace segfuse::learn {

/// A run that was measured.
struct MeasuredRun {
  std::filesystem::path folder;
  RecordingsFile file;
};

/// The counts of each recording over the runs that measured it, for the systems that all runs have;
/// of the settings those that all have in common. UsageError where a recording's gold is not the
/// same in all of them.
RecordingsFile pooled(const std::vector<MeasuredRun>& runs);

}  // namespace segfuse::learn
