#pragma once
// The report and the files of figures of a run.

#include <string>
#include <utility>
#include <vector>

#include "learn/report/report.h"
#include "learn/train/commands/experiment.h"

namespace segfuse::learn {

/// The inputs and settings of a run, so that its figures can be reproduced.
struct RunFacts {
  std::string command_line;  ///< empty: not known
  std::string device;        ///< "CPU", or the GPU's name
  int threads = 1;
  double seconds = 0;                                     ///< of all; 0: not measured
  std::vector<std::pair<std::string, std::string>> data;  ///< sets and their hashes
  std::string init_labels{};  ///< what the model of training.init knew, as a sentence; empty: none
  std::string init_sha256{};  ///< of that model's file
};
RunFacts facts_of(const Corpus& corpus, const Context& context, const std::string& command_line,
                  double seconds);
/// The facts of an evaluation on one set.
RunFacts facts_of(const LabelledSet& set, const std::string& name, const Context& context,
                  const std::string& command_line);

/// metrics.json: the first system's metrics at the top level, with seconds, recordings and sizes;
/// all systems by name under "systems" when there are several. Differences are to the semi-Markov
/// CRF, or to the first system where there is none.
std::string metrics_json(const TrainConfig& config, const Corpus& corpus,
                         const std::vector<System>& systems, const RunFacts& facts);

/// Where an evaluation got its model and data from.
struct EvaluationNames {
  std::string model, data, split;
};
/// metrics.json of an evaluation.
std::string evaluation_json(const TrainedModel& model, const LabelledSet& set,
                            const Evaluation& evaluation, const RunFacts& facts,
                            const EvaluationNames& names);

/// recordings.json: the counts of each system and recording.
std::string recordings_json(const Corpus& corpus, const std::vector<System>& systems);
std::string recordings_json(const TrainedModel& model, const LabelledSet& set,
                            const Evaluation& evaluation);

/// The first system is the one that the report is about. `date` is shown as it is.
ReportData build_report(const TrainConfig& config, const Corpus& corpus,
                        const std::vector<System>& systems, const RunFacts& facts,
                        const std::string& date);

/// For a model without its training run: metrics, durations, confusions and recordings.
ReportData build_report(const TrainedModel& model, const LabelledSet& set,
                        const Evaluation& evaluation, const RunFacts& facts,
                        const std::string& data, const std::string& date);

}  // namespace segfuse::learn
