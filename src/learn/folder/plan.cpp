#include "learn/folder/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "learn/data/splits/splits.h"
#include "learn/train/commands/config.h"
#include "learn/train/commands/initial_model.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr double kHops[] = {20, 10, 5, 4, 2.5, 2, 1, 0.5, 0.25, 0.2, 0.1};  // milliseconds
constexpr double kShort = 0.05;         // the share of segments that may last less than
constexpr double kFramesOfShort = 2;    // so many frames
constexpr double kRowsOff = 2;          // of values
constexpr double kMinHopSamples = 8;    // of sound
constexpr int kMaxRawSamples = 32;      // of a frame; more are averaged
constexpr std::int64_t kAlwaysK = 150;  // frames; up to it the longest segment is K
constexpr double kLongTail = 0.99;      // beyond it, twice what this share of segments lasts
constexpr std::int64_t kPieceFrames = 2000;
constexpr double kWork = 1.5e6;  // frames that training sees, all epochs together
constexpr double kMuch = 2e5;    // frames; they can teach a larger model
constexpr std::int64_t kMinEpochs = 10, kMaxEpochs = 40;
constexpr std::int64_t kMinSteps = 400;  // unless the work forbids it
constexpr std::int64_t kMaxBatch = 16;
constexpr std::int64_t kTellingSegments = 50;  // of development; fewer tell little by their errors

double quantile(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return 0;
  const auto at = static_cast<std::size_t>(share * static_cast<double>(ascending.size() - 1));
  return ascending[at];
}

/// The one with the most recordings; of equals the lowest.
int most_common(const std::map<int, std::int64_t>& counts) {
  return std::ranges::max_element(counts,
                                  [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void count_recordings(Plan& plan) {
  for (const Surveyed& s : plan.survey->recordings) {
    if (!plan.survey->values) ++plan.rates[static_cast<int>(s.extent.rate)];
    ++plan.channels[s.extent.channels];
    ++plan.splits[static_cast<std::size_t>(s.recording.split)];
    plan.seconds += s.extent.seconds();
  }
  plan.groups = data::count_groups(recordings_in(*plan.survey));
  if (!plan.survey->values) plan.sample_rate = most_common(plan.rates);
}

/// Durations of labelled segments, ascending.
std::vector<double> labelled_durations(const Survey& survey) {
  std::vector<double> durations;
  for (const Surveyed& s : survey.recordings)
    for (const LabelSegment& segment : s.gold.segments)
      if (segment.label != kUnlabelled) durations.push_back(segment.end - segment.start);
  std::ranges::sort(durations);
  return durations;
}

/// At most those of the preset: short windows tell fewer bands apart, and each needs a bin.
int most_bands(const Plan& plan) {
  FeatureConfig config;
  config.sample_rate = plan.sample_rate;
  config.hop_ms = plan.hop_ms;
  config.window_ms = plan.window_ms;
  config.fmin = plan.fmin;
  config.fmax = plan.fmax;
  for (config.n_mels = plan.preset.preset->n_mels; config.n_mels > 1; --config.n_mels) {
    try {
      static_cast<void>(FeatureExtractor(config));
      break;
    } catch (const UsageError&) {
    }
  }
  return config.n_mels;
}

/// A row is a frame. A boundary may be off by two of them, or by what the preset says.
void choose_rows(Plan& plan) {
  const double rate = plan.survey->frame_rate.rate;
  plan.hop_ms = plan.window_ms = 1000 / rate;
  const double rows = std::ceil(1000 * kRowsOff / rate - 1e-6) / 1000;
  for (const double tolerance : plan.preset.preset->tolerances)
    plan.tolerances.push_back(std::max(tolerance, rows));
}

void choose_frames(Plan& plan) {
  if (plan.survey->values) return choose_rows(plan);
  const Preset& preset = *plan.preset.preset;
  const double rate = plan.sample_rate;
  plan.raw = preset.raw || rate < 2000;
  const double shortest = 1000 * quantile(labelled_durations(*plan.survey), kShort);
  const double least = 1000 * (plan.raw ? 1 : kMinHopSamples) / rate;
  plan.hop_ms = std::max(preset.hop_ms, least);
  for (const double hop : kHops) {
    if (hop > preset.hop_ms || hop < least) continue;
    plan.hop_ms = hop;
    if (shortest >= kFramesOfShort * hop) break;
  }
  plan.window_ms = plan.hop_ms * (plan.raw ? 1 : preset.window_hops);
  plan.tolerances = preset.tolerances;
  if (plan.raw) {
    const bool many = rate * plan.hop_ms / 1000 > kMaxRawSamples;
    plan.raw_bins = many ? kMaxRawSamples / 2 : 0;
    return;
  }
  plan.fmin = preset.fmin;
  if (plan.fmin >= rate / 4)
    throw UsageError(
        fmt::format("{}: the preset '{}' uses frequencies from {:g} Hz on, but recordings of {} Hz "
                    "end at {:g} Hz; "
                    "choose another one with {}",
                    plan.survey->place(), preset.name, plan.fmin, plan.sample_rate, rate / 2,
                    plan.survey->setting("preset")));
  plan.fmax = preset.fmax < rate / 2 ? preset.fmax : 0;
  plan.n_mels = most_bands(plan);
}

/// Channels of a signal say more side by side; of sound, mostly the same.
void choose_channel(Plan& plan) {
  if (plan.survey->values || plan.channels.rbegin()->first < 2) return;
  if (plan.survey->channel)
    plan.channel = std::to_string(*plan.survey->channel);
  else
    plan.channel = plan.raw && plan.channels.size() == 1 ? "stack" : "mean";
}

/// Labels of whole recordings, with kUnlabelled where there are none.
std::vector<Annotation> covered(const Plan& plan) {
  std::vector<Annotation> all;
  FrameOptions options;
  options.fill_label = kUnlabelled;
  for (const Surveyed& s : plan.survey->recordings) {
    const double hop = plan.hop_ms / 1000;
    const double seconds = s.extent.seconds();
    const auto frames =
        plan.survey->values
            ? s.extent.frames
            : std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(seconds / hop - 1e-9)));
    all.push_back(covering(s.gold, hop, frames, seconds, options));
  }
  return all;
}

/// A label that no recording has.
std::string unused_label(const std::map<std::string, ClassStatistics>& classes) {
  std::string name = "gap";
  for (int number = 2; classes.contains(name); ++number) name = fmt::format("gap{}", number);
  return name;
}

std::int64_t frames_of(const Plan& plan, double seconds) {
  return std::max<std::int64_t>(1, std::llround(1000 * seconds / plan.hop_ms));
}

void count_segments(Plan& plan) {
  const std::vector<Annotation> all = covered(plan);
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool some = false;
    const Split split = plan.survey->recordings[i].recording.split;
    const bool training = split == Split::kTrain;
    for (const LabelSegment& segment : all[i].segments) {
      ClassStatistics& statistics = plan.classes[segment.label];
      const double seconds = segment.end - segment.start;
      statistics.seconds.push_back(seconds);
      if (training && (plan.survey->all_looked_at || segment.label != kUnlabelled))
        plan.longest_in_training = std::max(plan.longest_in_training, frames_of(plan, seconds));
      statistics.training += training;
      statistics.development += split == Split::kDev;
      some = some || segment.label == kUnlabelled;
    }
    plan.unlabelled_recordings += some;
  }
  const auto unlabelled = plan.classes.find(kUnlabelled);
  if (unlabelled != plan.classes.end()) {
    plan.unlabelled_seconds = unlabelled->second.total();
    if (plan.survey->all_looked_at) {
      plan.fill_label = unused_label(plan.classes);
      plan.classes[*plan.fill_label] = std::move(unlabelled->second);
    }
    plan.classes.erase(kUnlabelled);
  }
  for (auto& [label, statistics] : plan.classes) {
    std::ranges::sort(statistics.seconds);
    plan.segments += std::ssize(statistics.seconds);
    if (statistics.seconds.back() <= plan.longest) continue;
    plan.longest = statistics.seconds.back();
    plan.longest_label = label;
  }
}

/// One long pause would make every step as slow as itself.
void choose_longest(Plan& plan) {
  const auto frames = [&](double seconds) { return frames_of(plan, seconds); };
  plan.longest_frames = frames(plan.longest);
  if (plan.longest_frames <= kAlwaysK) return;
  std::vector<double> durations;
  for (const auto& [label, statistics] : plan.classes)
    if (!plan.fill_label || label != *plan.fill_label)
      durations.insert(durations.end(), statistics.seconds.begin(), statistics.seconds.end());
  std::ranges::sort(durations);
  const std::int64_t usual = 2 * frames(quantile(durations, kLongTail));
  const std::int64_t most = std::max(kAlwaysK, usual);
  if (plan.longest_frames <= most) return;
  plan.max_duration = most;
  for (const auto& [label, statistics] : plan.classes)
    plan.longer_than_k += std::ranges::count_if(
        statistics.seconds, [&](double seconds) { return frames(seconds) > most; });
}

void choose_training(Plan& plan) {
  std::vector<double> lengths;  // frames of the training recordings
  for (const Surveyed& s : plan.survey->recordings)
    if (s.recording.split == Split::kTrain)
      lengths.push_back(1000 * s.extent.seconds() / plan.hop_ms);
  const double frames = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  auto sequences = static_cast<double>(lengths.size());
  double shorter = 0;
  for (const double length : lengths) shorter += length < kPieceFrames ? length : 0;
  const double longest = *std::ranges::max_element(lengths);
  if (longest > 2 * kPieceFrames && shorter < 0.02 * frames) {
    plan.fixed_length = kPieceFrames;
    sequences = frames / kPieceFrames;
  }
  std::int64_t development = 0;
  bool unseen = false;  // such recordings have no loss
  for (const auto& [label, statistics] : plan.classes) {
    development += statistics.development;
    unseen = unseen || (statistics.development > 0 && statistics.training == 0);
  }
  plan.select_by_loss = plan.splits[1] > 0 && development < kTellingSegments && !unseen;
  plan.width = frames > kMuch ? 128 : 64;
  plan.subsample = frames > kMuch ? 2 : 1;
  const double epochs =
      std::clamp(kWork / frames, static_cast<double>(kMinEpochs), static_cast<double>(kMaxEpochs));
  plan.epochs = std::llround(epochs);
  plan.batch_size = kMaxBatch;
  while (plan.batch_size > 1 &&
         epochs * sequences / static_cast<double>(plan.batch_size) < kMinSteps)
    plan.batch_size /= 2;
}

void check_enough(const Plan& plan) {
  if (plan.splits[0] > 0 && plan.splits[1] + plan.splits[2] > 0) return;
  throw DataError(fmt::format(
      "{}: {} with labels; training needs at least one recording to train on and one to test on; "
      "label another one, or cut a long one in two",
      plan.survey->place(),
      plan.survey->recordings.size() == 1
          ? "one recording"
          : fmt::format("{} recordings ({} for training, {} for development, {} for test)",
                        plan.survey->recordings.size(), plan.splits[0], plan.splits[1],
                        plan.splits[2])));
}

}  // namespace

double ClassStatistics::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

Plan make_plan(const Survey& survey, const std::string& preset) {
  Plan plan;
  plan.survey = &survey;
  count_recordings(plan);
  check_enough(plan);
  if (survey.values && !preset.empty() && preset != kGeneric)
    throw UsageError(
        fmt::format("{}: the preset '{}' is for sound, but the recordings are not audio; leave "
                    "{} out, or choose '{}'",
                    survey.place(), preset, survey.setting("preset"), kGeneric));
  plan.preset = preset.empty() ? choose_preset(survey, plan.sample_rate)
                               : PresetChoice{&preset_named(preset), "as requested"};
  choose_frames(plan);
  choose_channel(plan);
  count_segments(plan);
  choose_longest(plan);
  choose_training(plan);
  return plan;
}

namespace {

/// So that the card shows what the user set; `config` has these settings.
void show_settings(Plan& plan, const TrainConfig& config, std::vector<std::string> settings) {
  plan.epochs = config.training.epochs;
  plan.batch_size = config.training.batch_size;
  plan.fixed_length = config.training.fixed_length;
  plan.select_by_loss = plan.splits[1] > 0 && config.training.select_by == Selection::kLoss;
  plan.settings = std::move(settings);
}

FolderPlan planned(const FolderOptions& options, const std::vector<std::string>& settings) {
  if (!options.preset.empty()) static_cast<void>(preset_named(options.preset));
  const Survey survey = survey_folder(options);
  Plan plan = make_plan(survey, options.preset);
  const std::string configuration = configuration_of(plan);
  if (!settings.empty())
    show_settings(plan, parse_train_config(configuration, "the configuration", settings), settings);
  return {configuration, card_of(plan)};
}

}  // namespace

}  // namespace segfuse::learn

namespace segfuse {

FolderPlan plan_folder(const FolderOptions& options) { return learn::planned(options, {}); }

void plan_training(TrainOptions& options, FolderOptions how) {
  how.folder = options.recordings.empty() ? options.config : "the recordings";
  how.recordings = options.recordings;
  how.allow_commands = options.allow_commands;
  how.context = options.context;
  const FolderPlan plan = learn::planned(how, options.overrides);
  options.config_text = plan.configuration;
  options.introduction = plan.card;
  if (!options.out.empty())
    options.introduction += fmt::format("  {:<13} {}", "output", options.out.string());
  learn::follow_initial_model(options);
}

}  // namespace segfuse
