#include "learn/folder/survey.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/context/pool.h"
#include "base/os/file.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/label_files.h"
#include "learn/data/recordings.h"
#include "learn/data/text.h"
#include "learn/data/unlabelled.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// Of a label that a tier has to be read so often that it is the tier that is meant.
constexpr double kClearlyMore = 3;

Extent extent_of_audio(const Recording& recording) {
  if (!recording.command && !recording.held) {
    const data::AudioInfo info = data::audio_info(recording.audio);
    return {static_cast<double>(info.sample_rate), info.channels, info.frames};
  }
  AudioOptions how;
  how.channel = recording.held ? AudioOptions::kStack : AudioOptions::kMean;
  const Audio audio = read_recording(recording, how);
  return {static_cast<double>(audio.sample_rate), audio.channels, audio.frames()};
}

Annotation labels_of(const Recording& recording, double sample_rate, const std::string& tier) {
  LabelOptions options;
  options.sample_rate = sample_rate;
  options.tier = tier;
  options.fill_label = kUnlabelled;
  return data::labels_of(recording, options);
}

/// The file that the tier is, where tiers are files beside each other; else that of the labels.
Recording with_file_of(Recording recording, const std::string& tier) {
  for (const std::filesystem::path& other : recording.other_labels)
    if (data::tier_of_file(other) == tier) recording.labels = other;
  return recording;
}

/// Recordings, each with what its label file holds; nothing for those in memory.
class Tiers {
 public:
  Tiers(const std::vector<Recording>& recordings, const FolderOptions& options)
      : recordings_(recordings), contents_(recordings.size()) {
    std::map<std::filesystem::path, std::vector<std::size_t>> files;  // some are of several
    for (std::size_t i = 0; i < recordings.size(); ++i)
      if (!recordings[i].held && data::tier_of_file(recordings[i].labels).empty())
        files[recordings[i].labels].push_back(i);
    std::vector<std::pair<std::filesystem::path, std::vector<std::size_t>>> each(files.begin(),
                                                                                 files.end());
    pool_of(options.context).run(std::ssize(each), [&](std::int64_t i) {
      const auto& [path, places] = each[static_cast<std::size_t>(i)];
      LabelContents contents = inspect_labels(path);
      contents.recordings.clear();
      for (const std::size_t at : places) contents_[at] = contents;
    });
  }

  /// Interval tiers that one is chosen from, in the order of the first file that has them. A format
  /// whose tiers belong together has a choice only for somebody who names one.
  std::vector<std::string> names(bool is_named) const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < contents_.size(); ++i)
      for (const std::string& name : names_of(i, is_named))
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    return names;
  }

  TierStatistics statistics_of(const std::string& name) const {
    TierStatistics statistics{name, 0, 0, 0};
    std::set<std::string> labels;
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      const std::vector<std::string> names = names_of(i, true);
      if (std::ranges::find(names, name) == names.end()) continue;
      ++statistics.recordings;
      add(with_file_of(recordings_[i], name), statistics, labels);
    }
    statistics.labels = static_cast<std::int64_t>(labels.size());
    return statistics;
  }

  /// Of files beside each other the tier that was taken when they were found, which is the finest;
  /// empty where no recording has several.
  std::string taken_file() const {
    for (const Recording& recording : recordings_) {
      const bool several = std::ranges::any_of(recording.other_labels, is_tier_file);
      if (!recording.held && several && is_tier_file(recording.labels))
        return data::tier_of_file(recording.labels);
    }
    return {};
  }

  /// Whether all label files are tiers by their endings, as .phn.
  bool are_tier_files() const {
    return std::ranges::all_of(recordings_, [](const Recording& recording) {
      return !recording.held && is_tier_file(recording.labels);
    });
  }

  /// The tier of label files that is called so in any case; else the name as it is.
  std::string named(const std::string& name) const {
    const std::string small = data::lower(name);
    for (const Recording& recording : recordings_) {
      if (recording.held) continue;
      if (data::tier_of_file(recording.labels) == small) return small;
      for (const std::filesystem::path& other : recording.other_labels)
        if (data::tier_of_file(other) == small) return small;
    }
    return name;
  }

  /// Whether all label files are the annotators of WFDB records, which describe the same signals.
  bool are_annotators() const {
    return std::ranges::all_of(contents_, [](const LabelContents& contents) {
      return contents.format == LabelFormat::kWfdb;
    });
  }

  /// LabelTier::all_looked_at of the tier, or of the first one.
  bool all_looked_at(const std::string& name) const {
    return std::ranges::all_of(contents_, [&](const LabelContents& contents) {
      const auto tier = std::ranges::find_if(
          contents.tiers, [&](const LabelTier& one) { return is_choice(one) && one.name == name; });
      return tier == contents.tiers.end() || tier->all_looked_at;
    });
  }

 private:
  static bool is_tier_file(const std::filesystem::path& path) {
    return !data::tier_of_file(path).empty();
  }
  static bool is_choice(const LabelTier& tier) { return tier.intervals && !tier.name.empty(); }
  std::vector<std::string> names_of(std::size_t i, bool is_named) const {
    const Recording& recording = recordings_[i];
    std::vector<std::string> names;
    if (recording.held) return names;
    if (const std::string tier = data::tier_of_file(recording.labels); !tier.empty()) {
      names.push_back(tier);
      for (const std::filesystem::path& other : recording.other_labels)
        if (const std::string name = data::tier_of_file(other); !name.empty())
          names.push_back(name);
      return names;
    }
    // Of files of several programs one was chosen by its ending.
    if (is_named && !recording.other_labels.empty())
      names.push_back(data::extension_of(recording.labels.string()).substr(1));
    if (contents_[i].tiers_are_one && !is_named) return names;
    for (const LabelTier& tier : contents_[i].tiers)
      if (is_choice(tier)) names.push_back(tier.name);
    return names;
  }
  static void add(const Recording& recording, TierStatistics& statistics,
                  std::set<std::string>& labels) {
    try {
      for (const LabelSegment& segment : labels_of(recording, 1, statistics.name).segments) {
        if (segment.label == kUnlabelled) continue;
        ++statistics.segments;
        labels.insert(segment.label);
      }
    } catch (const DataError&) {  // a tier that nobody may want
    }
  }

  const std::vector<Recording>& recordings_;
  std::vector<LabelContents> contents_;
};

double repeats(const TierStatistics& tier) {
  return static_cast<double>(tier.segments) /
         static_cast<double>(std::max<std::int64_t>(1, tier.labels));
}

[[noreturn]] void ask_for_tier(const FolderOptions& options,
                               const std::vector<TierStatistics>& tiers) {
  std::string text;
  for (const TierStatistics& tier : tiers)
    text += fmt::format("{}{} ({} segments, {} labels)", text.empty() ? "" : ", ",
                        data::shown(tier.name), tier.segments, tier.labels);
  throw UsageError(fmt::format(
      "{}: the labels have several tiers, and nothing says which one is meant: {}; choose one "
      "with {}",
      options.folder.string(), text, setting_name(options, "tier")));
}

/// A tier whose labels come back again and again can be learnt; one of words, most of which are
/// seen once, cannot.
void choose_by_repeats(const FolderOptions& options, Survey& survey) {
  std::vector<TierStatistics> ordered = survey.tiers;
  std::ranges::stable_sort(ordered, [](const TierStatistics& a, const TierStatistics& b) {
    return repeats(a) > repeats(b);
  });
  if (ordered.size() > 1 && repeats(ordered[0]) < kClearlyMore * repeats(ordered[1]))
    ask_for_tier(options, survey.tiers);
  if (ordered.empty()) return;
  survey.tier = ordered[0].name;
  survey.tier_reason = "its labels recur most often";
}

/// That of most recordings; of equals the first, which is what the reader prefers.
void choose_by_count(std::int64_t recordings, std::string_view what, Survey& survey) {
  if (survey.tiers.empty()) return;
  const auto best = std::ranges::max_element(survey.tiers, {}, &TierStatistics::recordings);
  survey.tier = best->name;
  survey.tier_reason = fmt::format("the first {} that {} recordings have", what,
                                   best->recordings == recordings ? "all" : "most");
}

void choose_tier(const FolderOptions& options, const Tiers& tiers, std::int64_t recordings,
                 Survey& survey) {
  const std::vector<std::string> names = tiers.names(!options.tier.empty());
  if (!options.tier.empty()) {
    survey.tier = std::ranges::find(names, options.tier) == names.end() ? tiers.named(options.tier)
                                                                        : options.tier;
    if (std::ranges::find(names, survey.tier) == names.end())
      throw UsageError(fmt::format(
          "{}: no tier {} in the labels; {}", options.folder.string(), data::shown(options.tier),
          names.empty() ? "they have no tiers" : suggestion(options.tier, names)));
    survey.tier_reason = "as requested";
  }
  if (names.size() > 1)
    for (const std::string& name : names)
      if (const TierStatistics tier = tiers.statistics_of(name); tier.segments > 0)
        survey.tiers.push_back(tier);
  if (survey.tier.empty() && tiers.are_annotators() && !names.empty()) {
    if (names.size() == 1) survey.tier = names[0];
    choose_by_count(recordings, "annotator", survey);
  } else if (survey.tier.empty() && names.size() > 1 && !tiers.taken_file().empty()) {
    survey.tier = tiers.taken_file();
    survey.tier_reason = "of several label files beside a recording, .phn is read before .wrd";
  } else if (survey.tier.empty() && names.size() > 1 && tiers.are_tier_files()) {
    choose_by_count(recordings, "kind of label files", survey);
  } else if (survey.tier.empty() && names.size() > 1) {
    choose_by_repeats(options, survey);
  }
  survey.all_looked_at = tiers.all_looked_at(survey.tier);
}

/// The lead whose annotator was chosen, where it has one place in all recordings.
void choose_channel(Survey& survey) {
  for (const Surveyed& surveyed : survey.recordings) {
    const std::filesystem::path& header = surveyed.recording.audio;
    const std::optional<int> lead = surveyed.recording.held || !data::is_wfdb(header)
                                        ? std::nullopt
                                        : data::wfdb_lead(header, survey.tier);
    if (!lead || lead != survey.channel.value_or(*lead)) {
      survey.channel.reset();
      return;
    }
    survey.channel = lead;
  }
}

template <class Each>
void for_each(const FolderOptions& options, Survey& survey, const Each& each) {
  pool_of(options.context).run(std::ssize(survey.recordings), [&](std::int64_t i) {
    each(survey.recordings[static_cast<std::size_t>(i)]);
  });
}

/// The end of the last label in seconds; nothing where labels count rows.
std::optional<double> end_of_labels(const Recording& recording, const std::string& tier) {
  const double end = labels_of(recording, 1, tier).duration;
  if (labels_of(recording, 2, tier).duration != end) return {};
  return end;
}

/// Reads all values, so that whatever is wrong with them is said before the training.
void survey_values(const FolderOptions& options, Survey& survey) {
  std::vector<LabelledRows> rows(survey.recordings.size());
  for_each(options, survey, [&](Surveyed& surveyed) {
    const Recording& recording = surveyed.recording;
    const Shape shape = data::values_of(recording).shape();
    surveyed.extent.frames = shape[0];
    surveyed.extent.channels = shape[1];
    const bool places = !recording.held &&
                        label_format(inspect_labels(recording.labels).format).times == "positions";
    rows[static_cast<std::size_t>(&surveyed - survey.recordings.data())] = {
        recording.audio, shape[0], end_of_labels(recording, survey.tier), places};
  });
  const Surveyed& first = survey.recordings.front();
  for (const Surveyed& surveyed : survey.recordings)
    if (surveyed.extent.channels != first.extent.channels)
      throw DataError(fmt::format(
          "{}: its rows have {} values, those of {} have {}; all recordings need the same channels",
          surveyed.recording.audio.string(), surveyed.extent.channels,
          first.recording.audio.filename().string(), first.extent.channels));
  survey.frame_rate = find_frame_rate(options, rows);
  for_each(options, survey, [&](Surveyed& surveyed) {
    surveyed.extent.rate = survey.frame_rate.rate;
    surveyed.gold = labels_of(surveyed.recording, surveyed.extent.rate, survey.tier);
  });
}

void survey_audio(const FolderOptions& options, Survey& survey) {
  if (options.frame_rate)
    throw UsageError(fmt::format(
        "{}: {} is for recordings that are not audio, and there is audio; leave it out, "
        "or move the files of numbers into a folder of their own",
        options.folder.string(), setting_name(options, "frame rate")));
  for_each(options, survey, [&](Surveyed& surveyed) {
    surveyed.extent = extent_of_audio(surveyed.recording);
    surveyed.gold = labels_of(surveyed.recording, surveyed.extent.rate, survey.tier);
  });
}

std::vector<Recording> find_recordings(const FolderOptions& options, Survey& survey) {
  if (!options.recordings.empty()) {
    if (!options.group.empty())
      throw UsageError(
          "group= is for recordings in files; pass groups=, one for each of those in memory");
    const HeldRecording& first = *options.recordings.front().held;
    survey.values = std::holds_alternative<Tensor>(first.content);
    survey.split_was_given = std::ranges::any_of(
        options.recordings, [](const Recording& recording) { return !!recording.held->split; });
    return options.recordings;
  }
  ManifestOptions how;
  how.allow_commands = options.allow_commands;
  how.unpaired = &survey.unpaired;
  how.split_was_given = &survey.split_was_given;
  how.are_values = &survey.values;
  how.tier = options.tier;
  how.group = options.group;
  return load_manifest(options.folder, how);
}

void check_frame_rate(const FolderOptions& options) {
  if (options.frame_rate && !(*options.frame_rate > 0 && *options.frame_rate <= 1e9))
    throw UsageError(
        fmt::format("the frame rate is {}; expected rows a second, above 0 and up to 1e9",
                    *options.frame_rate));
}

}  // namespace

std::vector<Recording> recordings_in(const Survey& survey) {
  std::vector<Recording> recordings;
  for (const Surveyed& surveyed : survey.recordings) recordings.push_back(surveyed.recording);
  return recordings;
}

Survey survey_folder(const FolderOptions& options) {
  Survey survey;
  survey.options = options;
  check_frame_rate(options);
  const std::vector<Recording> recordings = find_recordings(options, survey);
  const Tiers tiers(recordings, options);
  choose_tier(options, tiers, std::ssize(recordings), survey);
  std::vector<Recording> kept = recordings;
  data::leave_out_other_tiers(kept, survey.tier, &survey.unpaired);
  survey.warnings = data::labels_of_nobody(kept);
  for (std::string& sentence : data::labels_of_other_tiers(kept, survey.tier))
    survey.warnings.push_back(std::move(sentence));
  for (const Recording& recording : kept) survey.recordings.push_back({recording, {}, {}});
  choose_channel(survey);
  survey.values ? survey_values(options, survey) : survey_audio(options, survey);
  return survey;
}

}  // namespace segfuse::learn
