#include "learn/metrics/counts_json.h"

#include <algorithm>
#include <cmath>
#include <optional>

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

Json errors_json(const LabelErrors& errors) {
  return {{"gold", errors.gold},
          {"substitutions", errors.substitutions},
          {"insertions", errors.insertions},
          {"deletions", errors.deletions}};
}

LabelErrors read_errors(const JsonPlace& json) {
  LabelErrors errors;
  errors.gold = count_of(json, "gold");
  errors.substitutions = json.at("substitutions").integer(0, errors.gold);
  errors.insertions = count_of(json, "insertions");
  errors.deletions = json.at("deletions").integer(0, errors.gold - errors.substitutions);
  return errors;
}

Json edges_json(const EdgeCounts& counts) {
  Json json = match_json(counts);
  json["error_us"] = counts.error_us;
  json["square_us"] = counts.square_us;
  return json;
}

Json by_label_json(const MetricCounts& counts) {
  Json json = Json::object();
  for (const auto& [label, counted] : counts.by_label)
    json[label] = {{"chunks", match_json(counted.chunks)},
                   {"onsets", edges_json(counted.onsets)},
                   {"offsets", edges_json(counted.offsets)}};
  return json;
}

void read_match(const JsonPlace& json, MatchCounts& counts) {
  counts.gold = count_of(json, "gold");
  counts.predicted = count_of(json, "predicted");
  counts.hits = json.at("hits").integer(0, std::min(counts.gold, counts.predicted));
}

void read_edges(const JsonPlace& json, EdgeCounts& counts) {
  read_match(json, counts);
  constexpr std::int64_t kMaxTolerance = 1'000'000;  // microseconds: the greatest tolerance
  const std::int64_t most = std::min(counts.hits, std::int64_t{1} << 32) * kMaxTolerance;
  counts.error_us = json.at("error_us").integer(-most, most);
  counts.square_us = json.at("square_us").number();
  if (!(counts.square_us >= 0 && counts.square_us <= static_cast<double>(most) * kMaxTolerance))
    json.at("square_us").refuse("a sum of squares of microseconds");
}

void read_labels(const JsonPlace& json, MetricCounts& counts) {
  json.for_each_member([&](const std::string& label, const JsonPlace& value) {
    LabelCounts& counted = counts.by_label[label];
    const JsonPlace chunks = value.at("chunks");
    read_match(chunks, counted.chunks);
    const JsonPlace onsets = value.at("onsets");
    read_edges(onsets, counted.onsets);
    const JsonPlace offsets = value.at("offsets");
    read_edges(offsets, counted.offsets);
    counts.chunks.add(counted.chunks);
    counts.edges.add(counted.onsets);
    counts.edges.add(counted.offsets);
  });
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json edge_figures(const EdgeCounts& counts) {
  Json json = match_json(counts);
  json["sensitivity"] = counts.recall();
  json["ppv"] = counts.precision();
  json["mean_ms"] = finite(counts.mean_ms());
  json["sd_ms"] = finite(counts.deviation_ms());
  return json;
}

}  // namespace

Json counts_json(const MetricCounts& counts, const std::vector<double>& tolerances) {
  Json json;
  json["frames"] = counts.frames;
  json["correct_frames"] = counts.correct_frames;
  json["labels"] = errors_json(counts.labels);
  json["segments"] = match_json(counts.exact_segments);
  for (std::size_t i = 0; i < tolerances.size(); ++i) {
    json["boundaries_" + suffix_of(tolerances[i])] = match_json(counts.boundaries[i]);
    json["segments_" + suffix_of(tolerances[i])] = match_json(counts.segments[i]);
  }
  if (!counts.has_fields) return json;
  json["foreground"] = errors_json(counts.foreground);
  json["by_label"] = by_label_json(counts);
  return json;
}

MetricCounts counts_from_json(const JsonPlace& json, const std::vector<double>& tolerances) {
  MetricCounts counts;
  counts.frames = count_of(json, "frames");
  counts.correct_frames = json.at("correct_frames").integer(0, counts.frames);
  const JsonPlace labels = json.at("labels");
  counts.labels = read_errors(labels);
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
  const std::optional<JsonPlace> foreground = json.find("foreground");
  counts.has_fields = foreground.has_value();
  if (!foreground) return counts;
  counts.foreground = read_errors(*foreground);
  const JsonPlace by_label = json.at("by_label");
  read_labels(by_label, counts);
  return counts;
}

Json label_figures_json(const MetricCounts& counts) {
  Json json = Json::object();
  for (const auto& [label, counted] : counts.by_label) {
    Json& row = json[label] = match_json(counted.chunks);
    row["precision"] = counted.chunks.precision();
    row["recall"] = counted.chunks.recall();
    row["f1"] = counted.chunks.f1();
    row["onsets"] = edge_figures(counted.onsets);
    row["offsets"] = edge_figures(counted.offsets);
  }
  return json;
}

}  // namespace segfuse::metrics
