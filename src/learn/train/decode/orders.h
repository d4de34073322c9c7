#pragma once
// What users say of recordings: orders of labels that they are aligned with, their files and what a
// model makes of them; labels and boundaries that are known (posterior/known.cpp).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "learn/train/files/model_file.h"
#include "segfuse/data.h"
#include "segfuse/semicrf/orders.h"

namespace segfuse::learn {

/// Where the order of a recording may be: NAME.txt and NAME.lab in `folder`, or beside it; the
/// ending may be in upper case.
std::vector<std::filesystem::path> order_places(const std::filesystem::path& recording,
                                                const std::filesystem::path& folder);
/// The order of a recording: NAME.txt or NAME.lab in `folder`, or where that is empty beside the
/// recording. DataError where there is none, or both.
std::filesystem::path order_file(const std::filesystem::path& recording,
                                 const std::filesystem::path& folder);

/// Labels in their order, separated by white space. `a?` may be left out, `{a b|c}` is one of its
/// variants, which may be empty and nested. A word that is a label of the model is that label,
/// whatever its characters. `between`: a label that may stand before, between and after words that
/// are not that label themselves; what is in braces is one word. DataError with line and column
/// for what is none, and for labels that the model lacks. Each order has one path.
semicrf::LabelOrders parse_orders(std::string_view text, const std::string& source,
                                  const Alphabet& labels, std::optional<std::int32_t> between = {});

/// The label of that name. UsageError where the model has none.
std::int32_t optional_label(const std::string& name, const Alphabet& labels);

/// How long segments may be, by label.
struct SegmentRules {
  std::vector<std::int64_t> shortest, longest;  ///< frames of a piece
  /// Of a head without durations any frame may follow one of its label. Else segments longer than
  /// K consist of pieces, as in training, where the grammar has no longest duration.
  std::vector<semicrf::PieceRule> pieces;
};
SegmentRules segment_rules(const TrainedModel& model);

/// DataError where the orders need more frames than there are, or cannot fill them.
void check_frames(const semicrf::LabelOrders& orders, const SegmentRules& rules,
                  std::int64_t frames, double hop_seconds, const std::string& source);

struct KnownFolders {
  std::filesystem::path boundaries;  ///< label files whose boundaries are those of segments
  std::filesystem::path labels;      ///< and whose labels are those of their frames
  bool empty() const { return boundaries.empty() && labels.empty(); }
};

/// UsageError for a folder that is not there.
void check_folders(const KnownFolders& folders);

/// How long a recording is, and what its frames are.
struct RecordingSize {
  double seconds = 0;
  double sample_rate = 0;
  std::int64_t frames = 0;
  double hop_seconds = 0;
};
/// What the folders have of a recording: a label file of its name and any ending, of several the
/// finest; what no label covers is unknown. Nothing where there is no such file. DataError for
/// labels that the model lacks, and what is wrong with a file.
Known known_of(const KnownFolders& folders, const std::filesystem::path& recording,
               const Alphabet& labels, const RecordingSize& size);

}  // namespace segfuse::learn
