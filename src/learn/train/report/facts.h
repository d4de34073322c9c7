#pragma once
// RunFacts as they are shown.

#include <string>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "learn/train/report/report_builder.h"

namespace segfuse::learn {

/// "run" of metrics.json: with version, configuration and its overrides.
Json facts_json(const RunFacts& facts, const TrainConfig& config);
/// The same for the report, whose configuration has a place of its own.
std::vector<std::pair<std::string, std::string>> facts_rows(const RunFacts& facts,
                                                            const TrainConfig& config);

}  // namespace segfuse::learn
