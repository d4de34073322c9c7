#include "base/json/json.h"
#include "learn/metrics/counts_json.h"
#include "learn/metrics/measures.h"
#include "segfuse/metrics.h"

namespace segfuse {
namespace {

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
  for (const metrics::Measure& measure :
       metrics::measures_of(config_.tolerances, config_.edge_tolerance))
    out[measure.key] = measure.value(counts_);
  out["counts"] = metrics::counts_json(counts_, config_.tolerances);
  out["counts"].erase("by_label");
  out["background"] = config_.background;
  out["edge_tolerance"] = config_.edge_tolerance;
  out["by_label"] = metrics::label_figures_json(counts_);
  out["durations"] = durations_json(durations());
  Json& confusions = out["confusions"] = Json::array();
  for (const auto& [pair, number] : confusions_)
    confusions.push_back({{"gold", pair.first}, {"predicted", pair.second}, {"count", number}});
  return json_text(out, 2);
}

}  // namespace segfuse
