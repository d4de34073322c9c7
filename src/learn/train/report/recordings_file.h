#pragma once
// recordings.json: what each system of a run did on each recording, for comparisons to come.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "learn/train/report/figures.h"

namespace segfuse::learn {

struct LabelledSet;
struct TrainConfig;

inline constexpr const char* kRecordingsFile = "recordings.json";

struct MeasuredRecording {
  double seconds = 0;
  std::string gold;  ///< hash of its gold segments, as they were measured
};

struct RecordingsFile {
  std::vector<double> tolerances;
  double edge_tolerance = MetricsConfig().edge_tolerance;
  std::vector<std::string> background{};
  std::map<std::string, std::string> settings;          ///< of the first system, as in the TOML
  std::map<std::string, MeasuredRecording> recordings;  ///< by id
  std::vector<MeasuredSystem> systems;                  ///< the one that the run is about first
};
/// Whether the system's counts are by label as well; those of older versions are not.
bool counts_fields(const MeasuredSystem& system);

/// `config` is that of the first system.
RecordingsFile recordings_of(const TrainConfig& config, const LabelledSet& set,
                             std::vector<MeasuredSystem> systems);
std::string text_of(const RecordingsFile& file);
/// Of a run's folder. UsageError where there is none, DataError for one that is malformed.
RecordingsFile read_recordings(const std::filesystem::path& folder);

}  // namespace segfuse::learn
