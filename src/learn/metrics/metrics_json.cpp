#include <fmt/format.h>

#include "base/json/json.h"
#include "segfuse/metrics.h"

namespace segfuse {
namespace {

/// 0.02 -> "20ms", 0.0125 -> "12.5ms".
std::string suffix_of(double tolerance) { return fmt::format("{:.6g}ms", tolerance * 1000); }

Json counts_json(const MatchCounts& counts) {
  return {{"gold", counts.gold}, {"predicted", counts.predicted}, {"hits", counts.hits}};
}

Json label_errors_json(const LabelErrors& errors) {
  return {{"gold", errors.gold},
          {"substitutions", errors.substitutions},
          {"insertions", errors.insertions},
          {"deletions", errors.deletions}};
}

Json durations_json(const std::map<std::string, LabelDurations>& durations) {
  Json out = Json::object();
  for (const auto& [label, item] : durations)
    out[label] = {{"gold", item.gold},
                  {"predicted", item.predicted},
                  {"gold_seconds", item.gold_seconds},
                  {"predicted_seconds", item.predicted_seconds},
                  {"matched", item.matched},
                  {"mean_absolute_error", item.mean_absolute_error},
                  {"relative_bias", item.relative_bias}};
  return out;
}

}  // namespace

std::string Metrics::to_json() const {
  Json out;
  out["recordings"] = recordings_;
  out["label_error_rate"] = label_error_rate();
  out["frame_accuracy"] = frame_accuracy();
  for (std::size_t i = 0; i < boundaries_.size(); ++i) {
    const std::string suffix = suffix_of(config_.tolerances[i]);
    const BoundaryCounts& counts = boundaries_[i];
    out["boundary_precision_" + suffix] = counts.precision();
    out["boundary_recall_" + suffix] = counts.recall();
    out["boundary_f1_" + suffix] = counts.f1();
    out["over_segmentation_" + suffix] = counts.over_segmentation();
    out["r_value_" + suffix] = counts.r_value();
    out["segment_f1_" + suffix] = segments_[i].f1();
  }
  out["segment_f1"] = exact_segments_.f1();
  Json& counts = out["counts"];
  counts["frames"] = frames_;
  counts["correct_frames"] = correct_frames_;
  counts["labels"] = label_errors_json(label_errors_);
  counts["segments"] = counts_json(exact_segments_);
  for (std::size_t i = 0; i < boundaries_.size(); ++i) {
    counts["boundaries_" + suffix_of(config_.tolerances[i])] = counts_json(boundaries_[i]);
    counts["segments_" + suffix_of(config_.tolerances[i])] = counts_json(segments_[i]);
  }
  out["durations"] = durations_json(durations());
  Json& confusions = out["confusions"] = Json::array();
  for (const auto& [pair, number] : confusions_)
    confusions.push_back({{"gold", pair.first}, {"predicted", pair.second}, {"count", number}});
  return json_text(out, 2);
}

}  // namespace segfuse
