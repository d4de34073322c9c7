#include <fmt/core.h>

#include <algorithm>

#include "base/console/log.h"
#include "learn/data/label_files.h"
#include "learn/data/splits/splits.h"
#include "learn/data/unlabelled.h"
#include "learn/train/commands/experiment.h"

namespace segfuse::learn {
namespace {

std::string first_of(const std::vector<std::filesystem::path>& paths) {
  return fmt::format("{}{}", paths.front().string(), paths.size() > 1 ? ", ..." : "");
}

/// Which of the files beside recordings are not read.
void tell_other_labels(const std::vector<Recording>& recordings) {
  const auto several = std::ranges::find_if(
      recordings, [](const Recording& recording) { return !recording.other_labels.empty(); });
  if (several == recordings.end()) return;
  std::string others;
  for (const std::filesystem::path& path : several->other_labels)
    others += (others.empty() ? "" : ", ") + path.filename().string();
  log(LogLevel::kInfo,
      "of several files beside a recording one has its labels: {} is read, {} is not (data.tier "
      "chooses by the ending)",
      several->labels.string(), others);
}

/// What is left out, and what labels lack.
void tell_left_out(const std::vector<Recording>& recordings, const Unpaired& unpaired,
                   const std::string& tier) {
  if (!unpaired.recordings.empty())
    log(LogLevel::kWarning, "{} recordings have no labels and are left out ({})",
        unpaired.recordings.size(), first_of(unpaired.recordings));
  if (!unpaired.labels.empty())
    log(LogLevel::kWarning, "{} files that may hold labels have no recording and are left out ({})",
        unpaired.labels.size(), first_of(unpaired.labels));
  for (const std::string& sentence : data::labels_of_nobody(recordings))
    log(LogLevel::kWarning, "{}", sentence);
  for (const std::string& sentence : data::labels_of_other_tiers(recordings, tier))
    log(LogLevel::kWarning, "{}", sentence);
}

/// How groups were dealt; folds deal them again, and say so themselves.
void tell_groups(const std::vector<Recording>& recordings, const DataSource& source) {
  if (source.group.empty() || source.folds > 0 || source.card_said_it) return;
  const auto count = [&](Split split) {
    return data::count_groups(recordings_of(recordings, split));
  };
  log(LogLevel::kInfo,
      "data.group: recordings of {} groups; {} to train on, {} for development, {} for test",
      data::count_groups(recordings), count(Split::kTrain), count(Split::kDev),
      count(Split::kTest));
  if (const std::string torn = data::torn_groups(recordings); !torn.empty())
    log(LogLevel::kWarning, "data.group: {}", torn);
}

ManifestOptions manifest_options(const TrainConfig& config, bool allow_commands,
                                 Unpaired& unpaired) {
  ManifestOptions options;
  options.allow_commands = allow_commands;
  options.values = config.features.kind == FeatureKind::kValues;
  if (config.data.skip_unpaired) options.unpaired = &unpaired;
  options.tier = config.data.tier;
  return options;
}

}  // namespace

bool splits_are_given(const TrainConfig& config, const std::string& path, bool allow_commands) {
  bool given = false;
  Unpaired unpaired;
  ManifestOptions options = manifest_options(config, allow_commands, unpaired);
  options.split_was_given = &given;
  load_manifest(path, options);
  return given;
}

std::vector<Recording> find_recordings(const TrainConfig& config, const std::string& path,
                                       bool allow_commands) {
  Unpaired unpaired;
  ManifestOptions options = manifest_options(config, allow_commands, unpaired);
  options.group = config.data.group;
  std::vector<Recording> recordings = load_manifest(path, options);
  data::leave_out_other_tiers(recordings, config.data.tier, options.unpaired);
  tell_other_labels(recordings);
  if (!config.data.card_said_it) tell_left_out(recordings, unpaired, config.data.tier);
  tell_groups(recordings, config.data);
  choose_recordings(recordings, config);
  return recordings;
}

void choose_recordings(std::vector<Recording>& recordings, const TrainConfig& config) {
  const DataSource& source = config.data;
  const auto count = [&](Split split) {
    return std::ranges::count(recordings, split, &Recording::split);
  };
  if (source.folds > 0) {
    data::deal_folds(recordings, source.folds, source.test_fold);
    const std::int64_t groups = data::count_groups(recordings);
    log(LogLevel::kInfo, "data.folds: fold {} of {} is the test set, {} of {} recordings{}",
        source.test_fold, source.folds, count(Split::kTest), recordings.size(),
        groups == 0
            ? ""
            : fmt::format(", {} of {} groups",
                          data::count_groups(recordings_of(recordings, Split::kTest)), groups));
  }
  if (source.train_share == 1) return;
  const auto all = count(Split::kTrain);
  data::keep_share(recordings, source.train_share, config.training.seed);
  log(LogLevel::kInfo, "data.train_share: {} of {} training recordings are trained on",
      count(Split::kTrain), all);
}

}  // namespace segfuse::learn
