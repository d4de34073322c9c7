#include "learn/train/report/recordings_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/code/fnv.h"
#include "base/os/file.h"
#include "base/toml_reader.h"
#include "learn/metrics/counts_json.h"
#include "learn/train/commands/experiment.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// Labels and times after `hash`; times to the nanosecond, as the metrics round them.
std::uint64_t hash_of(const Annotation& gold, std::uint64_t hash) {
  for (const LabelSegment& s : gold.segments)
    hash = fnv1a(fmt::format("{:.9f} {:.9f} {}\n", s.start, s.end, s.label), hash);
  return hash;
}

}  // namespace

bool counts_fields(const MeasuredSystem& system) {
  return std::ranges::all_of(system.by_recording,
                             [](const auto& one) { return one.second.has_fields; });
}

RecordingsFile recordings_of(const TrainConfig& config, const LabelledSet& set,
                             std::vector<MeasuredSystem> systems) {
  RecordingsFile file;
  file.tolerances = config.tolerances;
  file.edge_tolerance = config.edge_tolerance;
  file.background = background_of(config);
  std::ranges::sort(file.background);  // their order means nothing
  for (const TomlReader::Setting& setting : config.settings)
    file.settings[setting.name()] = setting.value;
  file.systems = std::move(systems);
  std::string folding = config.data.metric_merge ? "merged\n" : "\n";
  if (!config.data.metric_fold.empty()) folding += read_file(config.data.metric_fold);
  std::map<std::string, std::uint64_t> hashes;
  for (const Example& example : set.examples) {
    const std::string& id = recording_of(example);
    file.recordings[id].seconds += example.seconds;
    const auto hash = hashes.try_emplace(id, fnv1a(folding)).first;
    hash->second = hash_of(example.gold, hash->second);
  }
  for (const auto& [id, hash] : hashes) file.recordings[id].gold = fmt::format("{:016x}", hash);
  return file;
}

std::string text_of(const RecordingsFile& file) {
  Json json;
  json["tolerances"] = file.tolerances;
  json["edge_tolerance"] = file.edge_tolerance;
  json["background"] = file.background;
  json["settings"] = file.settings;
  for (const MeasuredSystem& system : file.systems) json["systems"].push_back(system.name);
  Json& recordings = json["recordings"] = Json::array();
  for (const auto& [id, recording] : file.recordings) {
    Json row{{"id", id}, {"seconds", recording.seconds}, {"gold", recording.gold}};
    for (const MeasuredSystem& system : file.systems)
      row["counts"][system.name] =
          metrics::counts_json(system.by_recording.at(id), file.tolerances);
    recordings.push_back(std::move(row));
  }
  return json_text(json, 1) + "\n";
}

RecordingsFile read_recordings(const std::filesystem::path& folder) {
  if (!path_is_directory(folder))
    throw UsageError(fmt::format(
        "{}: {}; compare needs the directory of a training, or that of `segfuse eval --out`",
        folder.string(),
        path_exists(folder) ? "this is a file, not a directory" : "no such directory"));
  const std::filesystem::path path = folder / kRecordingsFile;
  if (!path_exists(path))
    throw UsageError(fmt::format(
        "{}: there is no {}; compare needs the directory of a training, or that of `segfuse eval "
        "--out`, by this version or a later one",
        folder.string(), kRecordingsFile));
  const std::string name = path.string();
  const Json json = parse_json(read_file(path), name);
  const JsonPlace top(json, name);
  RecordingsFile file;
  top.at("tolerances").for_each([&](const JsonPlace& t) { file.tolerances.push_back(t.number()); });
  if (const auto edges = top.find("edge_tolerance")) {
    file.edge_tolerance = edges->number();
    if (!(file.edge_tolerance >= 0 && file.edge_tolerance <= 1)) edges->refuse("0 to 1");
    file.background = top.at("background").texts();
  }
  top.at("settings").for_each_member([&](const std::string& key, const JsonPlace& value) {
    file.settings[key] = value.text();
  });
  for (std::string& system : top.at("systems").texts()) {
    if (std::ranges::find(file.systems, system, &MeasuredSystem::name) != file.systems.end())
      throw DataError(fmt::format("{}: the system '{}' occurs twice", name, system));
    file.systems.push_back({std::move(system), {}});
  }
  top.at("recordings").for_each([&](const JsonPlace& row) {
    const std::string id = row.at("id").text();
    const double seconds = row.at("seconds").number();
    if (!(seconds >= 0 && seconds < 1e12))
      throw DataError(
          fmt::format("{}: '{}' has {} seconds; expected 0 or more", name, id, seconds));
    const MeasuredRecording recorded{seconds, row.at("gold").text()};
    if (!file.recordings.try_emplace(id, recorded).second)
      throw DataError(fmt::format("{}: the recording '{}' occurs twice", name, id));
    const JsonPlace counts = row.at("counts");
    for (MeasuredSystem& system : file.systems)
      system.by_recording[id] = metrics::counts_from_json(counts.at(system.name), file.tolerances);
  });
  if (file.systems.empty() || file.recordings.empty())
    throw DataError(fmt::format("{}: there are no systems or no recordings in it", name));
  return file;
}

}  // namespace segfuse::learn
