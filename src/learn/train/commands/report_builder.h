#pragma once
// The report and the metrics file of a run.

#include <string>
#include <vector>

#include "learn/report/report.h"
#include "learn/train/commands/experiment.h"

namespace segfuse::learn {

/// metrics.json: the first system's metrics at the top level, with seconds, recordings and sizes;
/// all systems by name under "systems" when there are several.
std::string metrics_json(const TrainConfig& config, const Corpus& corpus,
                         const std::vector<System>& systems, double total_seconds, int threads);

/// The first system is the one that the report is about. `date` is shown as it is.
ReportData build_report(const TrainConfig& config, const Corpus& corpus,
                        const std::vector<System>& systems, double total_seconds, int threads,
                        const std::string& date);

/// For a model without its training run: metrics, durations, confusions and recordings.
ReportData build_report(const TrainedModel& model, const LabelledSet& set,
                        const Evaluation& evaluation, const std::string& data,
                        const std::string& date);

}  // namespace segfuse::learn
