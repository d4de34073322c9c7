#pragma once
// Recordings that are not audio: how many rows are a second.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/train.h"

namespace segfuse::learn {

/// A recording and what its labels say of time.
struct LabelledRows {
  std::filesystem::path path;
  std::int64_t rows = 0;
  std::optional<double> end{};  ///< of the last label, in seconds; nothing: the labels count rows
  bool labels_are_places = false;  ///< they count positions, as those of genomes do
};

struct FrameRate {
  double rate = 0;  ///< rows a second
  std::string reason;
};

/// What the user asked for; else rows over the end of the last label, where all recordings agree
/// within a row; else one, where labels count positions. UsageError where nothing says it.
FrameRate find_frame_rate(const FolderOptions& options, const std::vector<LabelledRows>& all);

/// The name of a setting in messages: "--frame-rate" or "frame_rate=".
std::string setting_name(const FolderOptions& options, std::string_view words);

/// The decimal number with the fewest digits between the two, or the reciprocal of one where that
/// has at least two digits less. 0 < low <= high.
double simplest_between(double low, double high);

}  // namespace segfuse::learn
