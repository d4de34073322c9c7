#pragma once
// What follows from a survey: the numbers of a configuration, with what is to be said of them.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "learn/folder/presets.h"
#include "learn/folder/survey.h"

namespace segfuse::learn {

struct ClassStatistics {
  std::vector<double> seconds;  ///< durations of its segments, ascending
  std::int64_t training = 0;    ///< of them in training recordings
  std::int64_t development = 0;
  double total() const;
};

struct Plan {
  const Survey* survey = nullptr;
  PresetChoice preset;
  std::map<int, std::int64_t> rates;              ///< recordings by sample rate
  std::map<std::int64_t, std::int64_t> channels;  ///< and by number of channels
  int sample_rate = 0;
  std::string channel;  ///< of features.channel; empty: there is only one
  bool raw = false;
  double hop_ms = 0;
  double window_ms = 0;
  int raw_bins = 0;
  double fmin = 0, fmax = 0;
  int n_mels = 0;
  std::vector<double> tolerances;
  std::optional<std::string> fill_label;  ///< nothing: what no label covers is left out
  double unlabelled_seconds = 0;
  std::int64_t unlabelled_recordings = 0;  ///< that have some
  std::map<std::string, ClassStatistics> classes;
  double seconds = 0;
  std::int64_t segments = 0;
  std::int64_t splits[3] = {0, 0, 0};  ///< recordings of training, development, test
  std::int64_t groups = 0;             ///< of recordings, where they are known
  double longest = 0;                  ///< seconds
  std::string longest_label;
  std::int64_t longest_frames = 0;
  std::int64_t longest_in_training = 0;  ///< frames
  std::int64_t max_duration = 0;         ///< 0: the longest
  std::int64_t longer_than_k = 0;        ///< segments, where max_duration says so
  std::int64_t width = 0;
  std::int64_t subsample = 1;
  std::int64_t epochs = 0;
  bool select_by_loss = false;  ///< too few development segments to tell epochs by their errors
  std::int64_t batch_size = 0;
  std::int64_t fixed_length = 0;
  std::vector<std::string> settings;  ///< of the user, "section.key=value"
};

/// DataError where too little is labelled to train on and to measure with.
Plan make_plan(const Survey& survey, const std::string& preset);

/// The configuration, with comments.
std::string configuration_of(const Plan& plan);
/// The data card: a summary before the training.
std::string card_of(const Plan& plan);

}  // namespace segfuse::learn
