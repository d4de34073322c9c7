#pragma once
// Recordings that a caller has in memory instead of files, with their labels: what train() and
// plan_folder() take.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "segfuse/data.h"

namespace segfuse {

struct HeldRecording {
  std::string name;  ///< for messages and reports: "recording 3"
  /// Samples of `stacked` channels, which alternate, or values (T, D) f32, one row a frame.
  std::variant<Audio, Tensor> content;
  std::vector<LabelSegment> labels;  ///< in any order; an empty label is a gap
  std::optional<Split> split{};      ///< of all or of none; else as docs/data.md deals them
};

/// They as the recordings of a training, in their order. DataError for what is wrong with one: no
/// samples or rows, numbers that are not finite, times that are no numbers.
std::vector<Recording> hold(std::vector<HeldRecording> recordings);

}  // namespace segfuse
