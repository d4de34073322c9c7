#include "learn/metrics/counts_json.h"

#include <algorithm>

#include "learn/metrics/measures.h"

namespace segfuse::metrics {
namespace {

Json match_json(const MatchCounts& counts) {
  return {{"gold", counts.gold}, {"predicted", counts.predicted}, {"hits", counts.hits}};
}

/// So many recordings of so many counts that no sum over a resample overflows.
std::int64_t count_of(const JsonPlace& json, std::string_view key) {
  return json.at(key).integer(0, std::int64_t{1} << 40);
}

void read_match(const JsonPlace& json, MatchCounts& counts) {
  counts.gold = count_of(json, "gold");
  counts.predicted = count_of(json, "predicted");
  counts.hits = json.at("hits").integer(0, std::min(counts.gold, counts.predicted));
}

}  // namespace

Json counts_json(const MetricCounts& counts, const std::vector<double>& tolerances) {
  Json json;
  json["frames"] = counts.frames;
  json["correct_frames"] = counts.correct_frames;
  json["labels"] = {{"gold", counts.labels.gold},
                    {"substitutions", counts.labels.substitutions},
                    {"insertions", counts.labels.insertions},
                    {"deletions", counts.labels.deletions}};
  json["segments"] = match_json(counts.exact_segments);
  for (std::size_t i = 0; i < tolerances.size(); ++i) {
    json["boundaries_" + suffix_of(tolerances[i])] = match_json(counts.boundaries[i]);
    json["segments_" + suffix_of(tolerances[i])] = match_json(counts.segments[i]);
  }
  return json;
}

MetricCounts counts_from_json(const JsonPlace& json, const std::vector<double>& tolerances) {
  MetricCounts counts;
  counts.frames = count_of(json, "frames");
  counts.correct_frames = json.at("correct_frames").integer(0, counts.frames);
  const JsonPlace labels = json.at("labels");
  counts.labels.gold = count_of(labels, "gold");
  counts.labels.substitutions = labels.at("substitutions").integer(0, counts.labels.gold);
  counts.labels.insertions = count_of(labels, "insertions");
  counts.labels.deletions =
      labels.at("deletions").integer(0, counts.labels.gold - counts.labels.substitutions);
  const JsonPlace exact = json.at("segments");
  read_match(exact, counts.exact_segments);
  for (const double tolerance : tolerances) {
    const std::string boundary_key = "boundaries_" + suffix_of(tolerance);
    const std::string segment_key = "segments_" + suffix_of(tolerance);
    const JsonPlace boundaries = json.at(boundary_key);
    read_match(boundaries, counts.boundaries.emplace_back());
    const JsonPlace segments = json.at(segment_key);
    read_match(segments, counts.segments.emplace_back());
  }
  return counts;
}

}  // namespace segfuse::metrics
