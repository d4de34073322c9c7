#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "learn/data/recordings.h"
#include "learn/data/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

/// Start times and labels of segments that cover [0, end).
struct Pieces {
  std::vector<double> starts;
  std::vector<std::int32_t> labels;
  double end = 0;
  double end_of(std::size_t i) const { return i + 1 < starts.size() ? starts[i + 1] : end; }
};

std::int32_t id_of(const LabelSegment& segment, const Alphabet& alphabet, const std::string& source,
                   bool allow_unknown) {
  const std::optional<std::int32_t> id = alphabet.find(segment.label);
  if (!id && allow_unknown) return kUnknownLabel;
  if (!id)
    throw DataError(fmt::format("{}:{}: label {} is not among the {} labels of the model", source,
                                segment.line, data::shown(segment.label), alphabet.size()));
  return *id;
}

/// Removes the shortest pieces until there are at most `frames`.
std::int64_t drop_shortest(Pieces& pieces, std::int64_t frames) {
  std::int64_t dropped = 0;
  for (; static_cast<std::int64_t>(pieces.starts.size()) > frames; ++dropped) {
    std::size_t shortest = 0;
    for (std::size_t i = 1; i < pieces.starts.size(); ++i)
      if (pieces.end_of(i) - pieces.starts[i] <
          pieces.end_of(shortest) - pieces.starts[shortest] - 1e-9)
        shortest = i;
    const auto at = static_cast<std::ptrdiff_t>(shortest);
    pieces.starts.erase(pieces.starts.begin() + at);
    pieces.labels.erase(pieces.labels.begin() + at);
    pieces.starts.front() = 0;
  }
  return dropped;
}

}  // namespace

Annotation covering(const Annotation& annotation, double hop_seconds, std::int64_t num_frames,
                    double seconds, const FrameOptions& options) {
  if (!(hop_seconds > 0) || num_frames < 1)
    throw UsageError(fmt::format("frames of {} s, {} of them; expected positive numbers",
                                 hop_seconds, num_frames));
  if (annotation.segments.empty())
    throw DataError(fmt::format("{}: no segments", annotation.source));
  // The recording may end anywhere in its last frame, so late labels get one frame more.
  const double frames_end = static_cast<double>(num_frames) * hop_seconds;
  const double slack = options.slack_seconds + hop_seconds;
  Annotation out{{}, 0, annotation.source};
  const auto add_fill = [&](double start, double end) {
    if (!options.fill_label)
      throw DataError(
          fmt::format("{}: no label between {} s and {} s of {} s; label it, or name a fill label",
                      annotation.source, data::format_seconds(start), data::format_seconds(end),
                      data::format_seconds(frames_end)));
    out.segments.push_back({start, end, *options.fill_label, 0});
  };
  const double first = annotation.segments.front().start;
  if (first > slack) add_fill(0, first);
  const bool stretched = out.segments.empty();
  out.segments.insert(out.segments.end(), annotation.segments.begin(), annotation.segments.end());
  if (stretched) out.segments.front().start = 0;
  const double last = out.segments.back().end;
  // Behind it a frame that is longer than the slack would be a whole row too many.
  const double late = hop_seconds > options.slack_seconds ? hop_seconds * (1 - 1e-6) : slack;
  if (last > frames_end + late)
    throw DataError(fmt::format(
        "{}:{}: the labels end at {} s, the recording at {} s; check that they belong together",
        annotation.source, annotation.segments.back().line, data::format_seconds(last),
        data::format_seconds(frames_end)));
  if (last < frames_end - slack) {
    add_fill(last, seconds);
  } else if (seconds > out.segments.back().start) {
    out.segments.back().end = seconds;
  }
  out.duration = out.segments.back().end;
  return out;
}

FrameLabels to_frames(const Annotation& annotation, const Alphabet& alphabet, double hop_seconds,
                      std::int64_t num_frames, const FrameOptions& options) {
  const double end = static_cast<double>(num_frames) * hop_seconds;
  const Annotation whole = covering(annotation, hop_seconds, num_frames, end, options);
  Pieces pieces;
  pieces.end = end;
  for (const LabelSegment& segment : whole.segments) {
    pieces.starts.push_back(segment.start);
    pieces.labels.push_back(id_of(segment, alphabet, whole.source, options.allow_unknown));
  }
  FrameLabels out;
  out.dropped = drop_shortest(pieces, num_frames);
  const std::size_t count = pieces.starts.size();
  std::vector<std::int64_t> edges(count + 1);
  edges[0] = 0;
  for (std::size_t i = 1; i < count; ++i) {
    // Times are exact to a nanosecond; the small term keeps halves from falling either way.
    const double rounded = std::floor(pieces.starts[i] / hop_seconds + 0.5 + 1e-6);
    edges[i] = std::max(edges[i - 1] + 1, static_cast<std::int64_t>(rounded));
  }
  edges[count] = num_frames;
  for (std::size_t i = count; i-- > 1;) edges[i] = std::min(edges[i], edges[i + 1] - 1);
  for (std::size_t i = 0; i < count; ++i)
    out.segments.push_back({edges[i], edges[i + 1] - edges[i], pieces.labels[i]});
  return out;
}

LabelSegment data::to_seconds(const FrameSegment& segment, const Alphabet& alphabet,
                              double hop_seconds) {
  return {static_cast<double>(segment.start) * hop_seconds,
          static_cast<double>(segment.start + segment.duration) * hop_seconds,
          alphabet.label(segment.label), 0};
}

Annotation to_annotation(std::span<const FrameSegment> segments, const Alphabet& alphabet,
                         double hop_seconds, double duration) {
  Annotation out;
  std::int64_t at = 0;
  for (const FrameSegment& segment : segments) {
    if (segment.start != at || segment.duration < 1)
      throw UsageError(
          fmt::format("segment of {} frames at frame {}; expected segments that tile, next at {}",
                      segment.duration, segment.start, at));
    at += segment.duration;
    out.segments.push_back(data::to_seconds(segment, alphabet, hop_seconds));
  }
  if (out.segments.empty()) return out;
  LabelSegment& last = out.segments.back();
  if (duration > last.start && duration < last.end) last.end = duration;
  out.duration = last.end;
  return out;
}

}  // namespace segfuse
