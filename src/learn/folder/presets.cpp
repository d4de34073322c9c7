#include "learn/folder/presets.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr int kLowRate = 2000;           // below it nothing is sound
constexpr int kUltrasonicRate = 120000;  // from it on calls are above hearing
constexpr double kBatCall = 0.02;        // seconds; calls of mice are longer
constexpr double kLongestNote = 0.5;     // seconds

bool is_transcription(const Recording& recording) {
  const std::string extension = data::extension_of(recording.labels.string());
  return extension == ".phn" || extension == ".wrd" || extension == ".lab" ||
         extension == ".textgrid";
}

double median_duration(const Survey& survey) {
  std::vector<double> durations;
  for (const Surveyed& s : survey.recordings)
    for (const LabelSegment& segment : s.gold.segments)
      if (segment.label != kUnlabelled) durations.push_back(segment.end - segment.start);
  if (durations.empty()) return 0;
  const auto middle = durations.begin() + std::ssize(durations) / 2;
  std::ranges::nth_element(durations, middle);
  return *middle;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const auto& all = *new std::vector<Preset>{
      {"birdsong",
       "Song in notes or syllables",
       false,
       4,
       4,
       300,
       12000,
       64,
       0,
       {0.01, 0.02},
       5,
       5,
       {1, 2, 4, 8, 16},
       0.1,
       0.01},
      {"speech",
       "Phones of speech",
       false,
       10,
       2.5,
       20,
       8000,
       40,
       1,
       {0.02},
       5,
       5,
       {1, 2, 4, 8},
       0.1,
       0.01},
      {"ecg",
       "Waves of the electrocardiogram",
       true,
       10,
       1,
       0,
       0,
       0,
       0,
       {0.02, 0.15},
       9,
       9,
       {1, 2, 4, 8},
       0.2,
       0.05},
      {"mouse",
       "Ultrasonic calls of mice",
       false,
       1,
       2.5,
       20000,
       0,
       64,
       0,
       {0.005},
       5,
       5,
       {1, 2, 4, 8},
       0.1,
       0.01},
      {"bat",
       "Calls of bats",
       false,
       0.5,
       3,
       10000,
       0,
       64,
       0,
       {0.002},
       5,
       5,
       {1, 2, 4, 8},
       0.1,
       0.01},
      {kGeneric,
       "Labelled segments",
       false,
       10,
       2.5,
       20,
       0,
       40,
       0,
       {0.02},
       5,
       5,
       {1, 2, 4, 8},
       0.1,
       0.01},
  };
  return all;
}

const Preset& preset_named(const std::string& name) {
  for (const Preset& preset : presets())
    if (name == preset.name) return preset;
  const std::vector<std::string> names = preset_names();
  throw UsageError(fmt::format("there is no preset '{}'; {}", name, suggestion(name, names)));
}

PresetChoice choose_preset(const Survey& survey, int rate) {
  if (survey.values) return {&preset_named(kGeneric), "the recordings are not audio"};
  bool transcriptions = true;
  for (const Surveyed& s : survey.recordings)
    transcriptions = transcriptions && is_transcription(s.recording);
  const double median = median_duration(survey);
  if (rate < kLowRate)
    return {&preset_named("ecg"), fmt::format("{} Hz is a signal rather than sound", rate)};
  if (rate >= kUltrasonicRate)
    return {&preset_named(median < kBatCall ? "bat" : "mouse"),
            fmt::format("{} Hz, half of the segments shorter than {:.3g} s", rate, median)};
  if (transcriptions) return {&preset_named("speech"), "sound with transcriptions"};
  if (median < kLongestNote)
    return {&preset_named("birdsong"),
            fmt::format("sound, half of the segments shorter than {:.3g} s", median)};
  std::vector<std::string> others = preset_names();
  std::erase(others, kGeneric);
  return {&preset_named(kGeneric), fmt::format("none of {} is obvious", quoted_list(others))};
}

}  // namespace segfuse::learn

namespace segfuse {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const learn::Preset& preset : learn::presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace segfuse
