#pragma once
// The counts of some recordings as JSON: "counts" in metrics.json.

#include <vector>

#include "base/json/json.h"
#include "segfuse/metrics.h"

namespace segfuse::metrics {

Json counts_json(const MetricCounts& counts, const std::vector<double>& tolerances);
/// DataError where that is not what counts_json() writes for these tolerances.
MetricCounts counts_from_json(const JsonPlace& json, const std::vector<double>& tolerances);

}  // namespace segfuse::metrics
