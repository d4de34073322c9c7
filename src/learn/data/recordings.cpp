#include "learn/data/recordings.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "learn/data/audio/parsers.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/splits/splits.h"
#include "learn/data/values/values.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

std::string labels_name(const std::string& recording) { return "labels of " + recording; }

void check_labels(const HeldRecording& recording) {
  for (std::size_t i = 0; i < recording.labels.size(); ++i) {
    const LabelSegment& segment = recording.labels[i];
    if (!std::isfinite(segment.start) || !std::isfinite(segment.end))
      throw DataError(fmt::format("{}: segment {} is from {} s to {} s; expected finite times",
                                  labels_name(recording.name), i, segment.start, segment.end));
  }
}

void check_content(const HeldRecording& recording) {
  if (const Tensor* values = std::get_if<Tensor>(&recording.content)) {
    check_size(static_cast<double>(values->shape().at(0)),
               static_cast<double>(values->shape().at(1)), recording.name);
    check_finite(*values, recording.name);
    return;
  }
  const Audio& audio = std::get<Audio>(recording.content);
  if (audio.samples.empty())
    throw DataError(fmt::format("{}: the recording has no samples", recording.name));
}

}  // namespace

Tensor values_of(const Recording& recording) {
  if (recording.command)
    throw DataError(fmt::format("{}: values are read from files, not from commands", recording.id));
  if (!recording.held) return read_values(recording.audio, recording.part);
  if (const Tensor* values = std::get_if<Tensor>(&recording.held->content)) return *values;
  throw DataError(
      fmt::format("{}: the features are values, and these are samples of audio", recording.id));
}

Annotation labels_of(const Recording& recording, LabelOptions options) {
  const bool is_file = recording.part.empty() && !recording.command;
  options.recording = is_file ? recording.audio.string() : name_in_labels(recording);
  if (!recording.held) return read_labels(recording.labels, options);
  RawSegments raw{recording.held->labels, 0, {}};
  sort_by_start(raw);
  return make_contiguous(std::move(raw), labels_name(recording.id), options.fill_label);
}

void check_finite(const Tensor& values, std::string_view name, std::int64_t first_row) {
  const std::span<const float> all = values.span<float>();
  const auto columns = static_cast<std::size_t>(values.shape()[1]);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!std::isfinite(all[i]))
      throw DataError(fmt::format("{}: row {}, column {} is {}; expected {}", name,
                                  static_cast<std::size_t>(first_row) + i / columns, i % columns,
                                  all[i], expected_instead(all[i])));
}

std::string name_of(const Audio& audio) {
  return audio.source.empty() ? "the recording" : audio.source;
}

void check_finite(const Audio& audio, std::int64_t first) {
  for (std::size_t i = 0; i < audio.samples.size(); ++i)
    if (!std::isfinite(audio.samples[i]))
      throw DataError(fmt::format("{}: sample {} is {}; expected {}", name_of(audio),
                                  static_cast<std::size_t>(first) + i, audio.samples[i],
                                  expected_instead(audio.samples[i])));
}

std::string_view expected_instead(float value) {
  return std::isnan(value) ? "finite numbers" : "numbers of at most 3.4e38, which float32 holds";
}

}  // namespace data

Audio read_recording(const Recording& recording, const AudioOptions& options) {
  if (recording.command) return data::read_command(*recording.command, options);
  if (!recording.held) return read_audio(recording.audio, options);
  const Audio* held = std::get_if<Audio>(&recording.held->content);
  if (held == nullptr)
    throw DataError(fmt::format(
        "{}: the features are of audio, and these are values; set features.kind = \"values\"",
        recording.id));
  data::check_channel(options.channel, held->stacked, recording.id);
  Audio audio = *held;
  audio.samples.clear();
  audio.stacked = 1;
  audio.channels = held->stacked;
  audio.source = recording.id;
  data::ChannelMixer(audio, options).add(held->samples);
  return audio;
}

std::vector<Recording> hold(std::vector<HeldRecording> recordings) {
  std::vector<std::optional<Split>> splits;
  std::vector<std::string> groups;
  for (const HeldRecording& recording : recordings) {
    splits.push_back(recording.split);
    groups.push_back(recording.group);
    if (recording.group.empty() != recordings[0].group.empty())
      throw UsageError(
          fmt::format("{} has no group, and others have one; give each of them one, or none",
                      recording.group.empty() ? recording.name : recordings[0].name));
  }
  if (!recordings.empty() && recordings[0].group.empty()) groups.clear();
  data::deal_splits(splits, groups);
  std::vector<Recording> out;
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    data::check_content(recordings[i]);
    data::check_labels(recordings[i]);
    Recording& recording = out.emplace_back();
    recording.id = recordings[i].name;
    recording.audio = recordings[i].name;
    recording.labels = data::labels_name(recordings[i].name);
    recording.split = *splits[i];
    recording.group = recordings[i].group;
    recording.held = std::make_shared<const HeldRecording>(std::move(recordings[i]));
  }
  return out;
}

}  // namespace segfuse
