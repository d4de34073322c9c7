#pragma once
// One parser per label format. Each gives segments in the order of the file, with line numbers;
// contiguity is checked afterwards, in one place.

#include <string_view>
#include <vector>

#include "segfuse/data.h"

namespace segfuse::data {

/// What a parser found: segments, and where the recording begins and ends if the format says so.
struct RawSegments {
  std::vector<LabelSegment> segments;
  double begin = 0;
  std::optional<double> end;
};

RawSegments parse_phn(std::string_view text, std::string_view name, double sample_rate);
RawSegments parse_festvox(std::string_view text, std::string_view name);
RawSegments parse_htk(std::string_view text, std::string_view name);
RawSegments parse_audacity(std::string_view text, std::string_view name);
RawSegments parse_csv(std::string_view text, std::string_view name, char separator);
/// Empty intervals come back with an empty label.
RawSegments parse_textgrid(std::string_view text, std::string_view name, std::string_view tier);

/// Names of the interval tiers of a label file, in its order; none for formats without tiers.
std::vector<std::string> label_tiers(const std::filesystem::path& path);

/// Checks order, closes rounding gaps, fills or refuses the others.
Annotation make_contiguous(RawSegments raw, std::string_view name,
                           const std::optional<std::string>& fill_label);

/// Of a TextGrid, its interval tiers.
std::vector<std::string> textgrid_tiers(std::string_view text, std::string_view name);
/// The text of a TextGrid with interval tiers; the first holds the labels.
std::string format_textgrid(const Annotation& annotation, const LabelOutput& output);

}  // namespace segfuse::data
