#pragma once
// The counts of some recordings as JSON: "counts" in metrics.json and recordings.json.

#include <vector>

#include "base/json/json.h"
#include "segfuse/metrics.h"

namespace segfuse::metrics {

Json counts_json(const MetricCounts& counts, const std::vector<double>& tolerances);
/// DataError where that is not what counts_json() writes for these tolerances. Counts of versions
/// that did not count by label get has_fields = false.
MetricCounts counts_from_json(const JsonPlace& json, const std::vector<double>& tolerances);
/// "by_label" of metrics.json: counts and figures of each label. NaN is null.
Json label_figures_json(const MetricCounts& counts);

}  // namespace segfuse::metrics
