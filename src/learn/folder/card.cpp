// What is in a folder, as text.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <ranges>

#include "base/console/printable.h"
#include "learn/data/splits/splits.h"
#include "learn/data/text.h"
#include "learn/folder/plan.h"
#include "segfuse/data/formats.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kRare = 5;  // segments in training, fewer can hardly be learnt
constexpr std::size_t kShownClasses = 20;
constexpr std::size_t kShownNames = 5;

std::string counted(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string time_text(double seconds) {
  if (seconds >= 3600) return fmt::format("{:.2f} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} s", seconds);
}

std::string names_text(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(kShownNames, names.size());
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + printable_line(names[i]);
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string paths_text(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> names;
  for (const std::filesystem::path& path : paths) names.push_back(path.filename().string());
  return names_text(names);
}

class Card {
 public:
  void row(const std::string& name, const std::string& value) {
    text_ += fmt::format("  {:<13} {}\n", name, value);
  }
  void line(const std::string& text) { text_ += text + "\n"; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_rows(const Plan& plan, Card& card) {
  const FrameRate& frame_rate = plan.survey->frame_rate;
  std::int64_t frames = 0;
  for (const Surveyed& s : plan.survey->recordings) frames += s.extent.frames;
  card.row("frames", fmt::format("{}, a row each, of {:g} ms", frames, plan.hop_ms));
  card.row("frame rate", fmt::format("{} rows a second: {}; {} says another", frame_rate.rate,
                                     frame_rate.reason, plan.survey->setting("frame rate")));
  card.row("channels", fmt::format("{}", plan.channels.begin()->first));
}

std::string channel_text(const Plan& plan) {
  if (plan.channel.empty()) return "";
  if (plan.channel == "mean") return "; their mean is taken";
  if (plan.channel == "stack") return "; all of them are taken, side by side";
  return fmt::format("; number {} (from 0) is taken, which the tier is of", plan.channel);
}

void add_recordings(const Plan& plan, Card& card) {
  const Survey& survey = *plan.survey;
  const auto count = static_cast<std::int64_t>(survey.recordings.size());
  card.row("recordings", fmt::format("{} with labels, {}", count, time_text(plan.seconds)));
  if (!survey.unpaired.recordings.empty())
    card.row("left out", fmt::format("{} without labels: {}",
                                     counted(std::ssize(survey.unpaired.recordings), "recording"),
                                     paths_text(survey.unpaired.recordings)));
  if (!survey.unpaired.labels.empty())
    card.row("left out", fmt::format("{} that no recording belongs to: {}",
                                     counted(std::ssize(survey.unpaired.labels), "file"),
                                     paths_text(survey.unpaired.labels)));
  if (!survey.unpaired.texts.empty())
    card.row("left out", fmt::format("{} without times, which are not labels: {}",
                                     counted(std::ssize(survey.unpaired.texts), "text"),
                                     paths_text(survey.unpaired.texts)));
  if (survey.values) return add_rows(plan, card);
  std::string rates;
  for (const auto& [rate, number] : plan.rates)
    rates += fmt::format("{}{} Hz{}", rates.empty() ? "" : ", ", rate,
                         plan.rates.size() > 1 ? fmt::format(" ({})", number) : "");
  card.row("sample rate", rates);
  std::string channels;
  for (const auto& [number, recordings] : plan.channels)
    channels += fmt::format("{}{}{}", channels.empty() ? "" : ", ", number,
                            plan.channels.size() > 1 ? fmt::format(" ({})", recordings) : "");
  card.row("channels", channels + channel_text(plan));
}

void add_tiers(const Survey& survey, Card& card) {
  if (survey.tiers.size() < 2) return;
  std::string all;
  for (const TierStatistics& tier : survey.tiers)
    all += fmt::format("{}{} ({} segments, {} labels)", all.empty() ? "" : ", ",
                       data::shown(tier.name), tier.segments, tier.labels);
  card.row("tiers", all);
  card.row("tier", fmt::format("{}: {}; {} chooses another", data::shown(survey.tier),
                               survey.tier_reason, survey.setting("tier")));
}

void add_classes(const Plan& plan, Card& card) {
  using Entry = std::pair<std::string, const ClassStatistics*>;
  std::vector<Entry> order;
  for (const auto& [label, statistics] : plan.classes) order.emplace_back(label, &statistics);
  std::ranges::stable_sort(order, [](const Entry& a, const Entry& b) {
    return a.second->seconds.size() > b.second->seconds.size();
  });
  card.line(fmt::format("  {:<13} {:>8} {:>9} {:>9} {:>9} {:>9}", "label", "segments", "seconds",
                        "shortest", "median", "longest"));
  for (std::size_t i = 0; i < std::min(kShownClasses, order.size()); ++i) {
    const std::vector<double>& seconds = order[i].second->seconds;
    card.line(fmt::format("  {:<13} {:>8} {:>9.2f} {:>9.4f} {:>9.4f} {:>9.4f}",
                          printable_line(order[i].first), seconds.size(), order[i].second->total(),
                          seconds.front(), seconds[seconds.size() / 2], seconds.back()));
  }
  if (order.size() > kShownClasses)
    card.line(fmt::format("  and {} labels more", order.size() - kShownClasses));
}

void add_labels(const Plan& plan, Card& card) {
  card.row("labels", fmt::format("{}, {}", counted(std::ssize(plan.classes), "label"),
                                 counted(plan.segments, "segment")));
  if (plan.unlabelled_seconds > 0 && !plan.fill_label)
    card.row("unlabelled", fmt::format("{} in {} ({:.0f} %), not annotated: they are left out",
                                       time_text(plan.unlabelled_seconds),
                                       counted(plan.unlabelled_recordings, "recording"),
                                       100 * plan.unlabelled_seconds / plan.seconds));
  if (plan.fill_label)
    card.row("unlabelled",
             fmt::format("{} in {} ({:.0f} %), taken for segments of the label \"{}\"",
                         time_text(plan.unlabelled_seconds),
                         counted(plan.unlabelled_recordings, "recording"),
                         100 * plan.unlabelled_seconds / plan.seconds, *plan.fill_label));
  add_classes(plan, card);
}

/// Of how many groups the recordings of each set are.
std::string groups_text(const Plan& plan) {
  const std::vector<Recording> all = recordings_in(*plan.survey);
  const auto count = [&](Split split) { return data::count_groups(recordings_of(all, split)); };
  return fmt::format("{}: {}, {} and {}", counted(plan.groups, "group"), count(Split::kTrain),
                     count(Split::kDev), count(Split::kTest));
}

void add_choices(const Plan& plan, Card& card) {
  card.row("preset",
           fmt::format("{}: {}{}", plan.preset.preset->name, plan.preset.reason,
                       plan.survey->values
                           ? ""
                           : fmt::format("; {} chooses another", plan.survey->setting("preset"))));
  if (!plan.survey->values)
    card.row("frames",
             fmt::format(
                 "{:g} ms, windows of {:g} ms{}", plan.hop_ms, plan.window_ms,
                 plan.raw ? ", samples as they are"
                          : fmt::format(", {} bands from {:g} to {:g} Hz", plan.n_mels, plan.fmin,
                                        plan.fmax > 0 ? plan.fmax : plan.sample_rate / 2.0)));
  card.row("longest", fmt::format("{:.3f} s (\"{}\"), {} frames", plan.longest,
                                  printable_line(plan.longest_label), plan.longest_frames));
  card.row("K", plan.max_duration == 0
                    ? fmt::format("{} frames, the longest segment of the training recordings",
                                  plan.longest_in_training)
                    : fmt::format("{} frames; {} longer, cut for the model and joined again",
                                  plan.max_duration,
                                  plan.longer_than_k == 1
                                      ? "1 segment is"
                                      : fmt::format("{} segments are", plan.longer_than_k)));
  card.row(
      "split",
      fmt::format("{} to train on, {} for development, {} for test{}{}", plan.splits[0],
                  plan.splits[1], plan.splits[2], plan.survey->split_was_given ? ", as given" : "",
                  plan.groups > 0 ? fmt::format(" (recordings of {})", groups_text(plan)) : ""));
  card.row("training",
           fmt::format(
               "{} epochs, {} a step{}{}", plan.epochs,
               counted(plan.batch_size, plan.fixed_length > 0 ? "piece" : "recording"),
               plan.fixed_length > 0 ? fmt::format(", pieces of {} frames", plan.fixed_length) : "",
               plan.select_by_loss ? "; the one with the least development loss is kept" : ""));
  std::string settings;
  for (const std::string& setting : plan.settings)
    settings += (settings.empty() ? "" : ", ") + printable_line(setting);
  if (!settings.empty())
    card.row("settings", settings + "; these replace the values above, and what follows from them");
}

/// Labels that end long before their recording, where those of most do not: a file may have lost
/// its end, which nothing in it says.
void add_early_ends(const Plan& plan, Card& card) {
  const double slack = FrameOptions().slack_seconds + plan.hop_ms / 1000;
  std::vector<const Surveyed*> early;
  for (const Surveyed& s : plan.survey->recordings)
    if (s.gold.duration + slack < s.extent.seconds()) early.push_back(&s);
  if (!plan.fill_label || early.empty() || 2 * early.size() > plan.survey->recordings.size())
    return;
  const Surveyed& first = *early.front();
  card.line(fmt::format(
      "warning: {}: its last label ends at {} s, the recording at {} s{}; labels of most "
      "recordings "
      "reach the end: if a file was cut off, mend it, since the rest counts as \"{}\"",
      first.recording.labels.string(), data::format_seconds(first.gold.duration),
      data::format_seconds(first.extent.seconds()),
      early.size() > 1 ? fmt::format(", and likewise for {} more", early.size() - 1) : "",
      *plan.fill_label));
}

/// Labels that end at one share of every recording have times of another unit than their format's,
/// such as samples where it has seconds.
void add_wrong_units(const Plan& plan, Card& card) {
  constexpr double kMaxShare = 0.5, kSame = 1.02, kApart = 1.1, kNothing = 0.02;
  const std::vector<Surveyed>& all = plan.survey->recordings;
  if (!plan.fill_label || all.size() < 2) return;
  const auto share = [](const Surveyed& s) { return s.gold.duration / s.extent.seconds(); };
  const auto seconds = [](const Surveyed& s) { return s.extent.seconds(); };
  const auto [least, most] = std::ranges::minmax(all | std::views::transform(share));
  const auto [shortest, longest] = std::ranges::minmax(all | std::views::transform(seconds));
  const bool same = most < kSame * least && longest > kApart * shortest;
  if (most > kMaxShare || (!same && most > kNothing)) return;
  const Surveyed& first = all.front();
  card.line(fmt::format(
      "warning: {}: its last label ends at {} s, the recording at {} s, and in all recordings the "
      "labels end at {:.2g} % of the time or before; the times of this format are {}, so check "
      "that these are",
      first.recording.labels.string(), data::format_seconds(first.gold.duration),
      data::format_seconds(first.extent.seconds()), 100 * most,
      first.recording.held ? "seconds"
                           : label_format(inspect_labels(first.recording.labels).format).times));
}

/// Folders may be speakers or animals, which a split by name parts.
void add_group_notes(const Plan& plan, Card& card) {
  const Survey& survey = *plan.survey;
  if (plan.groups > 0) {
    if (const std::string torn = data::torn_groups(recordings_in(survey)); !torn.empty())
      card.line("warning: " + torn);
    return;
  }
  std::map<std::filesystem::path, std::int64_t> folders;
  for (const Surveyed& s : survey.recordings)
    if (!s.recording.held && !s.recording.command) ++folders[s.recording.audio.parent_path()];
  if (survey.split_was_given || folders.size() < 2 || folders.size() == survey.recordings.size())
    return;
  std::vector<std::filesystem::path> paths;
  for (const auto& [path, count] : folders) paths.push_back(path);
  card.line(fmt::format(
      "note: the recordings lie in {} folders ({}), which the split parts; if each is a speaker or "
      "an animal, {}{} keeps it in one set",
      folders.size(), paths_text(paths), survey.setting("group"),
      survey.options.has_arguments ? "\"folder\"" : " folder"));
}

void add_warnings(const Plan& plan, Card& card) {
  std::vector<std::string> missing, rare;
  for (const auto& [label, statistics] : plan.classes) {
    if (statistics.training == 0)
      missing.push_back(fmt::format("\"{}\"", label));
    else if (statistics.training < kRare)
      rare.push_back(fmt::format("\"{}\" ({})", label, statistics.training));
  }
  for (const std::string& warning : plan.survey->warnings) card.line("warning: " + warning);
  add_early_ends(plan, card);
  add_wrong_units(plan, card);
  add_group_notes(plan, card);
  if (!rare.empty())
    card.line(fmt::format("warning: fewer than {} times in training, so hardly learned: {}", kRare,
                          names_text(rare)));
  if (!missing.empty())
    card.line(
        fmt::format("warning: not in the training recordings, so every segment decoded there "
                    "counts as wrong: {}",
                    names_text(missing)));
  if (plan.splits[1] == 0)
    card.line("note: too few recordings for a development set; the last epoch is kept");
  if (plan.splits[2] == 0)
    card.line("note: no test recordings; the figures are of the development set");
  if (plan.fixed_length > 0)
    for (const Surveyed& s : plan.survey->recordings)
      if (s.recording.split == Split::kTrain &&
          1000 * s.extent.seconds() / plan.hop_ms < static_cast<double>(plan.fixed_length))
        card.line(fmt::format("note: shorter than a piece, so not trained on: {}", s.recording.id));
}

}  // namespace

std::string card_of(const Plan& plan) {
  Card card;
  card.line(fmt::format("data card of {}", plan.survey->place()));
  add_recordings(plan, card);
  add_tiers(*plan.survey, card);
  add_labels(plan, card);
  add_choices(plan, card);
  add_warnings(plan, card);
  return card.take();
}

}  // namespace segfuse::learn
