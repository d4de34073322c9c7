#pragma once
// The runs of a study: one configuration with overrides of its own for each.

#include <cstdint>
#include <string>
#include <vector>

#include "learn/train/commands/config.h"
#include "segfuse/train.h"

namespace segfuse::learn {

/// Runs that differ in their seed and fold only.
struct StudyPoint {
  std::string name;  ///< "share-0.25", "setting-2"; empty: the only one
  double share = 1;  ///< of the training recordings
  std::vector<std::string> overrides;
};

struct StudyRun {
  std::string name;  ///< its directory, within that of the study: "share-0.25/seed-1/fold-2"
  std::size_t point = 0;
  std::uint64_t seed = 1;
  std::int64_t fold = 0;               ///< from 1 on; 0: there are no folds
  std::vector<std::string> overrides;  ///< those of its point, its seed and its fold
};

struct StudyPlan {
  std::vector<StudyPoint> points;
  std::vector<StudyRun> runs;  ///< point by point, seed by seed, fold by fold
};

/// `config` is that of all runs. UsageError where the options do not go together.
StudyPlan plan_study(const StudyOptions& options, const TrainConfig& config);

}  // namespace segfuse::learn
