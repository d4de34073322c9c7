#include "learn/data/unlabelled.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "learn/data/feature_store.h"
#include "learn/data/text.h"

namespace segfuse::data {
namespace {

/// Segments [begin, end) of the example; nothing where they are shorter than a frame.
std::optional<Example> part_of(const Example& whole, std::size_t begin, std::size_t end,
                               double hop) {
  const std::int64_t frames = whole.features.shape()[0];
  const auto frame_at = [&](double time) {
    return std::clamp<std::int64_t>(std::llround(time / hop), 0, frames);
  };
  const std::vector<LabelSegment>& segments = whole.gold.segments;
  const std::int64_t first = frame_at(segments[begin].start);
  const bool is_last = end == segments.size();
  const std::int64_t last = is_last ? frames : frame_at(segments[end - 1].end);
  if (last <= first) return std::nullopt;
  const double offset = static_cast<double>(first) * hop;
  Example part;
  part.id = fmt::format("{}@{}s", whole.id, format_seconds(segments[begin].start));
  part.part_of = whole.id;
  part.features = rows_of(whole.features, first, last - first);
  part.seconds = is_last ? whole.seconds - offset : static_cast<double>(last - first) * hop;
  part.sample_rate = whole.sample_rate;
  part.gold.source = whole.gold.source;
  for (std::size_t i = begin; i < end; ++i) {
    LabelSegment segment = segments[i];
    segment.start = i == begin ? 0 : std::max(0.0, segment.start - offset);
    segment.end = i + 1 == end ? part.seconds : segment.end - offset;
    part.gold.segments.push_back(std::move(segment));
  }
  part.gold.duration = part.seconds;
  return part;
}

}  // namespace

std::vector<Example> labelled_parts(Example example, double hop_seconds) {
  const auto is_unlabelled = [](const LabelSegment& s) { return s.label == kUnlabelled; };
  const std::vector<LabelSegment>& segments = example.gold.segments;
  std::vector<Example> parts;
  if (std::ranges::none_of(segments, is_unlabelled)) {
    parts.push_back(std::move(example));
    return parts;
  }
  for (std::size_t begin = 0; begin < segments.size(); ++begin) {
    if (is_unlabelled(segments[begin])) continue;
    std::size_t end = begin;
    while (end < segments.size() && !is_unlabelled(segments[end])) ++end;
    if (std::optional<Example> part = part_of(example, begin, end, hop_seconds))
      parts.push_back(std::move(*part));
    begin = end;
  }
  if (!parts.empty()) parts.front().joined = std::move(example.joined);
  return parts;
}

}  // namespace segfuse::data
