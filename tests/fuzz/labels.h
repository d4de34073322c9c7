#pragma once
// What must hold for label bytes of any kind.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

/// Whatever is accepted is contiguous and finite, and reads back after writing.
inline void check(const Annotation& annotation) {
  require(!annotation.segments.empty());
  double at = annotation.segments.front().start;
  require(at >= -1e-6);
  for (const LabelSegment& segment : annotation.segments) {
    require(segment.start == at && segment.end > segment.start && !segment.label.empty());
    at = segment.end;
  }
  require(std::isfinite(at) && annotation.duration == at);
  LabelOutput output;
  output.format = LabelFormat::kTextGrid;
  double shortest = 1;
  for (const LabelSegment& segment : annotation.segments)
    shortest = std::min(shortest, segment.end - segment.start);
  if (shortest < 1e-5) return;  // written with nine decimals, read with a microsecond of slack
  const Annotation back = parse_labels(format_labels(annotation, output), "back.TextGrid");
  require(back.segments.size() == annotation.segments.size());
  for (std::size_t i = 0; i < back.segments.size(); ++i)
    require(back.segments[i].label == annotation.segments[i].label);
}

/// With and without a label for gaps.
inline std::vector<LabelOptions> all_options() {
  std::vector<LabelOptions> out(2);
  for (LabelOptions& options : out) options.sample_rate = 16000;
  out[1].fill_label.emplace("-");
  return out;
}

/// Parses `bytes` as a file of that name; a DataError is a fine answer, all else is a bug.
inline void parse(std::string_view bytes, std::string_view name, const LabelOptions& options) {
  try {
    check(parse_labels(bytes, name, options));
  } catch (const DataError&) {
  }
}

}  // namespace segfuse::fuzz
