#include <fmt/core.h>

#include <algorithm>

#include "base/console/log.h"
#include "learn/data/label_files.h"
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

}  // namespace

std::vector<Recording> find_recordings(const TrainConfig& config, const std::string& path,
                                       bool allow_commands) {
  Unpaired unpaired;
  ManifestOptions options;
  options.allow_commands = allow_commands;
  options.values = config.features.kind == FeatureKind::kValues;
  if (config.data.skip_unpaired) options.unpaired = &unpaired;
  options.tier = config.data.tier;
  std::vector<Recording> recordings = load_manifest(path, options);
  data::leave_out_other_tiers(recordings, config.data.tier, options.unpaired);
  tell_other_labels(recordings);
  if (config.data.card_said_it) return recordings;
  if (!unpaired.recordings.empty())
    log(LogLevel::kWarning, "{} recordings have no labels and are left out ({})",
        unpaired.recordings.size(), first_of(unpaired.recordings));
  if (!unpaired.labels.empty())
    log(LogLevel::kWarning, "{} files that may hold labels have no recording and are left out ({})",
        unpaired.labels.size(), first_of(unpaired.labels));
  for (const std::string& sentence : data::labels_of_nobody(recordings))
    log(LogLevel::kWarning, "{}", sentence);
  for (const std::string& sentence : data::labels_of_other_tiers(recordings, config.data.tier))
    log(LogLevel::kWarning, "{}", sentence);
  return recordings;
}

}  // namespace segfuse::learn
