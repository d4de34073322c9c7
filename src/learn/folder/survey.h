#pragma once
// What is in a folder of recordings, before anything is decided.

#include <optional>
#include <string>
#include <vector>

#include "learn/data/unlabelled.h"
#include "learn/folder/rows.h"
#include "segfuse/data.h"
#include "segfuse/train.h"

namespace segfuse::learn {

using data::kUnlabelled;

/// Facts about a recording as it is stored.
struct Extent {
  double rate = 0;  ///< samples of a channel, or rows, a second
  std::int64_t channels = 0;
  std::int64_t frames = 0;  ///< samples of each channel, or rows
  double seconds() const { return static_cast<double>(frames) / rate; }
};

struct Surveyed {
  Recording recording;
  Extent extent;
  Annotation gold;  ///< gaps between labels have the label kUnlabelled
};

struct TierStatistics {
  std::string name;
  std::int64_t segments = 0;
  std::int64_t labels = 0;
  std::int64_t recordings = 0;  ///< that have it
};

struct Survey {
  FolderOptions options;
  std::vector<Surveyed> recordings;  ///< those with labels, sorted by id
  Unpaired unpaired;
  std::vector<TierStatistics> tiers;  ///< where label files have several
  std::string tier;                   ///< the chosen one; empty: there is nothing to choose
  std::string tier_reason;            ///< why that one
  bool all_looked_at = true;          ///< what no label covers is known to hold nothing
  std::optional<int> channel;         ///< the one that the labels are of, where they say so
  bool split_was_given = false;       ///< by the manifest or by folders
  bool values = false;                ///< the recordings are not audio
  /// Where they are, for messages.
  std::string place() const { return options.folder.string(); }
  std::string setting(std::string_view words) const { return setting_name(options, words); }
  FrameRate frame_rate;               ///< of values
  std::vector<std::string> warnings;  ///< of label files
};

/// Its recordings alone.
std::vector<Recording> recordings_in(const Survey& survey);

Survey survey_folder(const FolderOptions& options);

}  // namespace segfuse::learn
