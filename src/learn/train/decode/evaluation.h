#pragma once
// How good decoded sequences are, against gold annotations.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "learn/train/commands/config.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/files/model_file.h"
#include "segfuse/metrics.h"

namespace segfuse::comm {
class Group;
}

namespace segfuse::learn {

/// A labelled recording and what it became as a sequence.
struct LabelledSet {
  std::vector<Example> examples;  ///< features moved into the sequences
  std::vector<Sequence> sequences;
  std::int64_t dropped = 0;  ///< gold segments that found no frame
  JoinedCounts joined{};     ///< gold segments that folding joined to the one before them
  JoinedCounts unknown{};    ///< gold segments by label, where the model lacks it
};
/// The id of the whole recording.
const std::string& recording_of(const Example& example);
/// "sil 12, b 3" and the like.
std::string counts_text(const JoinedCounts& counts);

struct ReliabilityBin {
  double predicted = 0;  ///< sum of probabilities
  double observed = 0;   ///< number that came true
  double count = 0;
};

struct Evaluation {
  Metrics metrics;
  /// By the ids of the recordings; parts of one are together.
  std::map<std::string, MetricCounts> by_recording{};
  std::vector<Annotation> predicted{};
  std::vector<Decoded> decoded{};
  /// Start confidence against a gold boundary within the tolerance.
  std::vector<ReliabilityBin> boundary_bins{};
  /// Label posterior of a segment against its frames' gold labels.
  std::vector<ReliabilityBin> label_bins{};
  /// Of each example's gold segments, the mean over the frames of P(frame has its label); NaN where
  /// the model lacks it or it has no frame.
  std::vector<std::vector<double>> gold_posterior{};
  double decode_seconds = 0;  ///< wall time
  /// Of a semi-Markov model: segments that last as long as their label may, or longer.
  std::int64_t gold_at_limit = 0;
  std::int64_t decoded_at_limit = 0;
};
/// A sentence about the last two; empty where there are none.
std::string limit_text(const TrainedModel& model, const Evaluation& evaluation);

/// Labels that are no segments of interest.
std::vector<std::string> background_of(const TrainConfig& config);
MetricsConfig metrics_config(const TrainConfig& config);
/// Measures what was decoded from each recording of the set.
Evaluation measure(const TrainedModel& model, const LabelledSet& set, std::vector<Decoded> decoded);
/// With a group all ranks call it and decode a part each; only the first has a result.
Evaluation evaluate_model(const TrainedModel& model, const LabelledSet& set, const Context& context,
                          comm::Group* group = nullptr);

}  // namespace segfuse::learn
