#pragma once
// What is in a folder of recordings, before anything is decided.

#include <string>
#include <vector>

#include "learn/data/audio/parsers.h"
#include "learn/data/unlabelled.h"
#include "segfuse/data.h"
#include "segfuse/train.h"

namespace segfuse::learn {

using data::kUnlabelled;

struct Surveyed {
  Recording recording;
  data::AudioInfo audio;
  Annotation gold;  ///< gaps between labels have the label kUnlabelled
};

struct TierStatistics {
  std::string name;
  std::int64_t segments = 0;
  std::int64_t labels = 0;
};

struct Survey {
  std::filesystem::path folder;
  std::vector<Surveyed> recordings;  ///< those with labels, sorted by id
  Unpaired unpaired;
  std::vector<TierStatistics> tiers;  ///< where label files have several
  std::string tier;                   ///< the chosen one; empty: there is nothing to choose
  bool tier_was_given = false;
  bool split_was_given = false;  ///< by the manifest or by folders
};

Survey survey_folder(const FolderOptions& options);

}  // namespace segfuse::learn
